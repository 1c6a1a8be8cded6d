"""One rule for each operation that an address, a mask, a bound or a branch may be made of.

A rule takes the operation, the launch's context and the operands' values, and gives the result's value for all
programs.  An operation that is not in RULES cannot be resolved, and using its result raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from theodolite.auditing.ttir import values as v
from theodolite.auditing.ttir.parse import Op, element_of, shape_of
from theodolite.auditing.ttir.values import Affine, Mask, Number, Pointer, Value
from theodolite.errors import Unsupported
from theodolite.ir.events import Ints


@dataclass(frozen=True, eq=False)
class Context:
    """The programs that run, as numbers int64[P] with axis x fastest, and the grid's three sizes."""

    programs: Ints
    grid: tuple[int, int, int]

    def program_id(self, axis: int) -> Number:
        below = math.prod(self.grid[:axis])
        return self.programs // below % self.grid[axis]


Rule = Callable[..., Value]


def bits_of(kind: str) -> int:
    """The width of an integer type; Unsupported for any other type."""
    element = element_of(kind)
    if element == "index":
        return 64
    if not re.fullmatch(r"i\d+", element):
        raise Unsupported(f"{element} is not an integer type")
    return int(element[1:])


def constant(op: Op, _: Context) -> Value:
    text = op.text.removeprefix("dense<").removesuffix(">")
    if text in ("true", "false"):
        return v.affine(1, int(text == "true"), shape_of(op.type))
    if not re.fullmatch(r"-?\d+", text):
        raise Unsupported("a constant that is not one integer")
    return v.affine(bits_of(op.type), int(text), shape_of(op.type))


def program_id(op: Op, context: Context) -> Value:
    return v.affine(bits_of(op.type), context.program_id("xyz".index(op.text)))


def num_programs(op: Op, context: Context) -> Value:
    return v.affine(bits_of(op.type), context.grid["xyz".index(op.text)])


def make_range(op: Op, _: Context) -> Value:
    found = re.fullmatch(r"\{end = (\d+) : i32, start = (\d+) : i32\}", op.text)
    if not found or shape_of(op.type) != (int(found[1]) - int(found[2]),):
        raise Unsupported("a range whose type does not fit its ends")
    return v.affine(32, int(found[2]), shape_of(op.type), (1,))


def binary(rule: Callable[[Number, Number], Number]) -> Rule:
    """A rule for two integers whose lanes are equal."""
    return lambda op, context, x, y: v.on_bases(x, y, rule)


def both(op: Op, _: Context, x: Value, y: Value) -> Value:
    if isinstance(x, Affine) and isinstance(y, Affine) and x.is_scalar and y.is_scalar:
        return v.on_bases(x, y, lambda a, b: a & b)
    return v.conjunction(x, y)


def compare(op: Op, _: Context, x: Value, y: Value) -> Value:
    """A truth value a program where lanes are equal, else a mask whose one atom is a difference."""
    a, b = v.integer(x), v.integer(y)
    v.same_shape(a, b)
    predicate = op.text.split(",")[0].strip()
    if predicate.startswith("u"):
        if min(a.low, b.low) < 0:
            raise Unsupported("an unsigned comparison of a negative number")
        predicate = "s" + predicate[1:]
    if predicate in ("eq", "ne"):
        rule = np.equal if predicate == "eq" else np.not_equal
        return v.affine(1, _truth(rule(v.scalar(x).base, v.scalar(y).base)), a.shape)
    if predicate not in ("slt", "sle", "sgt", "sge"):
        raise Unsupported(f"comparison {predicate!r}")
    if predicate.startswith("sg"):
        a, b = b, a
    strides = [q - p for p, q in zip(a.strides, b.strides, strict=True)]
    atom = v.affine(64, b.base - a.base + (predicate[2] == "e"), a.shape, strides)
    return v.affine(1, _truth(np.greater(atom.base, 0)), a.shape) if atom.is_scalar else Mask(a.shape, (atom,))


def _truth(answer: object) -> Number:
    """0 and 1 for a comparison's answer."""
    return answer.astype(np.int64) if isinstance(answer, np.ndarray) else int(bool(answer))


def select(op: Op, _: Context, condition: Value, x: Value, y: Value) -> Value:
    return v.merge(v.scalar(condition).base, x, y)


def add_pointer(op: Op, _: Context, pointer: Value, offset: Value) -> Value:
    if not isinstance(pointer, Pointer):
        raise Unsupported("an offset added to what is no pointer")
    step = v.integer(offset)
    wide = v.affine(64, step.base, step.shape, step.strides)
    return Pointer(pointer.buffer, v.add(pointer.offset, wide))


