"""The mapspace of the shorthand families, scored whole.

A skeleton's grid of decisions is one vectorised evaluation on an open mesh: each decision has an axis of its own, and
a step's seconds have just the axes that the step depends on.  The structure of a realised tree changes where a split
is 1, so that each family has one *variant* for every choice of which splits are above 1.

Steps that share no decision but the free ones (warps, stages: decisions that no abstract tree shows) are independent:
the best sums are made of the best of each group, so that nothing larger than one group's grid is ever held.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from theodolite.cost.model import Model, Score, score
from theodolite.cost.profiles import profile_of
from theodolite.gpus.gpu import Gpu
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, schedule
from theodolite.mapper.skeletons import skeleton

FREE = ("warps", "stages")
Flags = Any


@dataclass(frozen=True)
class Ranked:
    """One mapping of the space with a model's seconds."""

    schedule: Schedule
    seconds: float


@dataclass(frozen=True)
class Variant:
    """A family with each split either 1 or above: one realised structure, and a full grid of decisions."""

    family: str
    domains: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        out = 1
        for values in self.domains.values():
            out *= len(values)
        return out

    @property
    def mesh(self) -> dict[str, Any]:
        """Each key's values on an axis of its own; a key with one value is a plain number."""
        out: dict[str, Any] = {}
        for axis, (key, values) in enumerate(self.domains.items()):
            shape = [1] * len(self.domains)
            shape[axis] = len(values)
            out[key] = values[0] if len(values) == 1 else np.array(values, np.int64).reshape(shape)
        return out

    def at(self, index: tuple[int, ...]) -> Schedule:
        return schedule(self.family, {k: v[i] for (k, v), i in zip(self.domains.items(), index, strict=True)})


def variants(family: str) -> Iterator[Variant]:
    """The variants of a family; together they are its whole grid, each point once."""
    domains = {d.key: d.values for d in FAMILIES[family]}
    splits = [k for k in domains if k.split(".")[-1] == "split"]
    for chosen in itertools.product((False, True), repeat=len(splits)):
        some = {k: tuple(v for v in domains[k] if (v > 1) == on) for k, on in zip(splits, chosen, strict=True)}
        yield Variant(family, {**domains, **some})


@dataclass(frozen=True)
class Grid:
    """One variant under one model: its score, as arrays."""

    variant: Variant
    workload: Workload
    gpu: Gpu
    model: Model

    @cached_property
    def score(self) -> Score:
        mesh = self.variant.mesh
        tree = skeleton(self.variant.family, self.workload, self.gpu, mesh)
        some = {k: v if np.ndim(v) == 0 else int(np.ravel(v)[0]) for k, v in tree.decisions.items() if k != "gridfold"}
        sample = type(tree)(tree.stage, tree.name, tree.workload, tree.gpu, {**some, "gridfold": "yes"}, tree.body)
        profile = profile_of(sample, self.workload, self.gpu, self.model.count, tree.decisions)
        return score(self.model, profile, self.gpu)

    def why_not(self, index: tuple[int, ...]) -> str | None:
        """The reasons against one point of the grid, or None."""
        said = [r for r, where in self.score.why_not.items() if bool(_pick(where, index))]
        return "; ".join(said) or None

    def seconds(self, index: tuple[int, ...]) -> float:
        return float(sum(_pick(s, index) for s in self.score.steps_s))

    @property
    def expressible(self) -> bool:
        return bool(self.score.steps_s)

    # ---- the best ----
    def best(self, count: int) -> list[tuple[float, tuple[int, ...]]]:
        """The `count` best points with distinct trees, each with its best free decisions: (seconds, index)."""
        if not self.expressible:
            return []
        found: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
        for free in itertools.product(*(range(len(self.variant.domains[k])) for k in FREE)):
            for seconds, index in self._best_of_slice(dict(zip(FREE, free, strict=True)), count):
                tree = self._tree_part(index)
                if tree not in found or (seconds, index) < found[tree]:
                    found[tree] = (seconds, index)
        return sorted(found.values())[:count]

    def _tree_part(self, index: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for k, i in zip(self.variant.domains, index, strict=True) if k not in FREE)

    def _best_of_slice(self, free: dict[str, int], count: int) -> Iterator[tuple[float, tuple[int, ...]]]:
        """The best sums with the free decisions fixed: the best of each group, then the best combinations of those."""
        keys = list(self.variant.domains)
        fixed = {keys.index(k): i for k, i in free.items()}
        groups, crossing = self._groups(fixed)
        tops = [g.best(self._room(count, crossing)) for g in groups]
        if any(not t for t in tops):
            return
        given = 0
        for seconds, parts in smallest_sums(tops):
            index = [0] * len(keys)
            for axis, i in itertools.chain(fixed.items(), *(p.items() for p in parts)):
                index[axis] = i
            point = tuple(index)
            if any(bool(_pick(w, point)) for w in crossing):
                continue
            yield seconds, point
            given += 1
            if given == count:
                return

    def _room(self, count: int, crossing: list[Flags]) -> int:
        """How many of each group to keep: all where a limit couples groups, since the best may then not fit."""
        return count if not crossing else self.variant.size

    def _groups(self, fixed: Mapping[int, int]) -> tuple[list[_Group], list[Flags]]:
        """Independent groups of steps, and the limits that couple them."""
        axes_of = [_axes(s) - set(fixed) for s in self.score.steps_s]
        merged: list[set[int]] = []
        for axes in axes_of:
            touching = [m for m in merged if m & axes]
            merged = [m for m in merged if not m & axes]
            merged.append(axes.union(*touching))
        covered = set().union(*merged) if merged else set()
        for axis, values in enumerate(self.variant.domains.values()):
            if axis not in covered | set(fixed) and len(values) > 1:
                merged.append({axis})  # a decision that nothing prices: its values tie
        groups = []
        crossing = [w for w in self.score.why_not.values() if not any(_axes(w) - set(fixed) <= m for m in merged)]
        for members in merged:
            steps = [s for s, axes in zip(self.score.steps_s, axes_of, strict=True) if axes and axes <= members]
            limits = [w for w in self.score.why_not.values() if _axes(w) - set(fixed) <= members]
            groups.append(_Group(tuple(sorted(members)), self._shape(members), steps, limits, dict(fixed)))
        constants = [s for s, axes in zip(self.score.steps_s, axes_of, strict=True) if not axes]
        if constants:
            groups.append(_Group((), self._shape(set()), constants, [], dict(fixed)))
        return groups, crossing

    def _shape(self, axes: set[int]) -> tuple[int, ...]:
        """The grid's shape with every axis but these of size one."""
        return tuple(len(v) if axis in axes else 1 for axis, v in enumerate(self.variant.domains.values()))


