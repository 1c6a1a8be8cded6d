"""What waits in each memory for one Einsum: AccelForge's reservations."""

from __future__ import annotations

from collections.abc import Mapping
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