def cast(op: Op, _: Context, x: Value) -> Value:
    """A change of width; what does not fit the new one raises."""
    number, width = v.integer(x), bits_of(op.type.rpartition(" to ")[2])
    if number.low < 0 and op.name.endswith("ui"):
        raise Unsupported("an unsigned cast of a negative number")
    if number.bits == 1 and op.name == "arith.extsi":
        raise Unsupported("a signed cast of a truth value")
    return v.affine(width, number.base, number.shape, number.strides)


def splat(op: Op, _: Context, x: Value) -> Value:
    shape = shape_of(op.type.rpartition(" -> ")[2])
    return v.rearranged(x, lambda a: v.reshaped(a, shape, (0,) * len(shape)))


def expand_dims(op: Op, _: Context, x: Value) -> Value:
    found = re.fullmatch(r"%\S+ \{axis = (\d+) : i32\}", op.text)
    if not found:
        raise Unsupported("an axis that cannot be read")
    at = int(found[1])

    def expanded(a: Affine) -> Affine:
        return v.reshaped(a, (*a.shape[:at], 1, *a.shape[at:]), (*a.strides[:at], 0, *a.strides[at:]))

    return v.rearranged(x, expanded)


def broadcast(op: Op, _: Context, x: Value) -> Value:
    shape = shape_of(op.type.rpartition(" -> ")[2])

    def widened(a: Affine) -> Affine:
        if len(a.shape) != len(shape) or any(n not in (1, m) for n, m in zip(a.shape, shape, strict=True)):
            raise Unsupported("a broadcast between shapes that do not fit")
        return v.reshaped(a, shape, a.strides)

    return v.rearranged(x, widened)


def transpose(op: Op, _: Context, x: Value) -> Value:
    found = re.fullmatch(r"%\S+ \{order = array<i32: ([\d, ]+)>\}", op.text)
    if not found:
        raise Unsupported("an order of axes that cannot be read")
    order = [int(n) for n in found[1].split(", ")]
    return v.rearranged(x, lambda a: v.reshaped(a, [a.shape[i] for i in order], [a.strides[i] for i in order]))


def reshape(op: Op, _: Context, x: Value) -> Value:
    """Axes of size 1 may come and go; anything else is resolved only where all lanes are equal."""
    shape = shape_of(op.type.rpartition(" -> ")[2])

    def squeezed(a: Affine) -> Affine:
        kept = [(n, s) for n, s in zip(a.shape, a.strides, strict=True) if n > 1]
        if a.is_scalar:
            return v.reshaped(a, shape, (0,) * len(shape))
        if [n for n, _ in kept] != [n for n in shape if n > 1]:
            raise Unsupported("a reshape that mixes axes")
        strides = iter(s for _, s in kept)
        return v.reshaped(a, shape, [next(strides) if n > 1 else 0 for n in shape])

    return v.rearranged(x, squeezed)


RULES: Mapping[str, Rule] = {
    "arith.constant": constant,
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "tt.make_range": make_range,
    "arith.addi": lambda op, context, x, y: v.add(v.integer(x), v.integer(y)),
    "arith.subi": lambda op, context, x, y: v.add(v.integer(x), v.integer(y), -1),
    "arith.muli": lambda op, context, x, y: v.multiply(v.integer(x), v.integer(y)),
    "arith.divsi": binary(v.quotient),
    "arith.remsi": binary(v.remainder),
    "arith.ceildivsi": binary(lambda a, b: -_floor_quotient(-a, b)),
    "arith.floordivsi": binary(lambda a, b: _floor_quotient(a, b)),
    "arith.minsi": binary(v.minimum),
    "arith.maxsi": binary(v.maximum),
    "arith.andi": both,
    "arith.ori": binary(lambda a, b: a | b),
    "arith.xori": binary(lambda a, b: a ^ b),
    "arith.cmpi": compare,
    "arith.select": select,
    "arith.extsi": cast,
    "arith.extui": cast,
    "arith.trunci": cast,
    "arith.index_cast": cast,
    "arith.index_castui": cast,
    "tt.addptr": add_pointer,
    "tt.splat": splat,
    "tt.expand_dims": expand_dims,
    "tt.broadcast": broadcast,
    "tt.trans": transpose,
    "tt.reshape": reshape,
}


def _floor_quotient(a: Number, b: Number) -> Number:
    if v.lowest(b) <= 0:
        raise Unsupported("a rounded division by a number below 1")
    return a // b
