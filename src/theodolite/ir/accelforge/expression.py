"""The expressions of AccelForge's files, evaluated over a closed set of Python's syntax; nothing is ever executed.

expression := number | name | expression operator expression | -x | ~x | not x | a if b else c
            | comparison | x and y | x or y | function(x, ...) | set.bits_per_value
operators  := + - * / // % ** on numbers, & | - ~ on sets of tensors
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from theodolite.errors import TheodoliteError

MAX_CHARS = 1_000
MAX_DEPTH = 60
MAX_BITS = 1_024


class ExpressionError(TheodoliteError):
    """An expression that cannot be evaluated; whoever reads the file adds where it stands."""


@dataclass(frozen=True)
class TensorSet:
    """Some of an Einsum's tensors; `space` has all of them, `bits` the width of a value of each."""

    members: frozenset[str]
    space: frozenset[str]
    bits: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return len(self.members)

    def made(self, members: frozenset[str]) -> TensorSet:
        return TensorSet(members, self.space, self.bits)

    @property
    def bits_per_value(self) -> int:
        """The width of the one tensor; ExpressionError for none or several."""
        if len(self.members) != 1:
            raise ExpressionError(f"bits_per_value of {len(self.members)} tensors: it wants a set of one")
        return self.bits[next(iter(self.members))]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "int": int,
    "float": float,
    "bool": bool,
}
CONSTANTS: Mapping[str, Any] = {"inf": math.inf, "pi": math.pi, "e": math.e}
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
ON_SETS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Sub: operator.sub,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(expression: Any, names: Mapping[str, Any]) -> Any:
    """A number, a bool or a TensorSet; what is no string is its own value.  Raises ExpressionError."""
    if not isinstance(expression, str):
        return expression
    try:
        return _value(parse(expression), names, 0)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ExpressionError(f"{expression[:80]!r} has no value: {error}") from error


def parse(expression: str) -> ast.expr:
    """The syntax of an expression; ExpressionError where it has none or is too long."""
    if len(expression) > MAX_CHARS:
        raise ExpressionError(f"an expression of {len(expression)} characters: at most {MAX_CHARS}")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{expression[:80]!r} is no expression") from error


def names_in(expression: Any) -> frozenset[str]:
    """The names that an expression uses; ExpressionError where it is none."""
    if not isinstance(expression, str):
        return frozenset()
    return frozenset(node.id for node in ast.walk(parse(expression)) if isinstance(node, ast.Name))


def bounded(value: Any) -> Any:
    """A value that is not absurd: whole numbers of at most 1,024 bits, no NaN."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ExpressionError(f"a number of more than {MAX_BITS} bits")
    if isinstance(value, complex) or (isinstance(value, float) and math.isnan(value)):
        raise ExpressionError("a value that is no real number")
    return value


def power(base: Any, exponent: Any) -> Any:
    """base ** exponent, refused before it is computed where it would be absurd."""
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and base.bit_length() * abs(exponent) > 4 * MAX_BITS:
        raise ExpressionError(f"a power of more than {4 * MAX_BITS} bits")
    return bounded(base**exponent)


def _value(node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"an expression nested more than {MAX_DEPTH} deep")

    def of(child: ast.expr) -> Any:
        return _value(child, names, depth + 1)

    match node:
        case ast.Constant(value) if isinstance(value, (bool, int, float)):
            return bounded(value)
        case ast.Name(name):
            return _named(name, names)
        case ast.BinOp(left, op, right):
            return _binary(of(left), op, of(right))
        case ast.UnaryOp(sign, inner):
            return _unary(sign, of(inner))
        case ast.IfExp(test, body, orelse):
            return of(body) if _truth(of(test)) else of(orelse)
        case ast.BoolOp(joined, operands):
            found = of(operands[0])
            for operand in operands[1:]:
                if _truth(found) != isinstance(joined, ast.And):
                    break
                found = of(operand)
            return found
        case ast.Compare(left, ops, others):
            sides = [of(left), *(of(o) for o in others)]
            return all(_compared(a, op, b) for a, op, b in zip(sides, ops, sides[1:], strict=False))
        case ast.Call(ast.Name(name), args, []) if name in FUNCTIONS:
            return bounded(FUNCTIONS[name](*(of(a) for a in args)))
        case ast.Attribute(owner, "bits_per_value") if isinstance(found := of(owner), TensorSet):
            return found.bits_per_value
        case _:
            raise ExpressionError(f"{ast.unparse(node)[:80]!r} is no arithmetic: use numbers, names, sets and "
                                  f"{', '.join(FUNCTIONS)}")  # fmt: skip


def _named(name: str, names: Mapping[str, Any]) -> Any:
    if name in names:
        return names[name]
    if name in CONSTANTS:
        return CONSTANTS[name]
    raise ExpressionError(f"unknown name {name!r}: known are {', '.join(sorted(names)[:20]) or 'numbers alone'}")


def _binary(left: Any, op: ast.operator, right: Any) -> Any:
    if isinstance(left, TensorSet) and isinstance(right, TensorSet) and type(op) in ON_SETS:
        return left.made(ON_SETS[type(op)](left.members, right.members))
    _numbers(left, right)
    if isinstance(op, ast.Pow):
        return power(left, right)
    if isinstance(op, ast.BitXor):
        raise ExpressionError("^ on numbers: a power is written **")
    if type(op) not in ARITHMETIC:
        raise ExpressionError(f"no {type(op).__name__} on numbers")
    return bounded(ARITHMETIC[type(op)](left, right))


def _unary(op: ast.unaryop, value: Any) -> Any:
    if isinstance(op, ast.Not):
        return not _truth(value)
    if isinstance(op, ast.Invert):
        if not isinstance(value, TensorSet):
            raise ExpressionError("~ wants a set of tensors")
        return value.made(value.space - value.members)
    _numbers(value)
    return -value if isinstance(op, ast.USub) else value


def _compared(left: Any, op: ast.cmpop, right: Any) -> bool:
    if type(op) not in COMPARISONS:
        raise ExpressionError(f"no {type(op).__name__} between values")
    return bool(COMPARISONS[type(op)](left, right))


def _truth(value: Any) -> bool:
    return len(value) > 0 if isinstance(value, TensorSet) else bool(value)


def _numbers(*values: Any) -> None:
    for value in values:
        if not isinstance(value, (bool, int, float)):
            raise ExpressionError(f"a number is wanted, not {type(value).__name__}")
