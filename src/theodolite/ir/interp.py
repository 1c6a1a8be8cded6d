"""The interpreter: what a realised tree means.

One walker goes over a kernel's steps for many program ids at once, loops in lockstep.  In `events` it notes what
each program loads, stores and computes without touching data; in `values` it also runs the arithmetic on NumPy arrays.
Closed-form counts, kernels and gates are held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.errors import Unsupported
from theodolite.ir.events import Access, Bools, Events, Ints
from theodolite.ir.scope import Scope, Span, grid_counts, grid_scope
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
from theodolite.ir.tree import Tree, evaluate_size
from theodolite.ir.values import Registers
from theodolite.ir.workload import Workload

MIN_DOT_K = 16  # Triton's dot wants 16 fp16 elements along the contraction; less is multiplied and summed


def events(kernel: KernelSteps, workload: Workload, decisions: Mapping[str, Any], programs: Ints) -> Events:
    """What the given programs of one kernel do.  Memory grows with programs x trips, never with tile elements."""
    walk = _Walk(workload, decisions, len(programs))
    walk.steps(kernel.steps, grid_scope(kernel, workload, decisions, programs), np.ones(len(programs), bool))
    return walk.log.close(programs)


def values(
    tree: Tree, workload: Workload, arrays: Mapping[str, npt.NDArray[Any]], rounding: bool = True
) -> dict[str, npt.NDArray[Any]]:
    """Run a realised tree on input arrays: outputs and workspaces by buffer name, in float64.

    With `rounding` every store rounds to its buffer's dtype, as the kernels do; without it the tree's algebra is
    exact to float64.  Buffers that nothing wrote hold NaN.
    """
    memory = {name: np.asarray(a, np.float64).ravel() for name, a in arrays.items()}
    shapes = {name: a.shape for name, a in arrays.items()}
    for kernel in kernel_steps(tree, workload):
        programs = np.arange(int(np.prod(grid_counts(kernel, workload, tree.decisions), dtype=np.int64)))
        for home in kernel.stores:
            shape = buffer_shape(home, workload, tree.decisions)
            shapes[home.buffer] = shape
            memory.setdefault(home.buffer, np.full(int(np.prod(shape)), np.nan))
        walk = _Walk(workload, tree.decisions, len(programs), Registers(len(programs), memory, rounding))
        scope = grid_scope(kernel, workload, tree.decisions, programs)
        with np.errstate(invalid="ignore", divide="ignore"):  # lanes past a ragged edge are never stored
            walk.steps(kernel.steps, scope, np.ones(len(programs), bool))
    return {name: a.reshape(shapes[name]) for name, a in memory.items() if name not in arrays}


def buffer_shape(home: Home, workload: Workload, decisions: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a home's whole buffer, slices first."""
    slices = () if home.over is None else (int(evaluate_size(home.slices, decisions, 0)),)
    return slices + tuple(workload.ranks[r] for r in home.ranks)


