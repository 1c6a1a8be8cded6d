"""What makes a tree valid: named rules, in order, for each stage.

A rule yields what it objects to; the first objection raises RuleBroken with the rule's name and the node with its
neighbourhood.  A new rule is one new entry in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from theodolite.errors import RuleBroken, UnknownName
from theodolite.ir.carries import update_of
from theodolite.ir.soundness import read_too_early
from theodolite.ir.text import show_node, show_size
from theodolite.ir.tree import (
    OFF_CHIP,
    Block,
    Compute,
    HostLoop,
    Interleaved,
    Kernel,
    Key,
    Loop,
    Node,
    Part,
    Size,
    Spatial,
    Stage,
    Storage,
    Temporal,
    Tree,
    Workspace,
    blocks_of,
    computed,
    evaluate_size,
    walk,
)
from theodolite.ir.workload import Workload

SLICES = "split"
LARGEST_SIZE = 2**31 - 1
# Decisions that no hole of a tree reads, with their domains
DECISIONS: Mapping[str, tuple[Any, ...]] = {
    "warps": (1, 2, 4, 8, 16, 32),
    "stages": (1, 2, 3, 4, 5, 6, 7, 8),
    "gridfold": ("yes", "no"),
    "view": ("accelforge",),
}


@dataclass(frozen=True)
class Objection:
    """What a rule has against a tree; `node` is None where it is the tree as a whole."""

    what: str
    node: Node | None = None


@dataclass(frozen=True)
class Rule:
    """`find` yields objections; `stages` says which trees the rule is for."""

    name: str
    stages: tuple[Stage, ...]
    find: Callable[[Tree, Workload, int], Iterator[Objection]]


def check(tree: Tree, workload: Workload, sms: int) -> None:
    """Raise RuleBroken for the first rule that the tree breaks; `sms` bounds an abstract Spatial."""
    for rule in RULES:
        if tree.stage in rule.stages:
            for objection in rule.find(tree, workload, sms):
                where = f" (at {_neighbourhood(tree.body, objection.node)})" if objection.node else ""
                raise RuleBroken(f"rule {rule.name}: {objection.what}{where}")


def _neighbourhood(block: Block, node: Node | None) -> str:
    """The node between the lines above and below it."""
    lines = list(walk(block))
    at = next((i for i, n in enumerate(lines) if n is node), None)
    if at is None:
        return ""
    return " > ".join(f"[{show_node(n)}]" if n is node else show_node(n) for n in lines[max(at - 1, 0) : at + 2])


def _loops(node: Node) -> tuple[Loop, ...]:
    match node:
        case Temporal(loops) | Spatial(loops):
            return loops
        case HostLoop(loop):
            return (loop,)
        case _:
            return ()


# ---- rules for both stages ---------------------------------------------------------------------------------------
def known_names(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Ranks, tensors and Einsums are the workload's (a realised tree has workspaces and slices besides)."""
    spaces = {w.name for w in tree.workspaces}
    tensors = {t.name for t in workload.tensors} | spaces
    einsums = {e.name for e in workload.einsums}
    for node in walk(tree.body):
        for loop in _loops(node):
            if not (tree.stage == "realised" and loop.rank == SLICES) and not _is_rank(loop.rank, tree, workload):
                yield Objection(f"unknown rank {loop.rank!r}; {workload.name} has {' '.join(workload.ranks)}", node)
        match node:
            case Storage(_, names) | Interleaved(_, names):
                yield from (Objection(f"unknown tensor {n!r}", node) for n in names if n not in tensors)
            case Compute(names, _):
                yield from (Objection(f"unknown Einsum {n!r}", node) for n in names if n not in einsums)
            case _:
                pass


def _is_rank(rank: str, tree: Tree, workload: Workload) -> bool:
    if tree.stage == "abstract":
        return rank in workload.ranks
    try:
        workload.flat(rank)
    except UnknownName:
        return False
    return True


