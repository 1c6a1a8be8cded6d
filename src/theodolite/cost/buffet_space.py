"""What waits in each memory: AccelForge's reservations, one Einsum at a time and across a Sequential."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from theodolite.cost.buffet_path import Hold, Trip
from theodolite.cost.buffet_trips import Nest

Number = Any  # a float, or an array of float64


@dataclass(frozen=True, eq=False)
class Reservation:
    """`bits` of a tensor's tile in one unit of a memory.

    `backing` where the tensor comes from there, not from further out.  `loops_above` counts the loops outside of it.
    """

    memory: str
    tensor: str
    bits: Number
    backing: bool
    loops_above: Number


def reservations(nest: Nest, bits: Mapping[str, int]) -> tuple[Reservation, ...]:
    """The reservations of one Einsum, outermost first (AccelForge `_symbolic.py:346-480`).

    A backing storage reserves right below itself.  Any other is lowered through the loops that follow it directly
    while they are temporal and over a rank of the tensor, or spatial over its own fanout: what has been consumed makes
    room.
    """
    out: list[Reservation] = []
    for index, step in enumerate(nest.path.steps):
        if isinstance(step, Hold):
            backing = step is nest.path.holders(step.tensor)[0]
            passed = {} if backing else lowered(nest, index, step)
            out.append(_reservation(nest, index, step, backing, passed, bits))
    return tuple(out)


def peaks(
    nests: tuple[Nest, ...], reserved: tuple[tuple[Reservation, ...], ...], order: tuple[str, ...]
) -> tuple[dict[str, Number], ...]:
    """For each Einsum the bits in a unit of each memory while it runs; `order` is that of the workload.

    Its own reservations; tensors that wait for a later Einsum; and what other Einsums keep outside of a loop that they
    share with it.  A loop is shared where a tensor is handed over inside of it: that is how AccelForge joins Einsums,
    and a loop that merely stands above both is run by each alone (`pmapping_dataframe.py:377-735`).
    """
    by_name = {nest.path.einsum.name: (nest, found) for nest, found in zip(nests, reserved, strict=True)}
    row = [by_name[name] for name in order if name in by_name]
    spans = _spans(tuple(nest for nest, _ in row))
    shared = [_shared(spans, row, k) for k in range(len(row) - 1)]
    out: dict[str, dict[str, Number]] = {}
    for i, (nest, own) in enumerate(row):
        bits: dict[str, Number] = {}
        for one in own:
            bits[one.memory] = bits.get(one.memory, 0.0) + one.bits
        for memory, kept in _kept_by_others(i, tuple(found for _, found in row), spans, shared):
            bits[memory] = bits.get(memory, 0.0) + kept
        out[nest.path.einsum.name] = bits
    return tuple(out[nest.path.einsum.name] for nest in nests)


def crossings(nest: Nest) -> dict[str, Any]:
    """Loops of one rank that would change places around a reservation, with where; AccelForge refuses them.

    The reservation of a storage is lowered through temporal loops; a spatial one that stands above the storage in the
    path but belongs further in is then moved below all of them.
    """
    out: dict[str, Any] = {}
    for index, step in enumerate(nest.path.steps):
        if not isinstance(step, Hold) or step is nest.path.holders(step.tensor)[0]:
            continue
        order = nest.order(step.tensor)
        moved = [k for k in nest.loops(index) if k in order[order.index(index) :]]
        for j, where in lowered(nest, index, step).items():
            for k in moved:
                both = np.logical_and(np.logical_and(where, nest.is_loop(j)), nest.is_loop(k))
                if nest.rank(j) == nest.rank(k) and nest.rank(j) in nest.path.ranks[step.tensor] and np.any(both):
                    out[f"the spatial loop over {nest.rank(k)} would cross a temporal one at {step.tensor}"] = both
    return out


def _spans(nests: tuple[Nest, ...]) -> dict[str, tuple[int, int]]:
    """(first, last) Einsum that touches each tensor."""
    out: dict[str, tuple[int, int]] = {}
    for i, nest in enumerate(nests):
        for tensor in nest.path.ranks:
            out[tensor] = (out.get(tensor, (i, i))[0], i)
    return out


def _shared(
    spans: Mapping[str, tuple[int, int]], row: list[tuple[Nest, tuple[Reservation, ...]]], after: int
) -> Number:
    """How many loops Einsum `after` shares with the next: the most above a tensor that one hands to the other."""
    most: Number = 0
    for tensor, (first, last) in spans.items():
        if first <= after < last:
            nest = row[first][0]
            holder = nest.path.steps.index(nest.path.holders(tensor)[0])
            most = np.maximum(most, sum(nest.is_loop(k) * 1 for k in nest.loops(holder)))
    return most


def _kept_by_others(
    i: int,
    reserved: tuple[tuple[Reservation, ...], ...],
    spans: Mapping[str, tuple[int, int]],
    shared: list[Number],
) -> Iterator[tuple[str, Number]]:
    """(memory, bits) that wait for other Einsums while Einsum i runs.

    What is handed over is there once, copies of it further in are their Einsum's own.  Where one Einsum spreads a
    handed tensor over units and another does not, its tile has two sizes: AccelForge adds each, less the first's.
    """
    once: dict[tuple[str, str], dict[int, Reservation]] = {}
    for j, others in enumerate(reserved):
        for other in others:
            first, last = spans[other.tensor]
            if other.backing and first < last:
                once.setdefault((other.memory, other.tensor), {})[j] = other
            elif j != i:
                yield other.memory, np.where(_held(i, j, other, shared), other.bits, 0.0)[()]
    for (memory, tensor), users in once.items():
        first, last = spans[tensor]
        size = users[min(users)].bits
        there: Any = np.bool_(first < i < last)
        extra: Number = 0.0
        for j, user in users.items():
            held = _held(i, j, user, shared) if j != i else np.False_
            there = np.logical_or(there, held)
            extra = extra + np.where(held, user.bits - size, 0.0)[()]
        yield memory, extra + (np.where(there, size, 0.0)[()] if i not in users else 0.0)


def _held(i: int, j: int, reservation: Reservation, shared: list[Number]) -> Any:
    """Whether a reservation of Einsum j stands outside of a loop that j shares with Einsum i."""
    held: Any = np.True_
    for loops in shared[min(i, j) : max(i, j)]:
        held = np.logical_and(held, reservation.loops_above < loops)
    return held


def lowered(nest: Nest, index: int, hold: Hold) -> dict[int, Any]:
    """Which of the loops right below a storage its reservation is lowered through, by index, with where."""
    out: dict[int, Any] = {}
    going: Any = True
    for k, step in enumerate(nest.path.steps[index + 1 :], index + 1):
        if isinstance(step, Hold):
            break
        if step.rank in nest.path.ranks[hold.tensor] if step.owner is None else step.owner == hold.memory:
            out[k] = going
        else:
            going = np.logical_and(going, np.logical_not(nest.is_loop(k)))
    return out


def _reservation(
    nest: Nest, index: int, hold: Hold, backing: bool, passed: Mapping[int, Any], bits: Mapping[str, int]
) -> Reservation:
    """The tile after every loop above the storage in the tensor's own order, and those passed.

    A spatial loop that stands above the storage in the path, over a fanout further in, is below it in that order.
    """
    order = nest.order(hold.tensor)
    above = set(order[: order.index(index)])
    tile: Number = float(nest.volume(hold.tensor))
    loops: Number = 0
    for k, step in enumerate(nest.path.steps):
        if not isinstance(step, Trip):
            continue
        inside = True if k in above else passed.get(k, False)
        if step.rank in nest.path.ranks[hold.tensor]:
            tile = tile / np.where(inside, nest.trips[k], 1.0)[()]
        loops = loops + np.logical_and(inside, nest.is_loop(k)) * 1
    width = nest.path.machine.memory(hold.memory).bits(hold.tensor, bits[hold.tensor])
    return Reservation(hold.memory, hold.tensor, tile * width, backing, loops)