@dataclass
class _Log:
    """Counts a program, as they grow."""

    programs: int
    accesses: list[Access] = field(default_factory=list)
    dots: dict[tuple[int, int, int], Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trips, self.exp2, self.fp32, self.reductions = (np.zeros(self.programs, np.int64) for _ in range(4))

    def work(self, active: Bools, *, fp32: int = 0, exp2: int = 0, reductions: int = 0) -> None:
        self.fp32 += active * fp32
        self.exp2 += active * exp2
        self.reductions += active * reductions

    def dot(self, active: Bools, shape: tuple[int, int, int]) -> None:
        self.dots[shape] = self.dots.get(shape, np.zeros(self.programs, np.int64)) + active

    def close(self, programs: Ints) -> Events:
        return Events(programs, tuple(self.accesses), self.trips, self.dots, self.exp2, self.fp32, self.reductions)


class _Walk:
    """Walks steps; `registers` is there in values mode alone."""

    def __init__(
        self, workload: Workload, decisions: Mapping[str, Any], programs: int, registers: Registers | None = None
    ) -> None:
        self.workload, self.decisions, self.registers = workload, decisions, registers
        self.log = _Log(programs)
        self.ranks: dict[str, tuple[str, ...]] = {}  # of each value in registers

    def steps(self, steps: tuple[Step, ...], scope: Scope, active: Bools) -> None:
        for step in steps:
            self.step(step, scope, active)

    def step(self, step: Step, scope: Scope, active: Bools) -> None:
        if isinstance(step, For):
            self.loop(step, scope, active)
            return
        if isinstance(step, (Load, AddPartial, Store)):
            self.access(step, scope, active)
        self.note(step, scope)
        self.count(step, scope, active)
        if self.registers is not None:
            self.registers.step(step, scope, active, self.ranks)

    # ---- loops ----
    def loop(self, step: For, scope: Scope, active: Bools) -> None:
        rank = step.loop.rank
        if rank == SLICES:
            count = int(self.decisions_of_slices(step))
            for j in range(count):
                self.log.trips += active
                self.steps(step.body, scope.with_slice(SLICES, np.full(scope.programs, j)), active)
            return
        span = scope.span(rank)
        tile = evaluate_size(step.loop.tile, self.decisions, self.workload.extent(rank))
        limit = span.limit
        if step.stop:
            _, row, offset = step.stop
            rows = scope.span(row)
            limit = np.minimum(limit, rows.start + rows.size + offset)
        trips = np.maximum(-(-(limit - span.start) // tile), 0)
        for j in range(int(trips.max(initial=0))):
            now = active & (j < trips)
            self.log.trips += now
            self.steps(step.body, scope.with_span(rank, Span(span.start + j * tile, limit, tile)), now)

    def decisions_of_slices(self, step: For) -> Any:
        home = next(s.home for s in step.body if isinstance(s, (Load, AddPartial)))
        return evaluate_size(home.slices, self.decisions, 0)

    # ---- what a step is seen to do ----
    def access(self, step: Load | AddPartial | Store, scope: Scope, active: Bools) -> None:
        base, axes = scope.footprint(step.home)
        kind = "store" if isinstance(step, Store) else "load"
        self.log.accesses.append(Access(kind, step.home.buffer, active, base, axes))  # type: ignore[arg-type]

    def note(self, step: Step, scope: Scope) -> None:
        """Remember which ranks a new value runs over."""
        match step:
            case Load(value, home, _):
                self.ranks[value] = home.ranks
            case Clear(value, ranks, _):
                flat = scope.flat(ranks)
                self.ranks[value] = (flat,) if flat else ranks
            case Contract(out) | Max(out) | Exp(out) | Sum(out) | Divide(out):
                self.ranks[out] = self.workload.einsum(out).output.ranks
            case _:
                pass

    def lanes(self, value: str, scope: Scope) -> int:
        return scope.size(*self.ranks[value])

    def count(self, step: Step, scope: Scope, active: Bools) -> None:
        """Lanes of exponentials and of mul, add, sub, div and max, and lanes that enter a reduction."""
        work = self.log.work
        match step:
            case Contract(out, a, b, rank, accumulate, rescale):
                self.contraction(out, (a, b), rank, accumulate, rescale, scope, active)
            case Finish(value):
                work(active, fp32=self.lanes(value, scope))
            case Max(out, source, _, carried):
                rows = self.lanes(out, scope)
                work(active, fp32=self.lanes(source, scope) + carried * 2 * rows, exp2=carried * rows, reductions=1)
            case Exp(out, _, _, log2e):
                work(active, fp32=(1 + log2e) * self.lanes(out, scope), exp2=self.lanes(out, scope))
            case Sum(out, source, _, carried):
                work(active, fp32=self.lanes(source, scope) + carried * 2 * self.lanes(out, scope), reductions=1)
            case Divide(out):
                work(active, fp32=self.lanes(out, scope))
            case AddPartial(value):
                work(active, fp32=self.lanes(value, scope))
            case MergeState(maximum, sums, products):
                rows = self.lanes(maximum, scope)
                states = rows * len(sums) + sum(self.lanes(p, scope) for p in products)
                work(active, fp32=3 * rows + 3 * states, exp2=2 * rows)
            case Load() | Clear() | Store():
                pass
            case _:
                raise Unsupported(f"no meaning for the step {type(step).__name__}: nothing unknown is left out")

    def contraction(
        self, out: str, ab: tuple[str, str], rank: str, accumulate: bool, rescale: bool, scope: Scope, active: Bools
    ) -> None:
        left, right = (self.ranks[x] for x in ab)
        m = scope.size(*(r for r in left if r not in right))
        n = scope.size(*(r for r in right if r not in left))
        k = scope.size(rank)
        if k >= MIN_DOT_K:
            self.log.dot(active, (m, n, k))
            self.log.work(active, fp32=rescale * m * n)
        else:
            self.log.work(active, fp32=2 * m * n * k + (accumulate + rescale) * m * n, reductions=1)
