"""What waits in each memory: AccelForge's reservations, one Einsum at a time and across a Sequential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from theodolite.cost.buffet_path import Address, Hold, Trip
from theodolite.cost.buffet_trips import Nest
from theodolite.gpus.hierarchy import Hierarchy

Number = Any  # a float, or an array of float64


@dataclass(frozen=True, eq=False)
class Reservation:
    """`bits` of a tensor's tile in one unit of a memory.

    `backing` where the tensor comes from there, not from further out.  `above` has the later loops of the path by
    address, with whether the reservation stands outside of them (and so outlives the Einsum in a shared one).
    """

    memory: str
    tensor: str
    bits: Number
    backing: bool
    above: Mapping[Address, Any]


def reservations(nest: Nest, hierarchy: Hierarchy, bits: int) -> tuple[Reservation, ...]:
    """The reservations of one Einsum, outermost first (AccelForge `_symbolic.py:346-480`).

    A backing storage reserves right below itself.  Any other is lowered through the loops that follow it directly
    while they are temporal and over a rank of the tensor, or spatial over its own fanout: what has been consumed makes
    room.  A loop of one trip is no loop and blocks nothing.
    """
    out: list[Reservation] = []
    for index, step in enumerate(nest.path.steps):
        if isinstance(step, Hold):
            backing = step is nest.path.holders(step.tensor)[0]
            passed = {} if backing else _lowered(nest, index, step)
            out.append(_reservation(nest, index, step, backing, passed, hierarchy, bits))
    return tuple(out)


def peaks(nests: tuple[Nest, ...], reserved: tuple[tuple[Reservation, ...], ...]) -> tuple[dict[str, Number], ...]:
    """For each Einsum the bits in a unit of each memory while it runs.

    Its own reservations; handoffs that it does not touch and that pass over it; and what other Einsums keep outside of
    a loop that they share with it.
    """
    out = []
    for i in range(len(nests)):
        bits: dict[str, Number] = {}
        for own in reserved[i]:
            bits[own.memory] = bits.get(own.memory, 0.0) + own.bits
        for (memory, _), kept in _kept_by_others(i, nests, reserved).items():
            bits[memory] = bits.get(memory, 0.0) + kept
        out.append(bits)
    return tuple(out)


def _kept_by_others(
    i: int, nests: tuple[Nest, ...], reserved: tuple[tuple[Reservation, ...], ...]
) -> dict[tuple[str, str], Number]:
    """Bits by memory and tensor that wait for other Einsums while Einsum i runs; each tensor once, at its largest."""
    mine = {(r.memory, r.tensor) for r in reserved[i]}
    loops = {s.at: n for s, n in zip(nests[i].path.steps, nests[i].trips, strict=True) if isinstance(s, Trip)}
    kept: dict[tuple[str, str], Number] = {}
    for j, others in enumerate(reserved):
        for other in others if j != i else ():
            key = (other.memory, other.tensor)
            if key in mine:
                continue
            held: Any = other.backing and _passes_over(i, other.tensor, nests)
            for at, above in other.above.items():
                if at in loops:
                    held = np.logical_or(held, np.logical_and(above, loops[at] != 1))
            kept[key] = np.maximum(kept.get(key, 0.0), np.where(held, other.bits, 0.0)[()])
    return kept


def _passes_over(i: int, tensor: str, nests: tuple[Nest, ...]) -> bool:
    """Whether a tensor is made before Einsum i and read after it."""
    made = [k for k, n in enumerate(nests) if n.path.einsum.output == tensor]
    read = [k for k, n in enumerate(nests) if tensor in n.path.einsum.inputs]
    return bool(made and read) and min(made) < i < max(read)


def _lowered(nest: Nest, index: int, hold: Hold) -> dict[int, Any]:
    """Which of the loops right below a storage its reservation is lowered through, by index, with where."""
    out: dict[int, Any] = {}
    going: Any = True
    for k, step in enumerate(nest.path.steps[index + 1 :], index + 1):
        if isinstance(step, Hold):
            break
        if step.rank in nest.path.ranks[hold.tensor] if step.owner is None else step.owner == hold.memory:
            out[k] = going
        else:
            going = np.logical_and(going, nest.trips[k] == 1)
    return out


def _reservation(
    nest: Nest, index: int, hold: Hold, backing: bool, passed: Mapping[int, Any], hierarchy: Hierarchy, bits: int
) -> Reservation:
    """The tile after every loop above the storage, in the path or in the tensor's own order, and those passed."""
    order = nest.order(hold.tensor, hierarchy)
    hoisted = set(order[: order.index(index)])
    tile: Number = float(nest.volume(hold.tensor))
    above: dict[Address, Any] = {}
    for k, step in enumerate(nest.path.steps):
        if not isinstance(step, Trip):
            continue
        inside = True if k < index or k in hoisted else passed.get(k, False)
        if step.rank in nest.path.ranks[hold.tensor]:
            tile = tile / np.where(inside, nest.trips[k], 1.0)[()]
        if k > index:
            above[step.at] = np.logical_not(inside)
    return Reservation(hold.memory, hold.tensor, tile * bits, backing, above)
