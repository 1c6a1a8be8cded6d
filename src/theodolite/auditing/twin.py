"""The twin: the same kernels at sizes small enough for an interpreter, with everything that can go wrong kept.

Source and constexprs are the program's own.  Of each loop and each grid the twin keeps min(2, full) trips or more, of
heads two, of partials min(2, full); and what is ragged stays so, a last tile or slice that is not full, all of it or,
where sizes cannot keep it all at once, as much as they can.  What is full may become ragged: that tests more, and two
trips of a tile are had with one lane of the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.ir.realise import realise
from theodolite.ir.scope import LANES, power_of_two
from theodolite.ir.steps import For, KernelSteps, flatten, kernel_steps
from theodolite.ir.tree import Part, Tree, evaluate_size
from theodolite.ir.workload import Workload, causal_bound
from theodolite.lowering.lower import lower, twin
from theodolite.lowering.plan import Program
from theodolite.workloads import entry

LEAST_WIDTH = 16  # of a head: probes tell keys apart by their vectors
LEAST_LENGTH = 4  # of rows and keys
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Twin:
    """A program at small sizes, with the workload and the tree that it stands for."""

    program: Program
    workload: Workload
    tree: Tree


@dataclass(frozen=True)
class Cut:
    """How one kernel walks a rank: in `slices` (full and twin's), each in steps of `tile`."""

    tile: int
    slices: int
    twin_slices: int


def make_twin(tree: Tree, workload: Workload, program: Program) -> Twin:
    """The smallest twin that keeps what the docstring above promises.

    Raises Unsupported where the small program prints other kernels.
    """
    decisions = {k: min(v, 2) if k.split(".")[-1] == "split" else v for k, v in tree.decisions.items()}
    sizes = _sizes(tree, workload, decisions)
    small_workload = entry(workload.name).resize(workload, sizes)
    small_tree = replace(_shrunk(tree, workload, decisions), workload=small_workload.name)
    small = lower(small_tree, small_workload)
    lanes = {LANES + r: power_of_two(workload.ranks[r]) for r in sizes}
    small_tree = replace(small_tree, decisions={**small_tree.decisions, **lanes})
    return Twin(twin(program, small), small_workload, small_tree)


def _shrunk(tree: Tree, workload: Workload, decisions: Mapping[str, Any]) -> Tree:
    """The realised tree with fewer partials: its slices are the only decisions that it prints as numbers."""
    assert tree.mapping is not None
    # Fill loops above the kernel boundary differ with the sizes and are folded away; tiles and kernels do not.
    small = realise(replace(tree.mapping, decisions=decisions), workload)
    return replace(small, mapping=None)


def _sizes(tree: Tree, workload: Workload, decisions: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the twin's ranks: two heads, the least of every other rank that keeps loops and edges."""
    batch, walked = _ranks(tree, workload)
    sizes, heads = {}, 2
    for rank in batch:  # two heads in all: every further one costs as much as the first
        sizes[rank] = min(workload.ranks[rank], heads)
        heads //= sizes[rank]
    widths = _feature_ranks(workload)
    kept = {
        r: _kept(workload.ranks[r], cuts, LEAST_WIDTH if r in widths else LEAST_LENGTH)
        for r, cuts in _cuts(tree, workload, decisions, walked).items()
    }
    sizes |= {r: _best(edges) for r, edges in kept.items()}
    for einsum in workload.einsums:
        for column in walked:
            if bound := causal_bound(einsum, column):
                sizes |= _coupled_sizes(kept, bound[0], column, bound[1])
    return sizes


def _coupled_sizes(kept: Mapping[str, Ints], row: str, column: str, offset: int) -> dict[str, int]:
    """Under a mask that is aligned at the end: equal lengths stay equal, longer columns stay longer."""
    rows, columns = kept[row], kept[column]
    if offset == 0:
        both = np.where((rows < 0) | (columns < 0), -1, rows + columns)
        return {row: _best(both), column: _best(both)}
    least = _best(rows)
    longer = np.where(np.arange(len(columns)) > least, columns, -1)
    return {row: least, column: _best(longer)}


def _best(kept: Ints) -> int:
    """The smallest size that keeps the most edges; the full size keeps every trip, so there is one."""
    return int(np.argmax(kept))


def _ranks(tree: Tree, workload: Workload) -> tuple[list[str], list[str]]:
    """(batch ranks, innermost first; ranks that shrink): all but the widths that a kernel holds whole.

    Those are constexprs, which a twin shares.
    """
    features = _feature_ranks(workload)
    kernels = kernel_steps(tree, workload)
    batch = {x.rank for k in kernels for x in k.grid if x.tile == 1}
    whole = {r for k in kernels for h in k.homes for r in h.ranks if r in features and not _walks(k, r)}
    shrinking = [r for r in workload.ranks if r not in batch and r not in whole]
    return [r for r in reversed(list(workload.ranks)) if r in batch], shrinking


def _feature_ranks(workload: Workload) -> set[str]:
    """The contiguous ranks of inputs and outputs: the widths of heads."""
    return {workload.tensor(t).ranks[-1] for t in (*workload.inputs, *workload.outputs)}


def _walks(kernel: KernelSteps, rank: str) -> bool:
    """Whether a kernel has a loop over the rank, or tiles it by its grid: its extent is then a runtime argument."""
    tiled = any(rank == x.rank or (len(x.rank) > 1 and rank in x.rank) for x in kernel.grid)
    return tiled or any(isinstance(s, For) and s.loop.rank == rank for s in flatten(kernel.steps))


def _cuts(tree: Tree, workload: Workload, decisions: Mapping[str, Any], walked: list[str]) -> dict[str, list[Cut]]:
    """How every kernel walks each rank that shrinks."""
    out: dict[str, list[Cut]] = {r: [] for r in walked}
    for kernel in kernel_steps(tree, workload):
        slices = {x.rank: x.tile.key for x in kernel.grid if isinstance(x.tile, Part)}
        loops = [s.loop for s in flatten(kernel.steps) if isinstance(s, For)]
        for loop in (*kernel.grid, *loops):
            if loop.rank not in out or isinstance(loop.tile, Part):
                continue
            tile = int(evaluate_size(loop.tile, tree.decisions, workload.ranks[loop.rank]))
            key = slices.get(loop.rank)
            full, small = (int(tree.decisions[key]), int(decisions[key])) if key else (1, 1)
            out[loop.rank].append(Cut(tile, full, small))
    return out


def _kept(extent: int, cuts: list[Cut], least: int) -> Ints:
    """For each size from 0 to the extent: how many edges keep their raggedness; -1 where a loop loses trips."""
    sizes = np.arange(extent + 1)
    trips, edges = sizes >= min(extent, least), np.zeros(extent + 1, np.int64)
    for cut in cuts:
        slice_, twin_slice = -(-extent // cut.slices), -(-sizes // cut.twin_slices)
        edges += (extent % cut.slices == 0) | (sizes % cut.twin_slices > 0)
        trips &= -(-twin_slice // cut.tile) >= min(2, -(-slice_ // cut.tile))
        edges += (slice_ % cut.tile == 0) | (twin_slice % cut.tile > 0)
    return np.where(trips, edges, -1)
