"""Many schedules of a workload, spread over the mapspace: at random, or all of a grid in its order.

A random order depends on the seed and on nothing else, so that workloads share schedules, and with them kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from theodolite.cost.model import corrected
from theodolite.errors import TextError, UnknownName, Unsupported
from theodolite.gpus.gpu import Gpu
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, schedule
from theodolite.mapper.space import Grid, variants

MAX_TRIES = 100_000
MAX_GRID = 100_000
Domains = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Room:
    """What the GPU has room for, of one family and workload."""

    grids: tuple[Grid, ...]

    def holds(self, point: Schedule) -> bool:
        for grid in self.grids:
            domains = grid.variant.domains
            if all(v in domains[k] for k, v in point.decisions):
                return grid.why_not(tuple(domains[k].index(v) for k, v in point.decisions)) is None
        return False


def room(family: str, workload: Workload, gpu: Gpu) -> Room:
    return Room(tuple(Grid(v, workload, gpu, corrected()) for v in variants(family)))


def domains(family: str, least: Mapping[str, int]) -> Domains:
    """The family's domains without the values below `least`; TextError where nothing is left of one."""
    out: Domains = {}
    for domain in FAMILIES[family]:
        values = tuple(v for v in domain.values if v >= least.get(domain.key, 0))
        if not values:
            raise TextError(f"{family} has no {domain.key} of {least[domain.key]} or more: {domain.words()}")
        out[domain.key] = values
    return out


def check_least(least: Mapping[str, int]) -> None:
    """UnknownName for a key that no family has."""
    known = {d.key for f in FAMILIES.values() for d in f}
    for key in least:
        if key not in known:
            raise UnknownName(f"no family has a decision {key!r}: there are {', '.join(sorted(known))}")


def at_random(family: str, workload: Workload, gpu: Gpu, seed: int, least: Mapping[str, int]) -> Iterator[Schedule]:
    """Different feasible schedules in a random order; ends with the grid, or after MAX_TRIES old ones in a row."""
    space = domains(family, least)
    fits = room(family, workload, gpu)
    points = _permuted(space, seed) if _size(space) <= MAX_GRID else _drawn(space, seed)
    for point in points:
        found = schedule(family, point)
        if fits.holds(found):
            yield found


def in_order(family: str, workload: Workload, gpu: Gpu, least: Mapping[str, int]) -> list[Schedule]:
    """Every feasible schedule of a family's grid.  Raises Unsupported where there are too many to name."""
    space = domains(family, least)
    if _size(space) > MAX_GRID:
        raise Unsupported(f"the grid of {family} has {_size(space):,} points: draw from it at random")
    fits = room(family, workload, gpu)
    points = (schedule(family, dict(zip(space, p, strict=True))) for p in itertools.product(*space.values()))
    return [p for p in points if fits.holds(p)]


def _size(space: Domains) -> int:
    return math.prod(len(v) for v in space.values())


def _permuted(space: Domains, seed: int) -> Iterator[dict[str, int]]:
    generator = np.random.Generator(np.random.Philox(seed))
    points = list(itertools.product(*space.values()))
    for n in generator.permutation(len(points)):
        yield dict(zip(space, points[int(n)], strict=True))


def _drawn(space: Domains, seed: int) -> Iterator[dict[str, int]]:
    generator = np.random.Generator(np.random.Philox(seed))
    seen: set[tuple[int, ...]] = set()
    tries = 0
    while tries < MAX_TRIES:
        point = tuple(v[int(generator.integers(len(v)))] for v in space.values())
        tries += 1
        if point not in seen:
            seen.add(point)
            tries = 0
            yield dict(zip(space, point, strict=True))