def holes_filled(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Every hole has a decision, and it is a whole number from 1."""
    for node in walk(tree.body):
        sizes: list[Size] = [loop.tile for loop in _loops(node)]
        if isinstance(node, Kernel):
            sizes += [node.warps, node.stages]
        for size in sizes:
            key = size.name if isinstance(size, Key) else size.key if isinstance(size, Part) else None
            if key is None:
                continue
            value = tree.decisions.get(key)
            if not isinstance(value, int) or value < 1:
                yield Objection(f"the hole {show_size(size)} wants a decision {key}=NUMBER from 1, not {value}", node)
        for loop in _loops(node):
            if isinstance(loop.tile, Part) and loop.tile.rank != loop.rank:
                yield Objection(f"a loop over {loop.rank} cannot step by a slice of {loop.tile.rank}", node)


def computed_once(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Every Einsum is computed, and by an abstract tree exactly once."""
    made = computed(tree.body)
    for einsum in workload.einsums:
        times = made.count(einsum.name)
        folded = tree.stage == "realised" and times == 0 and _folded(einsum.name, made, workload)
        if times == 0 and not folded:
            yield Objection(f"Einsum {einsum.name} is never computed")
        if times > 1 and tree.stage == "abstract":
            yield Objection(f"Einsum {einsum.name} is computed {times} times")


def _folded(name: str, made: tuple[str, ...], workload: Workload) -> bool:
    """A numerator that a division yields at once, its weights having come divided."""
    return any(e.map == "div" and e.inputs[0].tensor == name and e.name in made for e in workload.einsums)


def carries_legal(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Interleaved carries only what a known homomorphism updates, and all that is reduced over its rank."""
    for node in walk(tree.body):
        if not isinstance(node, Interleaved) or node.rank == SLICES:
            continue
        for tensor in node.carries:
            try:
                update_of(workload, tensor, node.rank)
            except RuleBroken as error:
                yield Objection(str(error), node)
        for name in computed(node.body):
            if node.rank in workload.einsum(name).reduced and name not in node.carries:
                yield Objection(f"{name} is reduced over {node.rank} and not carried", node)


def made_before_read(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """An Einsum is computed after what it reads, within a compute from left to right."""
    made = set(workload.inputs)
    for node in walk(tree.body):
        if not isinstance(node, Compute):
            continue
        for name in node.einsums:
            for access in workload.einsum(name).inputs:
                if access.tensor not in made:
                    yield Objection(f"{name} reads {access.tensor}, which is not computed yet", node)
            made.add(name)


def decisions_make_sense(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Every decision is one that something reads, in its domain."""
    holes = {s.name if isinstance(s, Key) else s.key for n in walk(tree.body) for s in _holes(n)}
    for key, value in tree.decisions.items():
        if key in DECISIONS:
            if value not in DECISIONS[key]:
                yield Objection(f"{key}={value} is none of {', '.join(str(v) for v in DECISIONS[key])}")
        elif key not in holes:
            yield Objection(f"nothing in the tree reads the decision {key}")
        elif isinstance(value, int) and value > LARGEST_SIZE:
            yield Objection(f"{key}={value} is above {LARGEST_SIZE}")


def _holes(node: Node) -> list[Key | Part]:
    return [loop.tile for loop in _loops(node) if not isinstance(loop.tile, int)]


def units_fit(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """The tensor cores take contractions and nothing else, and spatial loops stand on SMs."""
    for node in walk(tree.body):
        if isinstance(node, Compute):
            einsums = [workload.einsum(e) for e in node.einsums]
            contraction = any(e.map == "mul" and e.reduce == "sum" for e in einsums)
            if contraction != (node.unit == "mma"):
                unit = "mma" if contraction else "simd"
                yield Objection(f"{' '.join(node.einsums)} runs on {unit}, not on {node.unit}", node)
        if isinstance(node, Spatial) and node.dim != "SM":
            yield Objection(f"a spatial loop stands on SM, not on {node.dim}", node)


# ---- abstract trees ----------------------------------------------------------------------------------------------
def tiles_shrink(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """A loop over a rank that another loop already tiles steps by no more than that tile.

    A slice is no tile: its length follows from the rank, and lanes of a tile beyond its end are masked.
    """

    def below(block: Block, tiles: Mapping[str, int]) -> Iterator[Objection]:
        inside = dict(tiles)
        for node in block:
            for loop in _loops(node):
                size = int(evaluate_size(loop.tile, tree.decisions, workload.ranks[loop.rank]))
                if size > inside.get(loop.rank, size):
                    yield Objection(f"the tile of {loop.rank} grows from {inside[loop.rank]} to {size}", node)
                if isinstance(loop.tile, Part):
                    inside.pop(loop.rank, None)
                else:
                    inside[loop.rank] = size
            for nested in blocks_of(node):
                yield from below(nested, inside)

    yield from below(tree.body, {})


def fanout_fits(tree: Tree, workload: Workload, sms: int) -> Iterator[Objection]:
    """The spatial loops on the SMs make no more units than there are SMs."""

    def below(block: Block, tiles: Mapping[str, Any], units: int) -> Iterator[Objection]:
        inside, used = dict(tiles), units
        for node in block:
            for loop in _loops(node):
                extent = workload.ranks[loop.rank]
                tile = int(evaluate_size(loop.tile, tree.decisions, extent))
                if isinstance(node, Spatial) and node.dim == "SM":
                    used *= -(-inside.get(loop.rank, extent) // tile)
                inside[loop.rank] = tile
            if isinstance(node, Spatial) and used > sms:
                yield Objection(f"{used} units on SM, of which there are {sms}", node)
            for nested in blocks_of(node):
                yield from below(nested, inside, used)

    yield from below(tree.body, {}, 1)


def ends_off_chip(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """Inputs and outputs wait at HBM, above every other storage of theirs."""
    outermost: dict[str, Storage] = {}
    for node in walk(tree.body):
        if isinstance(node, Storage):
            for tensor in node.tensors:
                outermost.setdefault(tensor, node)
    for tensor in (*workload.inputs, *workload.outputs):
        if tensor not in outermost:
            yield Objection(f"{tensor} needs storage at HBM")
        elif outermost[tensor].level != "HBM":
            yield Objection(f"{tensor} needs storage at HBM above this", outermost[tensor])


def complete_before_read(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """A value is read under a shared loop over one of its producer's reduction ranks only where that loop carries it.

    The rule that AccelForge lacks: it prices, and its mapper returns, trees that use a row maximum before it is
    complete.  A tree that says `view=NAME` is held to that view's Einsums: `fission` completes what it folds away.
    """
    folded = _folded_tensors(tree, workload)
    for early in read_too_early(tree, workload):
        if early.tensor not in folded:
            what = f"{early.reader} reads {early.tensor} under a shared loop over {early.rank}, "
            yield Objection(what + f"over which {early.tensor} is not complete yet", early.node)


def _folded_tensors(tree: Tree, workload: Workload) -> set[str]:
    """The tensors that the tree's view has no words for; none where the tree names no view."""
    if "view" not in tree.decisions:
        return set()
    view = workload.view(str(tree.decisions["view"]))
    return {t.name for t in workload.tensors if view.tensor(t.name) is None}


# ---- realised trees ----------------------------------------------------------------------------------------------
def kernels_whole(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """There are kernels, differently named; global storage stands above them alone, on-chip storage below."""
    names = [k.name for k in tree.kernels]
    if not names:
        yield Objection("a realised tree holds at least one kernel")
    if len(set(names)) < len(names):
        yield Objection(f"two kernels share a name: {' '.join(names)}")
    for node in tree.body:
        if isinstance(node, Storage) and node.level not in OFF_CHIP:
            yield Objection("on-chip storage stands above a kernel", node)
        if not isinstance(node, (Storage, Workspace, HostLoop, Kernel)):
            yield Objection("only storage, workspaces, host loops and kernels stand outside kernels", node)
    for kernel in tree.kernels:
        for node in walk(kernel.body):
            if isinstance(node, Storage) and node.level in OFF_CHIP:
                yield Objection("global storage stands inside a kernel", node)


def grids_ordered(tree: Tree, workload: Workload, _: int) -> Iterator[Objection]:
    """A kernel's order names each rank of its grid, once."""
    for kernel in tree.kernels:
        grid = [x.rank for n in kernel.body if isinstance(n, Spatial) and n.dim == "grid" for x in n.loops]
        spelled = [r for rank in grid for r in workload.flat(rank)]
        if sorted(spelled) != sorted(kernel.order):
            yield Objection(
                f"order={','.join(kernel.order)} does not name the grid's ranks {' '.join(spelled)}", kernel
            )


RULES = (
    Rule("known-names", ("abstract", "realised"), known_names),
    Rule("holes-filled", ("abstract", "realised"), holes_filled),
    Rule("decisions-make-sense", ("abstract",), decisions_make_sense),
    Rule("tiles-shrink", ("abstract",), tiles_shrink),
    Rule("fanout-fits", ("abstract",), fanout_fits),
    Rule("ends-off-chip", ("abstract",), ends_off_chip),
    Rule("computed-once", ("abstract", "realised"), computed_once),
    Rule("made-before-read", ("abstract",), made_before_read),
    Rule("carries-legal", ("abstract", "realised"), carries_legal),
    Rule("complete-before-read", ("abstract",), complete_before_read),
    Rule("units-fit", ("abstract",), units_fit),
    Rule("kernels-whole", ("realised",), kernels_whole),
    Rule("grids-ordered", ("realised",), grids_ordered),
)
