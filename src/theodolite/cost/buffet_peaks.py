"""What each memory holds at most while each Einsum runs, and which Einsums AccelForge cannot join.

Where trips are arrays, a loop may be one at some points and none at others.  Points at which the same loops count are
joined together, each such set once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from theodolite.cost.buffet_join import handed, joins, outside, sides
from theodolite.cost.buffet_space import Reservation
from theodolite.cost.buffet_table import Table
from theodolite.cost.buffet_trips import Nest

Number = Any  # a float, or an array of float64
Row = tuple[tuple[Nest, tuple[Reservation, ...]], ...]


@dataclass(frozen=True)
class Peaks:
    """Bits in a unit of each memory while an Einsum runs.

    `bits` is what AccelForge reports in the end, `worst_bits` the most that it counts on the way, which must fit as
    well.  `why_not` has what stops it, with where.
    """

    bits: dict[str, Number] = field(default_factory=dict)
    worst_bits: dict[str, Number] = field(default_factory=dict)
    why_not: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Points:
    """Points of the grid at which the same loops count: where they are, and one of them."""

    where: Any
    shape: tuple[int, ...] = ()
    at: tuple[Any, ...] = ()

    def one(self, value: Number) -> Any:
        """What a value is at all of them."""
        array = np.asarray(value)
        if array.min() == array.max():
            return array.flat[0]
        return np.broadcast_to(array, self.shape)[self.at]


def peaks(
    nests: tuple[Nest, ...], reserved: tuple[tuple[Reservation, ...], ...], order: tuple[str, ...]
) -> tuple[Peaks, ...]:
    """One for each nest; `order` is that of the workload's Einsums, in which AccelForge joins them."""
    by_name = {nest.path.einsum.name: (nest, mine) for nest, mine in zip(nests, reserved, strict=True)}
    row = _clipped(tuple(by_name[name] for name in order if name in by_name))
    found = {nest.path.einsum.name: Peaks() for nest, _ in row}
    for points in _alike(row):
        _join(row, points, tuple(found.values()))
    return tuple(found[nest.path.einsum.name] for nest in nests)


def _clipped(row: Row) -> Row:
    """All that lies below the loops that an Einsum can share counts as one."""
    nests = tuple(nest for nest, _ in row)
    out: list[tuple[Nest, tuple[Reservation, ...]]] = []
    for nest, mine in row:
        deep: Number = 0
        for tensor in handed(nest, nests):
            deep = np.maximum(deep, sum(nest.is_loop(k) * 1 for k in outside(nest, tensor)))
        out.append((nest, tuple(replace(one, loops_above=np.minimum(one.loops_above, deep)) for one in mine)))
    return tuple(out)


def _alike(row: Row) -> Iterator[Points]:
    """The points in sets that have the same loops above what is handed on, and the same levels of reservations."""
    nests = tuple(nest for nest, _ in row)
    kinds: list[Number] = [one.loops_above for _, mine in row for one in mine]
    kinds += [nest.is_loop(k) * 1 for nest in nests for t in handed(nest, nests) for k in outside(nest, t)]
    varying = [np.asarray(kind) for kind in kinds if np.min(kind) != np.max(kind)]
    shape = np.broadcast_shapes(*(kind.shape for kind in varying))
    code = np.zeros(shape, dtype=np.int64)
    for kind in varying:
        _, code = np.unique(code * (int(kind.max()) + 1) + kind, return_inverse=True)
        code = code.reshape(shape)
    for value in range(int(code.max()) + 1):
        where = code == value
        yield Points(
            where if varying else np.True_, shape, tuple(int(x[0]) for x in np.nonzero(where)) if shape else ()
        )


def _join(row: Row, points: Points, found: tuple[Peaks, ...]) -> None:
    """Join the Einsums at some points and note what came of it there."""
    shared = sides(tuple(nest for nest, _ in row), lambda nest, k: bool(points.one(nest.is_loop(k))))
    deep = tuple(side.deepest for side in shared)
    joined = joins(shared)
    for k, join in enumerate(joined, 1):
        if join.why_not:
            _note(found[k], f"{row[k][0].path.einsum.name}: {join.why_not}", points.where)
    for memory in dict.fromkeys(one.memory for _, mine in row for one in mine):
        scales = _scales(row, memory)
        own, sizes = _own(row, points, memory, scales)
        table = Table(own)
        peak = table.run(deep, tuple(join.within(memory) for join in joined), sizes)
        for k in peak.keys() & scales.keys():
            _put(found[k].bits, memory, peak[k] / scales[k], points)
            _put(found[k].worst_bits, memory, table.worst[k] / scales[k], points)
        for k, negative in table.negative.items():
            reason = f"{row[k][0].path.einsum.name}: AccelForge stops, as it would hold less than nothing in {memory}"
            _note(found[k], reason, np.logical_and(points.where, negative))
        for k in table.stuck:
            reason = f"{row[k][0].path.einsum.name}: AccelForge stops, as its table lacks a column of {memory}"
            _note(found[k], reason, points.where)


def _own(
    row: Row, points: Points, memory: str, scales: dict[int, float]
) -> tuple[tuple[dict[int, Number], ...], dict[str, Number]]:
    """What each Einsum reserves of a memory under each number of loops; and each tensor, for its first Einsum."""
    own: list[dict[int, Number]] = []
    sizes: dict[str, Number] = {}
    for k, (_, mine) in enumerate(row):
        own.append({})
        for one in (one for one in mine if one.memory == memory):
            level, bits = int(points.one(one.loops_above)), one.bits * scales[k]
            own[-1][level] = own[-1].get(level, 0.0) + bits
            if one.backing:
                sizes.setdefault(one.tensor, bits)
    return tuple(own), sizes


def _scales(row: Row, memory: str) -> dict[int, float]:
    """What a bit counts in each Einsum that has the memory.

    AccelForge adds shares of a size that may depend on the Einsum; here a share is one of the smallest.
    """
    sizes = {k: m.size_bits for k, (nest, _) in enumerate(row) for m in nest.path.machine.memories if m.name == memory}
    least = min(sizes.values())
    return {k: 1.0 if size == least else least / size for k, size in sizes.items()}


def _put(found: dict[str, Number], memory: str, value: Number, points: Points) -> None:
    found[memory] = np.where(points.where, value, found.get(memory, 0.0))[()] if points.shape else value


def _note(found: Peaks, reason: str, where: Any) -> None:
    if np.any(where):
        found.why_not[reason] = np.logical_or(found.why_not.get(reason, False), where)
