"""What an architecture's `total_latency` says, for the forms that a closed form covers.

total_latency := 0 | aggregate | total_latency * number | total_latency / number | number * total_latency
aggregate     := ("sum" | "max") "(" calls "for" a "in" "actions" ")"
calls         := a.n_calls | calls / a.throughput | calls * number | calls / number | number * calls
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from theodolite.ir.accelforge.expression import ExpressionError, evaluate, parse


@dataclass(frozen=True)
class LatencyForm:
    """Seconds of a component: the sum (or the maximum) over its actions of calls x factor (/ throughput)."""

    combine: Literal["sum", "max"]
    factor: float
    by_throughput: bool

    def seconds(self, throughput: float) -> float:
        """Seconds that a call takes."""
        return self.factor / throughput if self.by_throughput else self.factor


def latency_form(expression: Any, names: Mapping[str, Any]) -> LatencyForm:
    """Read `total_latency`; ExpressionError for any other form."""
    if _is_nothing(expression, names):
        return LatencyForm("sum", 0.0, by_throughput=False)
    shown = f"total_latency {str(expression)[:80]!r}"
    node, factor = _scaled(parse(str(expression)), names)
    match node:
        case ast.Call(ast.Name(("sum" | "max") as combine), [ast.GeneratorExp(body, [generator])], []):
            match generator:
                case ast.comprehension(ast.Name(action), ast.Name("actions"), [], 0):
                    by_throughput, inner = _calls(body, action, names, shown)
                    return LatencyForm("sum" if combine == "sum" else "max", factor * inner, by_throughput)
    raise ExpressionError(
        f"{shown}: read are 0, and sum and max over actions of a.n_calls / a.throughput, times numbers"
    )


def _is_nothing(expression: Any, names: Mapping[str, Any]) -> bool:
    """Whether a component takes no time whatever it does; any other constant would not grow with its calls."""
    try:
        value = evaluate(expression, names)
    except ExpressionError:
        return False
    return isinstance(value, (bool, int, float)) and value == 0


def _scaled(node: ast.expr, names: Mapping[str, Any]) -> tuple[ast.expr, float]:
    """The part of a product that is no number, and the number beside it."""
    factor = 1.0
    while True:
        match node:
            case ast.BinOp(left, ast.Mult(), right) if _is_number(right, names):
                node, factor = left, factor * _number(right, names)
            case ast.BinOp(left, ast.Div(), right) if _is_number(right, names):
                node, factor = left, factor / _number(right, names)
            case ast.BinOp(left, ast.Mult(), right) if _is_number(left, names):
                node, factor = right, factor * _number(left, names)
            case _:
                return node, factor


def _calls(node: ast.expr, action: str, names: Mapping[str, Any], shown: str) -> tuple[bool, float]:
    """(whether calls are divided by the throughput, the number beside them)."""
    node, factor = _scaled(node, names)
    match node:
        case ast.Attribute(ast.Name(owner), "n_calls") if owner == action:
            return False, factor
        case ast.BinOp(left, ast.Div(), ast.Attribute(ast.Name(owner), "throughput")) if owner == action:
            divided, inner = _calls(left, action, names, shown)
            if not divided:
                return True, factor * inner
    raise ExpressionError(f"{shown}: an action counts as its n_calls, over its throughput or not, times numbers")


def _is_number(node: ast.expr, names: Mapping[str, Any]) -> bool:
    try:
        _number(node, names)
    except ExpressionError:
        return False
    return True


def _number(node: ast.expr, names: Mapping[str, Any]) -> float:
    value = evaluate(ast.unparse(node), names)
    if not isinstance(value, (int, float)) or value <= 0:
        raise ExpressionError("a positive number is wanted")
    return float(value)