@dataclass(frozen=True)
class _Group:
    """Steps over the same axes, with every other axis at the fixed index or of size one.

    There may be none: then all points tie, and `shape` says how many there are.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    steps: list[Any]
    limits: list[Flags]
    fixed: Mapping[int, int]

    def best(self, count: int) -> list[tuple[float, dict[int, int]]]:
        """(seconds, {axis: index}) of the feasible points, best first, ties in the order of the domains."""
        total: Any = 0.0
        for step in self.steps:
            total = total + self._slice(step)
        allowed: Any = np.True_
        for limit in self.limits:
            allowed = np.logical_and(allowed, np.logical_not(self._slice(limit)))
        seconds = np.where(np.broadcast_to(allowed, self.shape), np.broadcast_to(total, self.shape), np.inf)
        flat = seconds.ravel()
        order = np.argsort(flat, kind="stable")[:count]
        where = np.unravel_index(order, self.shape)
        out = []
        for n, at in enumerate(order):
            if np.isfinite(flat[at]):
                out.append((float(flat[at]), {axis: int(where[axis][n]) for axis in self.axes}))
        return out

    def _slice(self, array: Any) -> Any:
        if np.ndim(array) == 0:
            return array
        cut = [slice(None)] * array.ndim
        for axis, index in self.fixed.items():
            if array.shape[axis] > 1:
                cut[axis] = slice(index, index + 1)
        return array[tuple(cut)]


def _axes(array: Any) -> set[int]:
    return {i for i, n in enumerate(np.shape(array)) if n > 1}


def _pick(array: Any, index: tuple[int, ...]) -> Any:
    """One element of an array that broadcasts to the grid."""
    if np.ndim(array) == 0:
        return array
    return array[tuple(i if n > 1 else 0 for i, n in zip(index, array.shape, strict=True))]


def smallest_sums(
    lists: list[list[tuple[float, dict[int, int]]]],
) -> Iterator[tuple[float, tuple[dict[int, int], ...]]]:
    """Combinations of one element of each sorted list, by growing sum; ties by position in the lists."""

    def total(at: tuple[int, ...]) -> float:
        out = 0.0
        for elements, i in zip(lists, at, strict=True):
            out = out + elements[i][0]
        return out

    start = (0,) * len(lists)
    heap, seen = [(total(start), start)], {start}
    while heap:
        seconds, at = heapq.heappop(heap)
        yield seconds, tuple(elements[i][1] for elements, i in zip(lists, at, strict=True))
        for n, elements in enumerate(lists):
            if at[n] + 1 < len(elements):
                after = (*at[:n], at[n] + 1, *at[n + 1 :])
                if after not in seen:
                    seen.add(after)
                    heapq.heappush(heap, (total(after), after))
