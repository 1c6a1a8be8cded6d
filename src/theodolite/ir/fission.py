"""Fission: a LoopTree whose branches share loops, as one nest a kernel that `realise` covers.

Under AccelForge's view softmax is a copy, so that its trees may share a loop over keys between QK and softmax.  Under
the real cascade a row's maximum and sum are not complete there, and kernels cannot share a loop at all.  So each leaf
takes the loops on its path for itself:

    grid        what stands at or above the leaf's last Spatial, or its last off-chip storage where that is lower:
                loops over output ranks make CTAs, and a rank's last tile there is the CTA's
    slices      a reduction rank spread over SMs is cut into as many contiguous slices
    inner loop  any other loop over the reduction rank; its step is the tile that the CTA is left with
    whole rows  a leaf that computes a row's maximum or sum takes the row whole
    inside      loops below only walk a tile that the CTA takes whole
Tiles become decisions `LABEL.bRANK` and `LABEL.split`; every difference is a refinement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from theodolite.errors import RuleBroken, Unsupported
from theodolite.ir.soundness import read_too_early
from theodolite.ir.text import show_loops
from theodolite.ir.tree import (
    LEVELS,
    OFF_CHIP,
    Block,
    Compute,
    Key,
    Level,
    Loop,
    Node,
    Part,
    Refinement,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    evaluate_size,
    walk,
)
from theodolite.ir.workload import Einsum, Workload

WARPS, STAGES = 4, 2  # a LoopTree has none; these are taken, and said to be
LARGEST_CONTRACTION = 128  # a tile that stays in registers and shared memory; longer ones are walked


@dataclass(frozen=True)
class Step:
    """One node on the way from the root to a leaf; `shared` where other leaves hang below it too."""

    node: Node
    shared: bool


@dataclass(frozen=True)
class Leaf:
    """The way to one Compute."""

    path: tuple[Step, ...]
    compute: Compute


def is_standard(tree: Tree) -> bool:
    """Whether there is nothing to split: no Sequential, or one at the root whose branches are nests with a grid."""
    splits = [n for n in walk(tree.body) if isinstance(n, Sequential)]
    inner = [n for n in tree.body if not (isinstance(n, Storage) and n.level in OFF_CHIP)]
    return not splits or (inner == splits and all(_is_nest(b) for b in splits[0].branches))


def _is_nest(block: Block) -> bool:
    """Temporal loops, one Spatial with slices written as slices, on-chip storage below."""
    spatial = [i for i, n in enumerate(block) if isinstance(n, Spatial)]
    if len(spatial) != 1:
        return False
    return not any(isinstance(n, Storage) for n in block[: spatial[0]]) and not any(
        isinstance(n, Storage) and n.level in OFF_CHIP for n in block
    )


def leaves(block: Block, above: tuple[Step, ...] = ()) -> Iterator[Leaf]:
    """The leaves of a block of abstract nodes, in order."""
    path = above
    for node in block:
        match node:
            case Sequential(branches):
                shared = tuple(replace(s, shared=True) for s in path) if len(branches) > 1 else path
                for branch in branches:
                    yield from leaves(branch, shared)
            case Compute():
                yield Leaf(path, node)
            case Storage() | Temporal() | Spatial():
                path = (*path, Step(node, False))
            case _:
                raise Unsupported(f"{type(node).__name__.lower()} cannot be split into kernels of its own")


def fission(tree: Tree, workload: Workload) -> tuple[Tree, tuple[Refinement, ...]]:
    """(the same mapping, each leaf in a branch of its own; what changed).  Raises Unsupported where no rule fits."""
    found = list(leaves(tree.body))
    nests = [_Nest(leaf, tree, workload) for leaf in found]
    decisions: dict[str, Any] = {"warps": WARPS, "stages": STAGES, **tree.decisions, "gridfold": "yes"}
    for nest in nests:
        decisions |= nest.decisions
    top = _global_storage(tree, workload)
    body: Block = (*top, Sequential(tuple(nest.block for nest in nests)))
    broken = unsound(tree, workload)
    if broken and "view" not in tree.decisions:
        raise RuleBroken(f"{broken}; a tree made under a view that folds this away says view=NAME in its decisions")
    complete = Refinement("complete-first", f"{broken}; each reduction ends before it is read") if broken else None
    notes = [r for r in (_shared_note(found, nests), complete, *(n for nest in nests for n in nest.notes)) if r]
    if "warps" not in tree.decisions:
        reason = f"a LoopTree has no warps and stages; {WARPS} and {STAGES} are taken"
        notes.append(Refinement("defaults", reason))
    return replace(tree, decisions=decisions, body=body), tuple(dict.fromkeys(notes))


def unsound(tree: Tree, workload: Workload) -> str | None:
    """The rule that a tree breaks under the real cascade, in words; None for a sound one."""
    for early in read_too_early(tree, workload):
        return f"rule complete-before-read: {early.reader} reads {early.tensor} under a shared loop over {early.rank}"
    return None


def _global_storage(tree: Tree, workload: Workload) -> list[Storage]:
    """Inputs and outputs at HBM; each intermediate at the outermost level where it waits."""
    ends = (*workload.inputs, *workload.outputs)
    waits: dict[str, Level] = {}
    for node in walk(tree.body):
        if isinstance(node, Storage):
            for tensor in node.tensors:
                if tensor not in ends and tensor not in waits:
                    waits[tensor] = node.level
    by_level = {level: tuple(t for t, at in waits.items() if at == level) for level in LEVELS}
    top = [Storage("HBM", (*ends, *by_level["HBM"]))]
    for level in ("L2", "SMEM"):
        if by_level[level]:
            top.append(Storage("L2", by_level[level]))
    return top


def _shared_note(found: list[Leaf], nests: list[_Nest]) -> Refinement | None:
    shared: list[str] = []
    for leaf in found:
        loops = [show_loops(s.node.loops) for s in leaf.path if s.shared and isinstance(s.node, Temporal)]
        shared = loops if len(loops) > len(shared) else shared
    if not shared:
        return None
    names = ", ".join(nest.label for nest in nests)
    together = " ".join(shared)
    reason = f"the shared loops {together} are run by {names} each alone; what they hand over grows to whole tensors"
    return Refinement("fission", reason)


class _Nest:
    """One leaf as a branch of its own."""

    def __init__(self, leaf: Leaf, tree: Tree, workload: Workload) -> None:
        self.leaf, self.tree, self.workload = leaf, tree, workload
        self.einsums = [workload.einsum(e) for e in leaf.compute.einsums]
        last = leaf.compute.einsums[-1]
        self.label = workload.labels.get(last, last.lower())
        self.decisions: dict[str, Any] = {}
        self.notes: list[Refinement] = []
        self.boundary = self._boundary()
        self.tiles = self._tiles(self.boundary)
        contraction = self._only_contraction()
        self.block = self._contraction(contraction) if contraction else self._rows()

    def _only_contraction(self) -> Einsum | None:
        """The leaf's contraction, None for a leaf of row steps; Unsupported for a leaf that is neither, or both."""
        found = [e for e in self.einsums if e.map == "mul" and e.reduce == "sum" and len(e.reduced) == 1]
        rest = [e for e in self.einsums if e not in found]
        folded = all(e.map == "div" and e.inputs[0].tensor == found[0].name for e in rest) if found else False
        if len(found) == 1 and folded:
            return found[0]
        if not found and any(e.reduced for e in rest) and all(e.map in ("copy", "exp_sub") for e in rest):
            return None
        names = " ".join(e.name for e in self.einsums)
        raise Unsupported(f"fission has no rule for a leaf that computes {names}: one contraction, or a row's steps")

    # ---- reading the path ----
    def _boundary(self) -> int:
        """How many steps stand at or above the kernel's grid."""
        path = self.leaf.path
        marks = [i for i, s in enumerate(path) if isinstance(s.node, Spatial)]
        marks += [i for i, s in enumerate(path) if isinstance(s.node, Storage) and s.node.level in OFF_CHIP]
        return max(marks, default=-1) + 1

    def _loops(self, steps: tuple[Step, ...]) -> Iterator[tuple[Loop, Node]]:
        for step in steps:
            if isinstance(step.node, (Temporal, Spatial)):
                for loop in step.node.loops:
                    yield loop, step.node

    def _tiles(self, end: int) -> dict[str, int]:
        """The last tile of each rank among the first `end` steps."""
        out: dict[str, int] = {}
        for loop, _ in self._loops(self.leaf.path[:end]):
            out[loop.rank] = int(evaluate_size(loop.tile, self.tree.decisions, self.workload.ranks[loop.rank]))
        return out

    def _spread(self, rank: str) -> int:
        """Over how many SMs a rank is spread."""
        inside, units = self.workload.ranks[rank], 1
        for loop, node in self._loops(self.leaf.path):
            if loop.rank == rank:
                tile = int(evaluate_size(loop.tile, self.tree.decisions, self.workload.ranks[rank]))
                units *= -(-inside // tile) if isinstance(node, Spatial) else 1
                inside = tile
        return units

    # ---- building the branch ----
    def _batch(self, einsum: Einsum) -> list[str]:
        """Ranks that every access has: heads, of which a CTA takes one."""
        batch = [r for r in einsum.output.ranks if all(r in a.ranks for a in einsum.inputs)]
        for rank in batch:
            if self.tiles.get(rank, self.workload.ranks[rank]) > 1 and self.workload.ranks[rank] > 1:
                self.notes.append(Refinement("batch", f"a CTA of {self.label} takes one {rank}, not several in turn"))
        return batch

    def _hole(self, rank: str, size: int) -> Key:
        key = f"{self.label}.b{rank}"
        self.decisions[key] = size
        return Key(key)

    def _grid(self, batch: list[str], output: tuple[str, ...], keep_whole: str | None) -> list[Loop]:
        loops = [Loop(r, 1) for r in batch]
        for rank in output:
            tile = self.tiles.get(rank)
            if rank in batch or rank == keep_whole or tile is None or tile == self.workload.ranks[rank]:
                continue
            loops.append(Loop(rank, self._hole(rank, tile)))
        return loops

    def _contraction(self, einsum: Einsum) -> Block:
        (rank,) = einsum.reduced
        batch = self._batch(einsum)
        output = einsum.output.ranks
        grid = self._grid(batch, output, None)
        if not any(r in (x.rank for x in grid) for r in output if r not in batch):
            first = next(r for r in output if r not in batch)
            grid.append(Loop(first, self._hole(first, self.workload.ranks[first])))  # one tile: rows need a loop
        slices = self._spread(rank)
        if slices > 1:
            self.decisions[f"{self.label}.split"] = slices
            grid.append(Loop(rank, Part(rank, f"{self.label}.split")))
            if any(x.rank == rank and isinstance(n, Temporal) for x, n in self._loops(self.leaf.path[: self.boundary])):
                reason = f"the {slices} slices of {rank} in {self.label} are contiguous, not interleaved"
                self.notes.append(Refinement("slices", reason))
        step = self._step(rank, slices)
        inputs = tuple(a.tensor for a in einsum.inputs)
        held = self.leaf.compute.einsums[0]
        return (
            Spatial(tuple(grid), "SM"),
            Storage("RF", (held,)),
            Temporal((Loop(rank, self._hole(rank, step)),)),
            Storage("SMEM", inputs),
            Compute(self.leaf.compute.einsums, "mma"),
        )

    def _step(self, rank: str, slices: int) -> int:
        """The contraction tile: what the grid leaves, else the innermost loop that refills shared memory, else all."""
        if rank in self.tiles:
            return self.tiles[rank]
        path = self.leaf.path
        for i in range(len(path) - 1, self.boundary - 1, -1):
            below = path[i + 1 :]
            node = path[i].node
            if isinstance(node, Temporal) and any(isinstance(s.node, Storage) for s in below):
                for loop in node.loops:
                    if loop.rank == rank:
                        return int(evaluate_size(loop.tile, self.tree.decisions, self.workload.ranks[rank]))
        whole = 1 << max(math.ceil(self.workload.ranks[rank] / slices) - 1, 0).bit_length()
        if whole > LARGEST_CONTRACTION:
            reason = f"{rank} of {self.label} is walked {LARGEST_CONTRACTION} at a time: a tile of {whole} has no room"
            self.notes.append(Refinement("contraction", reason))
        return min(whole, LARGEST_CONTRACTION)

    def _rows(self) -> Block:
        """A leaf that reduces a row: the row stays whole, whatever loops walk it."""
        first = self.einsums[0]
        reduced = {r for e in self.einsums for r in e.reduced}
        batch = [r for r in first.output.ranks if r not in reduced and self._is_batch(r)]
        rows = [r for r in first.output.ranks if r not in batch]
        if any(x.rank in reduced for x, _ in self._loops(self.leaf.path)):
            ranks = " ".join(sorted(reduced))
            reason = f"{self.label} takes {ranks} whole: its maximum and sum need it"
            self.notes.append(Refinement("whole-rows", reason))
        loops = [Loop(r, 1) for r in batch]
        loops += [Loop(r, self._hole(r, self.tiles.get(r, 1))) for r in rows]
        made = tuple(self.leaf.compute.einsums)
        sources = tuple(a.tensor for e in self.einsums for a in e.inputs if a.tensor not in made)
        values = dict.fromkeys((*sources, *(e for e in made if self.workload.einsum(e).map == "exp_sub"), *made))
        return (Spatial(tuple(loops), "SM"), Storage("RF", tuple(values)), Compute(made, "simd"))

    def _is_batch(self, rank: str) -> bool:
        """A rank of every tensor of the cascade that has rows: heads, not rows."""
        return all(rank in t.ranks for t in self.workload.tensors)
