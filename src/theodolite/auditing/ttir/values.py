"""What the integer slice of a kernel computes with: affine tensors, masks and pointers, for all programs at once.

    Affine    value[p, i_0, i_1, ...] = base[p] + stride_0 * i_0 + stride_1 * i_1 + ...
    Mask      a conjunction: lane (p, i_0, ...) is on where every atom, an Affine, is > 0 there
    Pointer   an element of a buffer: buffer + Affine

A base that no program changes is a plain int; any other is int64[P].  Nothing of size P x rows x columns is ever made.
What is not affine raises Unsupported, and so does a value that does not fit its width: compiled code would wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from theodolite.errors import Unsupported
from theodolite.ir.events import Bools, Ints

Number = int | Ints


def lowest(x: Number) -> int:
    return x if isinstance(x, int) else int(x.min())


def highest(x: Number) -> int:
    return x if isinstance(x, int) else int(x.max())


@dataclass(frozen=True, eq=False)
class Affine:
    """An integer tensor; `low` and `high` are its exact extremes over programs and lanes.  Strides of size 1 are 0."""

    bits: int
    base: Number
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    low: int
    high: int

    @property
    def is_scalar(self) -> bool:
        """Whether all lanes of a program are equal."""
        return not any(self.strides)


@dataclass(frozen=True, eq=False)
class Mask:
    shape: tuple[int, ...]
    atoms: tuple[Affine, ...]


@dataclass(frozen=True, eq=False)
class Pointer:
    buffer: str
    offset: Affine


Value = Affine | Mask | Pointer


def affine(bits: int, base: Number, shape: Sequence[int] = (), strides: Sequence[int] = ()) -> Affine:
    """An Affine of that width.  Raises Unsupported where a lane of a program does not fit it."""
    given = tuple(strides) or (0,) * len(shape)
    strides = tuple(s if n > 1 else 0 for s, n in zip(given, shape, strict=True))
    spans = [s * (n - 1) for s, n in zip(strides, shape, strict=True)]
    low = lowest(base) + sum(s for s in spans if s < 0)
    high = highest(base) + sum(s for s in spans if s > 0)
    floor, ceiling = (0, 1) if bits == 1 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if low < floor or high > ceiling:
        raise Unsupported(f"an i{bits} value overflows ({low} to {high}): cast to int64 before multiplying sizes")
    return Affine(bits, base, tuple(shape), strides, low, high)


def same_shape(x: Affine, y: Affine) -> None:
    if x.shape != y.shape or x.bits != y.bits:
        raise Unsupported(f"operands differ in type: {x.shape} i{x.bits} and {y.shape} i{y.bits}")


def scalar(x: Value) -> Affine:
    """A value whose lanes are equal, whatever its shape; Unsupported for any other."""
    if not isinstance(x, Affine) or not x.is_scalar:
        raise Unsupported("the result is not affine in the lane's index")
    return x


def integer(x: Value) -> Affine:
    if not isinstance(x, Affine):
        raise Unsupported("expected an integer, got a mask or a pointer")
    return x


def add(x: Affine, y: Affine, sign: int = 1) -> Affine:
    same_shape(x, y)
    _fits_in_64_bits(max(-x.low, x.high) + max(-y.low, y.high))
    strides = [a + sign * b for a, b in zip(x.strides, y.strides, strict=True)]
    return affine(x.bits, x.base + sign * y.base, x.shape, strides)


def multiply(x: Affine, y: Affine) -> Affine:
    """One factor must be equal over lanes; where the other is not, it must be equal over programs too."""
    same_shape(x, y)
    _fits_in_64_bits(max(-x.low, x.high) * max(-y.low, y.high))
    if x.is_scalar:
        x, y = y, x
    scalar(y)
    if x.is_scalar:
        return affine(x.bits, x.base * y.base, x.shape)
    if y.low != y.high:
        raise Unsupported("a stride differs from program to program")
    return affine(x.bits, x.base * y.low, x.shape, [s * y.low for s in x.strides])


def _fits_in_64_bits(magnitude: int) -> None:
    if magnitude >= 1 << 63:
        raise Unsupported("an integer passes 64 bits")


def on_bases(x: Value, y: Value, rule: Callable[[Number, Number], Number]) -> Affine:
    """`rule` on the bases of two values whose lanes are equal."""
    a, b = scalar(x), scalar(y)
    same_shape(a, b)
    return affine(a.bits, rule(a.base, b.base), a.shape)


def quotient(a: Number, b: Number) -> Number:
    """Division that rounds towards zero, as the hardware's does."""
    if lowest(b) <= 0 <= highest(b) and np.any(np.asarray(b) == 0):
        raise Unsupported("a division by zero")
    if lowest(a) >= 0 and lowest(b) > 0:
        return a // b
    if isinstance(a, int) and isinstance(b, int):
        size = abs(a) // abs(b)
        return size if (a < 0) == (b < 0) else -size
    sizes: Ints = np.abs(np.asarray(a)) // np.abs(np.asarray(b))
    return np.where((np.asarray(a) < 0) == (np.asarray(b) < 0), sizes, -sizes)


def remainder(a: Number, b: Number) -> Number:
    return a - b * quotient(a, b)


def minimum(a: Number, b: Number) -> Number:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def maximum(a: Number, b: Number) -> Number:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


def choose(condition: Number | Bools, a: Number, b: Number) -> Number:
    """`a` where the condition holds, `b` elsewhere; the same object where nothing has to be chosen."""
    if isinstance(condition, int):
        return a if condition else b
    if a is b or (isinstance(a, int) and isinstance(b, int) and a == b):
        return a
    chosen: Ints = np.where(condition.astype(bool), a, b).astype(np.int64)
    return chosen


def merge(condition: Number | Bools, x: Value, y: Value) -> Value:
    """Program by program, `x` where the condition holds and `y` elsewhere.

    Raises Unsupported where the two do not have the same form.
    """
    if x is y:
        return x
    if isinstance(x, Affine) and isinstance(y, Affine) and x.strides == y.strides:
        same_shape(x, y)
        return affine(x.bits, choose(condition, x.base, y.base), x.shape, x.strides)
    if isinstance(x, Pointer) and isinstance(y, Pointer) and x.buffer == y.buffer:
        return Pointer(x.buffer, integer(merge(condition, x.offset, y.offset)))
    raise Unsupported("two values of different form meet after a branch or a loop")


def conjunction(x: Value, y: Value) -> Mask:
    """Both masks at once.  A truth value whose lanes are equal is an atom itself."""
    a, b = _as_mask(x), _as_mask(y)
    if a.shape != b.shape:
        raise Unsupported("masks of different shapes meet")
    return Mask(a.shape, a.atoms + b.atoms)


def _as_mask(x: Value) -> Mask:
    if isinstance(x, Mask):
        return x
    if isinstance(x, Pointer) or x.bits != 1:
        raise Unsupported("a conjunction of something that is no mask")
    return Mask(x.shape, (x,))


def rearranged(x: Value, how: Callable[[Affine], Affine]) -> Value:
    """`how`, which changes shape and strides alone, applied to every affine part of a value."""
    if isinstance(x, Pointer):
        return Pointer(x.buffer, how(x.offset))
    if isinstance(x, Mask):
        atoms = tuple(how(a) for a in x.atoms)
        return Mask(atoms[0].shape, atoms)
    return how(x)


def reshaped(x: Affine, shape: Sequence[int], strides: Sequence[int]) -> Affine:
    """The same numbers under another shape: extremes do not change."""
    return replace(x, shape=tuple(shape), strides=tuple(strides))
