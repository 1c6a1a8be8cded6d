"""Counts of a realised tree as a GPU executes it, in closed form: one `KernelProfile` a kernel.

The walk is over the same steps as the interpreter's, but visits are multiplied instead of made, so that sizes may be
numbers or arrays over a grid of decisions.  Padded and masked lanes count in contractions, exponentials and FP32, not
in bytes, since a masked lane moves none.  The oracle is `interp.events`, summed over programs.

A loop over a rank that is cut into slices and ends at the diagonal of a row tile runs, over all slices,

    iterations(i) = (h_i // slice) * ceil(slice / tile) + ceil((h_i mod slice) / tile)
    h_i           = min(extent, edge of row tile i)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theodolite.cost.footprint import Tiles, registers, shared_bytes
from theodolite.cost.profile import KernelProfile
from theodolite.errors import Unsupported
from theodolite.ir.interp import MIN_DOT_K
from theodolite.ir.scope import loop_count, power_of_two
from theodolite.ir.steps import (
    SLICES,
    AddPartial,
    Clear,
    Contract,
    Divide,
    Exp,
    Finish,
    For,
    Home,
    KernelSteps,
    Load,
    Max,
    MergeState,
    Step,
    Store,
    Sum,
    kernel_steps,
)
from theodolite.ir.tree import Key, Loop, Part, Tree, evaluate_size
from theodolite.ir.workload import DTYPE_BYTES, Workload

Number = Any
WGMMA_ROWS = 64  # a warpgroup's instruction takes 64 rows; fewer, or warps that make no group of 4, take mma.sync


def executed(tree: Tree, workload: Workload, decisions: Mapping[str, Any] | None = None) -> tuple[KernelProfile, ...]:
    """The profile of each kernel of a realised tree, in launch order.

    `decisions` (numbers or arrays that broadcast) stand in for the tree's own; all must agree with it on which splits
    are 1, since that changes the kernels.  Raises Unsupported where a count has no closed form here.
    """
    chosen = tree.decisions if decisions is None else decisions
    kernels = kernel_steps(tree, workload)
    return tuple(_Count(k, workload, chosen, first=i == 0).profile() for i, k in enumerate(kernels))


def ceil_div(a: Number, b: Number) -> Number:
    return -(-a // b)


def iterations(extent: Number, tile: Number, slice_: Number | None = None) -> Number:
    """Trips of a loop over `extent` in steps of `tile`, over all its slices."""
    if slice_ is None:
        return ceil_div(extent, tile)
    return (extent // slice_) * ceil_div(slice_, tile) + ceil_div(extent % slice_, tile)


@dataclass
class _Sums:
    loads: dict[str, Number] = field(default_factory=dict)
    stores: dict[str, Number] = field(default_factory=dict)
    flops_wgmma: Number = 0
    flops_mma: Number = 0
    flops_simd: Number = 0
    contraction_fp32: Number = 0
    exp2: Number = 0
    fp32: Number = 0
    reductions: Number = 0
    trips: Number = 0
    longest: Number = 0


class _Count:
    """Counts one kernel."""

    def __init__(self, kernel: KernelSteps, workload: Workload, decisions: Mapping[str, Any], first: bool) -> None:
        self.kernel, self.workload, self.decisions, self.first = kernel, workload, decisions, first
        self.counts = {x.rank: loop_count(x, workload, decisions) for x in kernel.grid}
        self.tiles = {x.rank: self.size_of(x) for x in kernel.grid}
        self.flat = next((r for r in self.counts if r not in workload.ranks), None)
        self.ranks: dict[str, tuple[str, ...]] = {}
        self.sums = _Sums()
        self.largest: Number = 1
        self.contractions = [(s, i) for s, i in _with_loop(kernel.steps) if isinstance(s, Contract)]
        self.warps = self.number(kernel.warps)
        self.stages = self.number(kernel.stages)

    def odd_tiles(self) -> Number:
        """How many tiles have a side that is no power of two; a slice is no tile."""
        loops = [x for x in self.kernel.grid if not isinstance(x.tile, Part)]
        loops += [s.loop for s in _loops(self.kernel.steps)]
        return sum(((size := self.size_of(x)) & (size - 1) > 0) * 1 for x in loops)

    def number(self, value: int | Key) -> Number:
        return value if isinstance(value, int) else self.decisions[value.name]

    def size_of(self, loop: Loop) -> Number:
        return evaluate_size(loop.tile, self.decisions, self.workload.extent(loop.rank))

    # ---- the walk ----
    def profile(self) -> KernelProfile:
        programs: Number = math.prod(self.counts.values())
        self.walk(self.kernel.steps, programs, None)
        s = self.sums
        moved, tiles = self.moved(), self.footprint()
        return KernelProfile(
            name=self.kernel.name,
            first=self.first,
            merge=self.kernel.is_merge,
            programs=programs,
            warps=self.warps,
            stages=self.stages,
            trips=s.trips,
            trips_longest=s.longest,
            **moved,
            flops=s.flops_wgmma + s.flops_mma + s.flops_simd,
            flops_wgmma=s.flops_wgmma,
            flops_mma=s.flops_mma,
            contraction_fp32=s.contraction_fp32,
            exp2=s.exp2,
            fp32=s.fp32,
            reductions=s.reductions,
            smem_bytes=shared_bytes(tiles) if self.contractions else 0,
            registers=registers(tiles),
            tile_elements=self.largest,
            odd_tiles=self.odd_tiles(),
            loads=s.loads,
            stores=s.stores,
        )

    def walk(self, steps: tuple[Step, ...], visits: Number, inside: For | None) -> None:
        for step in steps:
            self.note(step)
            match step:
                case For():
                    if inside is not None:
                        raise Unsupported(f"kernel {self.kernel.name}: loops inside loops have no closed form here yet")
                    trips = self.trips_of(step)
                    self.sums.trips = self.sums.trips + trips
                    self.sums.longest = self.longest_of(step)
                    self.walk(step.body, trips, step)
                case Load(_, home) | AddPartial(_, home):
                    self.add(self.sums.loads, home, inside)
                    self.work(step, visits, inside)
                case Store(_, home):
                    self.add(self.sums.stores, home, inside)
                case _:
                    self.work(step, visits, inside)

    def note(self, step: Step) -> None:
        match step:
            case Load(value, home, _):
                self.ranks[value] = home.ranks
            case Clear(value, ranks, _):
                self.ranks[value] = ranks
            case Contract(out) | Max(out) | Exp(out) | Sum(out) | Divide(out):
                self.ranks[out] = self.workload.einsum(out).output.ranks
            case _:
                pass

    # ---- trips ----
    def slice_of(self, rank: str) -> Number | None:
        loop = next((x for x in self.kernel.grid if x.rank == rank), None)
        return self.tiles[rank] if loop is not None and isinstance(loop.tile, Part) else None

    def others(self, *ranks: str) -> Number:
        """Programs for each index of the given grid ranks."""
        return math.prod(n for r, n in self.counts.items() if r not in ranks)

    def trips_of(self, step: For) -> Number:
        rank = step.loop.rank
        if rank == SLICES:
            return self.others() * self.slices(step)
        tile, extent = self.size_of(step.loop), self.workload.ranks[rank]
        if step.stop is None:
            slice_ = self.slice_of(rank)
            return iterations(extent, tile, slice_) * (self.others(rank) if slice_ is not None else self.others())
        return self.over_rows(step, lambda edge: iterations(edge, tile, self.slice_of(rank))) * self.others(
            rank, step.stop[1]
        )

    def longest_of(self, step: For) -> Number:
        rank = step.loop.rank
        if rank == SLICES:
            return self.slices(step)
        slice_ = self.slice_of(rank)
        extent = self.workload.ranks[rank]
        return ceil_div(extent if slice_ is None else np.minimum(slice_, extent), self.size_of(step.loop))

    def over_rows(self, step: For, of_edge: Any) -> Number:
        """Sum over row tiles of a function of where the loop ends for them."""
        assert step.stop is not None
        rank, row, offset = step.stop
        tile, tiles = self.tiles[row], self.counts[row]
        total: Number = 0
        for i in range(int(np.max(tiles))):
            edge = np.minimum((i + 1) * tile + offset, self.workload.ranks[rank])
            total = total + np.where(i < tiles, of_edge(edge), 0)
        return total if np.ndim(total) else int(total)

    def slices(self, step: For) -> Number:
        home = next(s.home for s in step.body if isinstance(s, (Load, AddPartial)))
        return self.number(home.slices)

    # ---- bytes ----
    def add(self, into: dict[str, Number], home: Home, inside: For | None) -> None:
        into[home.buffer] = into.get(home.buffer, 0) + self.elements(home, inside)

    def elements(self, home: Home, inside: For | None) -> Number:
        """Elements that all programs move of a home: tiles cover its ranks once for each program that shares them."""
        covered = {self.flat} if self.flat and "".join(home.ranks) == self.flat else set(home.ranks)
        whole = math.prod(self.workload.ranks[r] for r in home.ranks)
        shared: Number = math.prod(n for r, n in self.counts.items() if r not in covered)
        if inside is None:
            return whole * shared
        rank = inside.loop.rank
        if rank == SLICES:
            return whole * shared * self.slices(inside)
        if rank not in covered:
            return whole * self.trips_of(inside) // math.prod(n for r, n in self.counts.items() if r in covered)
        if inside.stop is None:
            return whole * shared
        row = inside.stop[1]
        if row in covered:
            raise Unsupported(f"{home.buffer} runs over {rank} and {row}, which its loop couples: no closed form yet")
        seen = self.over_rows(inside, lambda edge: edge)  # instead of the whole extent, once a row tile
        return whole // self.workload.ranks[rank] * seen * (shared // self.counts[row])

    def moved(self) -> dict[str, Number]:
        homes = {h.buffer: h for h in self.kernel.homes}
        out: dict[str, Number] = dict.fromkeys(
            ("loaded_bytes", "stored_bytes", "distinct_bytes", "partial_bytes", "partial_distinct_bytes"), 0
        )
        for kind, moved in (("loaded_bytes", self.sums.loads), ("stored_bytes", self.sums.stores)):
            for buffer, elements in moved.items():
                home = homes[buffer]
                size = DTYPE_BYTES[home.dtype]
                distinct = size * math.prod(self.workload.ranks[r] for r in home.ranks)
                if home.over is None:
                    out[kind] = out[kind] + elements * size
                    out["distinct_bytes"] = out["distinct_bytes"] + distinct
                else:
                    out["partial_bytes"] = out["partial_bytes"] + elements * size
                    held = distinct * self.number(home.slices)
                    out["partial_distinct_bytes"] = out["partial_distinct_bytes"] + held
        return out

    # ---- lanes ----
    def size(self, rank: str, inside: For | None) -> Number:
        if inside is not None and inside.loop.rank == rank:
            return self.size_of(inside.loop)
        if rank in self.tiles:
            return self.tiles[rank]
        return power_of_two(self.workload.ranks[rank])

    def lanes(self, ranks: tuple[str, ...], inside: For | None) -> Number:
        if self.flat and "".join(ranks) == self.flat:
            return self.tiles[self.flat]
        return math.prod(self.size(r, inside) for r in ranks)

    def lanes_in(self, value: str, inside: For | None) -> Number:
        return self.lanes(self.ranks[value], inside)

    def contraction(self, step: Contract, inside: For | None) -> tuple[Number, Number, Number]:
        """(m, n, k) of a contraction's tile."""
        a, b = self.ranks[step.a], self.ranks[step.b]
        m = self.lanes(tuple(r for r in a if r not in b), inside)
        n = self.lanes(tuple(r for r in b if r not in a), inside)
        return m, n, self.size(step.rank, inside)

    def footprint(self) -> Tiles:
        """The kernel's tiles, for what a CTA takes of an SM."""
        steps = [(s, inside) for s, inside in _with_loop(self.kernel.steps) if not isinstance(s, For)]
        operands = {x for c, _ in self.contractions for x in (c.a, c.b)}
        loads = [(s, inside) for s, inside in steps if isinstance(s, Load)]
        feeding = [(s, inside) for s, inside in loads if s.value in operands]
        ring = [2 * self.lanes_in(s.value, inside) for s, inside in feeding if inside is not None]
        cleared = {s.value for s, _ in steps if isinstance(s, Clear)}
        shapes = [self.contraction(c, inside) for c, inside in self.contractions]
        narrow = [(k < MIN_DOT_K) * 1 for _, _, k in shapes]
        rows = shapes[0][0] if shapes else 0
        results = [(c, inside) for c, inside in self.contractions if c.out not in cleared]
        in_loop = [self.lanes_in(s.value, inside) for s, inside in loads if inside is not None]
        return Tiles(
            warps=self.warps,
            stages=self.stages,
            rows=rows,
            wide=(rows >= WGMMA_ROWS) * (self.warps % 4 == 0) * 1,
            narrow=narrow[0] if narrow else 0,
            ring_bytes=sum(ring),
            largest_bytes=_largest(ring),
            resident_bytes=sum(2 * self.lanes_in(s.value, None) for s, inside in feeding if inside is None),
            weights_bytes=sum(2 * self.lanes_in(c.out, inside) for c, inside in results),
            accumulators=sum(self.lanes_in(v, None) for v in cleared),
            results=sum(self.lanes_in(c.out, inside) for c, inside in results),
            products=_largest([x * m * n * k for (m, n, k), x in zip(shapes, narrow, strict=True)]),
            loaded_lanes=_largest(in_loop),
            row_lanes=0 if cleared else _largest([self.lanes_in(s.value, None) for s, inside in loads if not inside]),
        )

    def work(self, step: Step, visits: Number, inside: For | None) -> None:
        s = self.sums
        match step:
            case Contract(out, _, _, _, accumulate, rescale):
                self.contract(step, visits, inside, accumulate, rescale)
            case Finish(value) | AddPartial(value):
                s.fp32 = s.fp32 + visits * self.lanes_in(value, inside)
            case Max(out, source, _, carried):
                rows = self.lanes_in(out, inside)
                s.fp32 = s.fp32 + visits * (self.lanes_in(source, inside) + carried * 2 * rows)
                s.exp2 = s.exp2 + visits * carried * rows
                s.reductions = s.reductions + visits
            case Exp(out, _, _, log2e):
                lanes = self.lanes_in(out, inside)
                s.fp32, s.exp2 = s.fp32 + visits * (1 + log2e) * lanes, s.exp2 + visits * lanes
            case Sum(out, source, _, carried):
                lanes = self.lanes_in(source, inside) + carried * 2 * self.lanes_in(out, inside)
                s.fp32, s.reductions = s.fp32 + visits * lanes, s.reductions + visits
            case Divide(out):
                s.fp32 = s.fp32 + visits * self.lanes_in(out, inside)
            case MergeState(maximum, sums, products):
                rows = self.lanes_in(maximum, inside)
                states = rows * len(sums) + sum(self.lanes_in(p, inside) for p in products)
                s.fp32, s.exp2 = s.fp32 + visits * (3 * rows + 3 * states), s.exp2 + visits * 2 * rows
            case Load(value):
                self.largest = np.maximum(self.largest, self.lanes_in(value, inside))
            case Clear():
                pass
            case _:
                raise Unsupported(f"no count for the step {type(step).__name__}: nothing unknown costs zero")

    def contract(self, step: Contract, visits: Number, inside: For | None, accumulate: bool, rescale: bool) -> None:
        s = self.sums
        m, n, k = self.contraction(step, inside)
        flops, dot = 2 * m * n * k * visits, k >= MIN_DOT_K
        wide = dot & (m >= WGMMA_ROWS) & (self.warps % 4 == 0)
        s.flops_wgmma = s.flops_wgmma + flops * wide
        s.flops_mma = s.flops_mma + flops * (dot & ~wide if np.ndim(wide) else dot and not wide)
        narrow = 1 - dot * 1
        s.flops_simd = s.flops_simd + flops * narrow
        s.contraction_fp32 = s.contraction_fp32 + narrow * (flops + (accumulate + rescale) * m * n * visits)
        s.fp32 = s.fp32 + dot * (rescale * m * n * visits)
        s.reductions = s.reductions + narrow * visits
        product = narrow * m * n * k
        self.largest = np.maximum(self.largest, np.maximum(m * n, product))


def _loops(steps: tuple[Step, ...]) -> list[For]:
    return [s for s, _ in _with_loop(steps) if isinstance(s, For) and s.loop.rank != SLICES]


def _largest(sizes: list[Number]) -> Number:
    out: Number = 0
    for size in sizes:
        out = np.maximum(out, size)
    return out


def _with_loop(steps: tuple[Step, ...], inside: For | None = None) -> list[tuple[Step, For | None]]:
    out: list[tuple[Step, For | None]] = []
    for step in steps:
        out.append((step, inside))
        if isinstance(step, For):
            out += _with_loop(step.body, step)
    return out
