"""`map`: the best mappings of the space under a model, and mappings drawn at random from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from theodolite.cost.model import Cost, Model, corrected, evaluate
from theodolite.errors import Infeasible
from theodolite.gpus.gpu import Gpu
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, schedule
from theodolite.mapper.skeletons import mapping
from theodolite.mapper.space import FREE, Grid, variants

MAX_TRIES = 100_000


@dataclass(frozen=True)
class Mapped:
    """One mapping that a search returned; `seconds` is the model's."""

    schedule: Schedule
    tree: Tree
    seconds: float
    cost: Cost


@dataclass(frozen=True)
class Found:
    """What a search returns: the best mappings with distinct trees, best first, and how large the space was.

    `size` counts points by family; `inexpressible` the points that the model has no words for, `skipped` names
    mappings that the model ranks and the GPU has no room for.
    """

    mapped: tuple[Mapped, ...]
    size: Mapping[str, int]
    inexpressible: Mapping[str, int]
    skipped: tuple[tuple[str, str], ...]


def map_workload(workload: Workload, gpu: Gpu, model: Model | None = None, top: int = 5) -> Found:
    """The `top` best mappings of the two families whose trees differ, in a total order that depends on the input alone.

    A model that does not price warps and stages leaves them open: the first pair, in the order of their domains, that
    the GPU has room for is taken.
    """
    chosen = model or corrected()
    grids = [Grid(v, workload, gpu, chosen) for f in FAMILIES for v in variants(f)]
    kept: list[Mapped] = []
    skipped: list[tuple[str, str]] = []
    for seconds, point in _in_order(grids, top):
        realisable, reason = _realisable(point, workload, gpu)
        if realisable is None:
            skipped.append((str(point), reason))
            continue
        tree = mapping(realisable, workload, gpu)
        kept.append(Mapped(realisable, tree, seconds, evaluate(tree, workload, gpu, chosen)))
        if len(kept) == top:
            break
    size = {f: sum(g.variant.size for g in grids if g.variant.family == f) for f in FAMILIES}
    mute = {f: sum(g.variant.size for g in grids if g.variant.family == f and not g.expressible) for f in FAMILIES}
    return Found(tuple(kept), size, mute, tuple(skipped))


def _in_order(grids: list[Grid], top: int) -> Iterator[tuple[float, Schedule]]:
    """Points by growing seconds; asks for more of each grid as they run out, so that skipping some costs nothing."""
    done, want = 0, top
    while True:
        best = sorted((seconds, n, index) for n, grid in enumerate(grids) for seconds, index in grid.best(want))
        for seconds, n, index in best[done:want]:
            yield seconds, grids[n].variant.at(index)
        if len(best) <= want and len(best) == done:
            return
        done, want = min(want, len(best)), want * 4


def _realisable(point: Schedule, workload: Workload, gpu: Gpu) -> tuple[Schedule | None, str]:
    """The point itself, or with other free decisions, so that it fits the GPU."""
    domains = {d.key: d.values for d in FAMILIES[point.family]}
    reason = ""
    options = itertools.product(*((point.values[k], *(v for v in domains[k] if v != point.values[k])) for k in FREE))
    for free in options:
        tried = schedule(point.family, {**point.values, **dict(zip(FREE, free, strict=True))})
        cost = evaluate(mapping(tried, workload, gpu), workload, gpu, corrected())
        if cost.feasible:
            return tried, ""
        reason = reason or str(cost.why_not)
    return None, reason


def draw(workload: Workload, gpu: Gpu, count: int, seed: int) -> tuple[Schedule, ...]:
    """`count` different schedules: a family at random, then uniformly among what the GPU has room for.

    The generator is NumPy's Philox by seed, so that the same input draws the same schedules.  Raises Infeasible where
    MAX_TRIES points do not hold that many.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    families = list(FAMILIES)
    grids = [Grid(v, workload, gpu, corrected()) for f in families for v in variants(f)]
    found: dict[Schedule, None] = {}
    family: str | None = None
    for _ in range(MAX_TRIES):
        if len(found) == count:
            return tuple(found)
        family = family or families[int(generator.integers(len(families)))]
        point = _feasible_point(family, grids, generator)
        if point is not None:
            found[point], family = None, None
    raise Infeasible(f"{workload.name}: {gpu.name} has room for too few mappings to draw {count}")


def _feasible_point(family: str, grids: list[Grid], generator: np.random.Generator) -> Schedule | None:
    values = {d.key: d.values[int(generator.integers(len(d.values)))] for d in FAMILIES[family]}
    for grid in grids:
        variant = grid.variant
        if variant.family == family and all(v in variant.domains[k] for k, v in values.items()):
            index = tuple(variant.domains[k].index(v) for k, v in values.items())
            return None if grid.why_not(index) else variant.at(index)
    return None
