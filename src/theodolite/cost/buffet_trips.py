"""The loops of a path with their trips: sizes filled in, what does not divide noted, the order that a tensor sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from theodolite.cost.buffet_path import Hold, Path, Trip
from theodolite.errors import TheodoliteError, UnknownName
from theodolite.ir.tree import Key, Part, Size, evaluate_size
from theodolite.ir.workload import Workload

Number = Any  # a float, or an array of float64


@dataclass(frozen=True, eq=False)
class Nest:
    """A path with `trips` beside its steps (1 beside a Hold), and each reason against it with where it holds."""

    path: Path
    extents: Mapping[str, int]
    trips: tuple[Number, ...]
    why_not: Mapping[str, Any]

    def step(self, index: int) -> Hold | Trip | None:
        """The step at an index of `order`; None for the leaf."""
        return self.path.steps[index] if index < len(self.path.steps) else None

    def volume(self, tensor: str) -> int:
        """How many values a tensor has."""
        out = 1
        for rank in self.path.ranks[tensor]:
            out *= self.extents[rank]
        return out

    def temporal(self) -> Number:
        """The product of the temporal trips."""
        return self._product(None)

    def spatial(self, dim: str | None = None) -> Number:
        """The product of the spatial trips, over one dimension or all."""
        dims = {s.dim for s in self.path.steps if isinstance(s, Trip) and s.dim is not None}
        out: Number = 1.0
        for one in sorted(dims if dim is None else dims & {dim}):
            out = out * self._product(one)
        return out

    def order(self, tensor: str) -> tuple[int, ...]:
        """Indices of the tensor's own mapping: all loops, its holders, and the leaf (one past the last step).

        A spatial loop stands just above the tensor's first holder at or below the node that owns the fanout, since
        that is where the copies begin; loops between two holders keep their order.
        """
        hierarchy = self.path.machine
        loops = [i for i, s in enumerate(self.path.steps) if isinstance(s, Trip)]
        waiting = [i for i in loops if self._owner(i) is not None]
        out: list[int] = []
        run: list[int] = []
        for i, step in enumerate((*self.path.steps, None)):
            if isinstance(step, Trip):
                run += [i] if step.owner is None else []
            elif step is None or step.tensor == tensor:
                here = hierarchy.depth(self.path.unit.name if step is None else step.memory)
                placed = [j for j in waiting if hierarchy.depth(self._owner(j) or "") <= here]
                waiting = [j for j in waiting if j not in placed]
                out += [*sorted(run + placed), i]
                run = []
        return tuple(out)

    def _owner(self, index: int) -> str | None:
        step = self.path.steps[index]
        return step.owner if isinstance(step, Trip) else None

    def is_loop(self, index: int) -> Any:
        """Where a step is a loop: one of a single trip is none, unless the tree is read literally."""
        return True if self.path.literal else self.trips[index] != 1

    def rank(self, index: int) -> str:
        """The rank of a loop; none of a Hold."""
        step = self.path.steps[index]
        return step.rank if isinstance(step, Trip) else ""

    def dim(self, index: int) -> str | None:
        """The dimension of a spatial loop."""
        step = self.path.steps[index]
        return step.dim if isinstance(step, Trip) else None

    def tile(self, index: int) -> Number:
        """How much of its rank is left after a loop."""
        out: Number = float(self.extents[self.rank(index)])
        for k in self.loops(index + 1):
            out = out / self.trips[k] if self.rank(k) == self.rank(index) else out
        return out

    def loops(self, below: int) -> list[int]:
        """Indices of the loops above a step of the path."""
        return [k for k, step in enumerate(self.path.steps[:below]) if isinstance(step, Trip)]

    def _product(self, dim: str | None) -> Number:
        out: Number = 1.0
        for step, n in zip(self.path.steps, self.trips, strict=True):
            if isinstance(step, Trip) and step.dim == dim:
                out = out * n
        return out


def unroll(path: Path, workload: Workload, decisions: Mapping[str, Any]) -> Nest:
    """Fill the sizes of a path: trips are the tile above a loop over the tile after it.

    Raises UnknownName for a hole that no decision fills and TheodoliteError for a size below 1 or not whole.
    """
    left: dict[str, Number] = {r: float(n) for r, n in workload.ranks.items()}
    reasons: dict[str, Any] = {}
    trips: list[Number] = []
    for step in path.steps:
        if isinstance(step, Hold):
            trips.append(1.0)
            continue
        tile = _filled(step.tile, step.rank, workload, decisions)
        over, said = left[step.rank], _said(step.tile, tile)
        _note(
            reasons, f"tile {said} of {step.rank} does not divide {_said('the tile above it', over)}", over % tile != 0
        )
        if isinstance(step.tile, Part):
            parts, extent = _whole(decisions[step.tile.key], step.tile.key), workload.extent(step.tile.rank)
            given = _said(step.tile.key, parts)
            _note(reasons, f"split {given} of {step.tile.rank} does not divide {extent}", extent % parts != 0)
        if step.rank not in path.looped:
            _note(reasons, f"a loop over {step.rank}: {path.einsum.name} has no such rank", over != tile)
        trips.append(over / tile)
        left[step.rank] = tile
    for rank in path.looped:
        end = _said("a tile", left[rank])
        _note(reasons, f"{path.einsum.name}: {rank} ends at {end}; AccelForge wants loops down to 1", left[rank] != 1)
    nest = Nest(path, workload.ranks, tuple(trips), reasons)
    for tensor in path.ranks:
        _note_crossings(reasons, nest, tensor)
    return nest


def _note_crossings(reasons: dict[str, Any], nest: Nest, tensor: str) -> None:
    """AccelForge refuses to move one loop of a rank past another where the tensor has that rank, and fails where two
    spatial loops would change places."""
    order = [i for i in nest.order(tensor) if isinstance(nest.step(i), Trip)]
    for place, i in enumerate(order):
        for j in order[:place]:
            if i > j:
                continue
            both = np.logical_and(nest.is_loop(i), nest.is_loop(j))
            if nest.dim(i) is not None and nest.dim(j) is not None:
                _note(reasons, f"the spatial loops on {nest.dim(i)} and {nest.dim(j)} would cross at {tensor}", both)
            elif nest.rank(i) == nest.rank(j) and nest.rank(i) in nest.path.ranks[tensor]:
                _note(reasons, f"the spatial loop over {nest.rank(i)} would cross a temporal one at {tensor}", both)


def _filled(size: Size, rank: str, workload: Workload, decisions: Mapping[str, Any]) -> Number:
    key = size.name if isinstance(size, Key) else size.key if isinstance(size, Part) else None
    if key is not None and key not in decisions:
        raise UnknownName(f"no decision fills {key!r} in a loop over {rank}: add {key}=...")
    extent = workload.extent(size.rank if isinstance(size, Part) else rank)
    named = {} if key is None else {key: _whole(decisions[key], key)}
    return _whole(evaluate_size(size, named, extent), key or f"the tile of {rank}")


def _whole(value: Any, what: str) -> Number:
    """A size as float64 (exact up to 2^53); what is not a whole number from 1 on raises."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or np.any(array < 1) or np.any(array != np.floor(array)):
        raise TheodoliteError(f"{what} is {value!r}: sizes are whole numbers from 1 on")
    return array.astype(np.float64)[()]


def _said(name: Size | str, value: Number) -> str:
    """The number in a message; for an array, the name of what varies."""
    if np.ndim(value) == 0:
        return f"{value:g}"
    return name.name if isinstance(name, Key) else f"({name.rank}/{name.key})" if isinstance(name, Part) else str(name)


def _note(reasons: dict[str, Any], reason: str, where: Any) -> None:
    if np.any(where):
        reasons[reason] = np.logical_or(reasons.get(reason, False), where)
