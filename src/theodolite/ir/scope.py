"""Which part of each rank a program sees at a point of a kernel, vectorised over program ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from theodolite.errors import Unsupported
from theodolite.ir.events import Axis, Ints
from theodolite.ir.steps import SLICES, Home, KernelSteps
from theodolite.ir.tree import Loop, Part, evaluate_size
from theodolite.ir.workload import Workload

LANES = "lanes."  # decision `lanes.RANK`: see `Scope`


def power_of_two(extent: int) -> int:
    """The smallest power of two that is at least `extent`: tiles on a GPU have such sides."""
    return 1 << max(extent - 1, 0).bit_length()


@dataclass(frozen=True)
class Span:
    """A tile of one rank: `size` lanes from `start[p]`, of which those below `limit[p]` exist."""

    start: Ints
    limit: Ints
    size: int


@dataclass(frozen=True)
class Scope:
    """The spans of the tiled ranks, and the index of the slice that each sliced rank is in.

    `lanes` gives a rank that no loop tiles more lanes than its padded size: a twin has those of the full program.
    """

    workload: Workload
    programs: int
    spans: Mapping[str, Span]
    slices: Mapping[str, Ints]
    lanes: Mapping[str, int]

    def span(self, rank: str) -> Span:
        """The rank's span; a rank that no loop tiles is there whole, padded to a power of two."""
        if rank in self.spans:
            return self.spans[rank]
        extent = self.workload.ranks[rank]
        zero = np.zeros(self.programs, np.int64)
        return Span(zero, zero + extent, self.lanes.get(rank, power_of_two(extent)))

    def size(self, *ranks: str) -> int:
        """Lanes of a tile over these ranks, padding included."""
        out = 1
        for rank in ranks:
            out *= self.span(rank).size
        return out

    def with_span(self, rank: str, span: Span) -> Scope:
        return replace(self, spans={**self.spans, rank: span})

    def with_slice(self, rank: str, index: Ints) -> Scope:
        return replace(self, slices={**self.slices, rank: index})

    def flat(self, ranks: tuple[str, ...]) -> str | None:
        """The flattened rank that stands for all of these, if a loop tiles one."""
        joined = "".join(ranks)
        return joined if len(ranks) > 1 and joined in self.spans else None

    def footprint(self, home: Home) -> tuple[Ints, tuple[Axis, ...]]:
        """(element offset of the tile's first lane, axes) of a home's tile, axes of size 1 left out."""
        extents = [self.workload.ranks[r] for r in home.ranks]
        whole = int(np.prod(extents, dtype=np.int64))
        base = np.zeros(self.programs, np.int64)
        if home.over is not None:
            base = base + self.slice_index(home) * whole
        flat = self.flat(home.ranks)
        ranks = (flat,) if flat else home.ranks
        sizes = [whole] if flat else extents
        axes, stride = [], 1
        for rank, extent in zip(reversed(ranks), reversed(sizes), strict=True):
            span = self.span(rank)
            base = base + span.start * stride
            if span.size > 1:
                axes.append(Axis(stride, span.size, np.clip(span.limit - span.start, 0, span.size)))
            stride *= extent
        return base, tuple(reversed(axes))

    def slice_index(self, home: Home) -> Ints:
        for rank in (SLICES, home.over or ""):
            if rank in self.slices:
                return self.slices[rank]
        raise Unsupported(f"{home.buffer} is a partial over {home.over}, which nothing here slices")


def grid_counts(kernel: KernelSteps, workload: Workload, decisions: Mapping[str, Any]) -> tuple[int, ...]:
    """How many programs each grid loop makes, in the order of `kernel.grid`."""
    return tuple(loop_count(loop, workload, decisions) for loop in kernel.grid)


def loop_count(loop: Loop, workload: Workload, decisions: Mapping[str, Any]) -> Any:
    """Iterations of a loop over a whole rank: a rank in slices has as many as slices, empty ones included."""
    if isinstance(loop.tile, Part):
        return decisions[loop.tile.key]
    extent = workload.extent(loop.rank)
    return -(-extent // evaluate_size(loop.tile, decisions, extent))


def grid_scope(kernel: KernelSteps, workload: Workload, decisions: Mapping[str, Any], programs: Ints) -> Scope:
    """The spans of the grid's ranks for these program ids."""
    counts = dict(zip((x.rank for x in kernel.grid), grid_counts(kernel, workload, decisions), strict=True))
    lanes = {r: int(decisions[LANES + r]) for r in workload.ranks if LANES + r in decisions}
    scope = Scope(workload, len(programs), {}, {}, lanes)
    rest = np.asarray(programs, np.int64)
    fastest_first = [x for r in kernel.order for x in kernel.grid if x.rank == r]
    for loop in fastest_first or list(kernel.grid):
        index, rest = rest % counts[loop.rank], rest // counts[loop.rank]
        extent = workload.extent(loop.rank)
        tile = evaluate_size(loop.tile, decisions, extent)
        start = index * tile
        scope = scope.with_span(loop.rank, Span(start, np.minimum(start + tile, extent), tile))
        if isinstance(loop.tile, Part):
            scope = scope.with_slice(loop.rank, index)
    return scope
