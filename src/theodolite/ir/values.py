"""The arithmetic of a kernel's steps on NumPy arrays, all programs at once: the interpreter's `values` mode.

A value in registers is an array [P, *tile] with one axis for each of its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.ir.events import Bools
from theodolite.ir.scope import Scope
from theodolite.ir.steps import (
    AddPartial,
    Clear,
    Contract,
    Divide,
    Exp,
    Finish,
    Home,
    Load,
    Max,
    MergeState,
    Step,
    Store,
    Sum,
)

Floats = npt.NDArray[np.float64]
LOG2E = 1.4426950408889634
ROUND = {"fp16": np.float16, "fp32": np.float32}


class Registers:
    """Global memory by buffer (flat, float64) and the values that every program holds."""

    def __init__(self, programs: int, memory: dict[str, Floats], rounding: bool) -> None:
        self.programs, self.memory, self.rounding = programs, memory, rounding
        self.values: dict[str, Floats] = {}
        self.rescale: Floats = np.ones(programs)

    def step(self, step: Step, scope: Scope, active: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        """Run one step for the active programs; the others keep what they hold."""
        old = dict(self.values)
        getattr(self, f"_{type(step).__name__.lower()}")(step, scope, active, ranks)
        for name, value in self.values.items():
            before = old.get(name)
            if before is not None and before is not value and before.shape == value.shape:
                self.values[name] = np.where(_column(active, value.ndim), value, before)

    # ---- memory ----
    def _offsets(self, home: Home, scope: Scope) -> tuple[npt.NDArray[np.int64], Bools]:
        base, axes = scope.footprint(home)
        at, there = base, np.ones(len(base), bool)
        for axis in axes:
            lane = np.arange(axis.size)
            at = at[..., None] + axis.stride * lane
            valid = axis.valid.reshape(-1, *(1,) * (there.ndim - 1), 1)
            there = there[..., None] & (lane < valid)
        return at, there

    def _tile(self, home: Home, scope: Scope) -> tuple[int, ...]:
        flat = scope.flat(home.ranks)
        return tuple(scope.span(r).size for r in ((flat,) if flat else home.ranks))

    def _read(self, home: Home, scope: Scope, fill: float, active: Bools) -> Floats:
        at, there = self._offsets(home, scope)
        there = there & _column(active, there.ndim)
        got = np.where(there, self.memory[home.buffer][np.where(there, at, 0)], fill)
        return got.reshape(self.programs, *self._tile(home, scope))

    def _load(self, step: Load, scope: Scope, active: Bools, _: object) -> None:
        self.values[step.value] = self._read(step.home, scope, step.fill, active)

    def _addpartial(self, step: AddPartial, scope: Scope, active: Bools, _: object) -> None:
        self.values[step.value] = self.values[step.value] + self._read(step.home, scope, 0.0, active)

    def _store(self, step: Store, scope: Scope, active: Bools, _: object) -> None:
        at, there = self._offsets(step.home, scope)
        there = there & _column(active, there.ndim)
        value = self.values[step.value]
        if self.rounding:
            with np.errstate(over="ignore"):
                value = value.astype(ROUND[step.home.dtype]).astype(np.float64)
        self.memory[step.home.buffer][at[there]] = value.reshape(at.shape)[there]

    # ---- arithmetic ----
    def _clear(self, step: Clear, scope: Scope, _: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        shape = tuple(scope.span(r).size for r in ranks[step.value])
        self.values[step.value] = np.full((self.programs, *shape), step.fill)

    def _contract(self, step: Contract, _: Scope, __: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        p = "@"
        subscripts = f"{_letters(p, ranks[step.a])},{_letters(p, ranks[step.b])}->{_letters(p, ranks[step.out])}"
        product = np.einsum(subscripts.replace(p, "Z"), self.values[step.a], self.values[step.b], optimize=True)
        if step.accumulate:
            old = self.values[step.out]
            product = product + (old * _trail(self.rescale, old.ndim) if step.rescale else old)
        self.values[step.out] = product

    def _finish(self, step: Finish, scope: Scope, _: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        value = self.values[step.value] * step.scale * (LOG2E if step.exp2 else 1.0)
        if value.ndim == 2:  # flattened: undo the row-major index
            index = self._unflatten(step.ranks, scope)
        else:
            index = {r: self._index(r, i, value.ndim, scope) for i, r in enumerate(step.ranks)}
        if step.mask:
            rank, row, offset = step.mask
            value = np.where(index[rank] <= index[row] + offset, value, -np.inf)
        if step.limit:
            limit = _column(scope.span(step.limit).limit, value.ndim)
            value = np.where(index[step.limit] < limit, value, -np.inf)
        self.values[step.value] = value

    def _index(self, rank: str, axis: int, ndim: int, scope: Scope) -> npt.NDArray[np.int64]:
        span = scope.span(rank)
        shape = [1] * ndim
        shape[0], shape[axis + 1] = len(span.start), span.size
        return (span.start[:, None] + np.arange(span.size)).reshape(shape)

    def _unflatten(self, ranks: tuple[str, ...], scope: Scope) -> dict[str, npt.NDArray[np.int64]]:
        span = scope.span("".join(ranks))
        rest, out = span.start[:, None] + np.arange(span.size), {}
        for rank in reversed(ranks):
            rest, out[rank] = np.divmod(rest, scope.workload.ranks[rank])
        return out

    def _max(self, step: Max, _: Scope, __: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        found = self.values[step.source].max(_axis(ranks[step.source], step.rank))
        if step.carried:
            old = self.values[step.out]
            found = np.maximum(old, found)
            self.rescale = np.exp2(old - _finite(found))
        self.values[step.out] = found

    def _exp(self, step: Exp, _: Scope, __: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        reference = self.values[step.reference]
        for axis, rank in enumerate(ranks[step.source]):
            if rank not in ranks[step.reference]:
                reference = np.expand_dims(reference, axis + 1)
        difference = self.values[step.source] - _finite(reference)
        self.values[step.out] = np.exp2(difference * (LOG2E if step.log2e else 1.0))

    def _sum(self, step: Sum, _: Scope, __: Bools, ranks: Mapping[str, tuple[str, ...]]) -> None:
        found = self.values[step.source].sum(_axis(ranks[step.source], step.rank))
        self.values[step.out] = found + (self.values[step.out] * self.rescale if step.carried else 0.0)

    def _divide(self, step: Divide, _: Scope, __: Bools, ___: object) -> None:
        a = self.values[step.a]
        self.values[step.out] = a / _trail(self.values[step.d], a.ndim)

    def _mergestate(self, step: MergeState, _: Scope, __: Bools, ___: object) -> None:
        old, new = self.values[step.maximum], self.values[f"{step.maximum}_p"]
        top = np.maximum(old, new)
        keep, add = np.exp2(old - _finite(top)), np.exp2(new - _finite(top))
        for name in (*step.sums, *step.products):
            value, other = self.values[name], self.values[f"{name}_p"]
            self.values[name] = value * _trail(keep, value.ndim) + other * _trail(add, value.ndim)
        self.values[step.maximum] = top


def _finite(maximum: Floats) -> Floats:
    """A maximum over masked lanes alone is -inf; anything finite in its place gives exp2(-inf - 0) = 0."""
    return np.where(np.isneginf(maximum), 0.0, maximum)


def _axis(ranks: tuple[str, ...], rank: str) -> int:
    return ranks.index(rank) + 1


def _column(row: npt.NDArray[Any], ndim: int) -> npt.NDArray[Any]:
    return row.reshape(-1, *(1,) * (ndim - 1))


def _trail(value: Floats, ndim: int) -> Floats:
    return value.reshape(*value.shape, *(1,) * (ndim - value.ndim))


def _letters(program: str, ranks: tuple[str, ...]) -> str:
    return program + "".join(ranks)
