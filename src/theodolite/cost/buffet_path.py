"""An abstract tree as AccelForge sees it: for each Einsum of a view, the path from the root to its leaf.

The view renames and drops tensors; a level becomes the memory that holds it.  What AccelForge has no words for raises
Infeasible here, with the reason.

A tree is read in one of two ways.  *Literally* it says what AccelForge's own file would: each loop is a loop, and a
tensor may start in any memory.  Otherwise it is a mapping for a GPU: a loop of one trip is no loop, a tensor waits in a
memory once, and inputs and outputs start in the outermost one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from theodolite.errors import Infeasible, UnknownName
from theodolite.gpus.hierarchy import ComputeUnit, Hierarchy, Machine, machine_of
from theodolite.ir.tree import (
    Block,
    Compute,
    HostLoop,
    Interleaved,
    Kernel,
    Sequential,
    Size,
    Spatial,
    Storage,
    Temporal,
)
from theodolite.ir.tree import Workspace as WorkspaceNode
from theodolite.ir.workload import Access, View, ViewEinsum, Workload

Address = tuple[int, ...]  # where a node stands in the tree: paths share a loop exactly where they share its address


@dataclass(frozen=True)
class Hold:
    """From here on the tensor (the view's name) waits in that memory."""

    at: Address
    tensor: str
    memory: str


@dataclass(frozen=True)
class Trip:
    """One loop; `owner` is the node over whose fanout (`dim`) it is spread, None for a temporal one."""

    at: Address
    rank: str
    tile: Size
    owner: str | None
    dim: str | None = None


@dataclass(frozen=True)
class Path:
    """Root to leaf of one Einsum of the view.  `ranks` has the tensors that it touches, its output last."""

    einsum: ViewEinsum
    ranks: Mapping[str, tuple[str, ...]]
    steps: tuple[Hold | Trip, ...]
    unit: ComputeUnit
    machine: Hierarchy
    literal: bool = False

    @property
    def looped(self) -> tuple[str, ...]:
        """The ranks that its tensors have."""
        return tuple(dict.fromkeys(r for ranks in self.ranks.values() for r in ranks))

    def holders(self, tensor: str) -> tuple[Hold, ...]:
        """Where a tensor waits, outermost first."""
        return tuple(s for s in self.steps if isinstance(s, Hold) and s.tensor == tensor)

    def loops_above(self, hold: Hold) -> tuple[Address, ...]:
        """The loops that stand above a storage, by address."""
        return tuple(s.at for s in self.steps[: self.steps.index(hold)] if isinstance(s, Trip))


_Above = tuple[tuple[Address, Storage | Temporal | Spatial], ...]


def paths(body: Block, workload: Workload, view: View, machine: Machine, *, literal: bool = False) -> tuple[Path, ...]:
    """The paths of the view's Einsums in the order in which the tree computes them.

    Raises Infeasible for a tree that AccelForge cannot say, UnknownName for a rank, tensor or Einsum that does not
    exist, both with a one-line reason.
    """
    found: dict[str, Path] = {}
    members: dict[str, tuple[str, ...]] = {}
    for above, leaf in _leaves(body, (), ()):
        path = _path(above, leaf, workload, view, machine, literal)
        name = path.einsum.name
        if name in found and (found[name].steps, found[name].unit) != (path.steps, path.unit):
            raise Infeasible(f"{name} is computed in two places: AccelForge has one leaf an Einsum")
        found[name] = path
        members[name] = members.get(name, ()) + leaf.einsums
    for einsum in view.einsums:
        if sorted(members.get(einsum.name, ())) != sorted(einsum.members):
            raise Infeasible(f"{einsum.name} must compute {' '.join(einsum.members)}, each once, in one leaf")
    _check_backing(tuple(found.values()), workload)
    return tuple(found.values())


def inexpressible(body: Block, workload: Workload, view: View, machine: Machine) -> str | None:
    """Why AccelForge has no words for a tree, or None where it has."""
    try:
        paths(body, workload, view, machine)
    except Infeasible as error:
        return str(error)
    return None


def _leaves(block: Block, above: _Above, at: Address) -> Iterator[tuple[_Above, Compute]]:
    """Each Compute with the storages and loops that hold for it."""
    for i, node in enumerate(block):
        match node:
            case Storage() | Temporal() | Spatial():
                above = (*above, ((*at, i), node))
            case Compute():
                yield above, node
            case Sequential(branches):
                for j, branch in enumerate(branches):
                    yield from _leaves(branch, above, (*at, i, j))
            case Interleaved(rank):
                raise Infeasible(f"interleaved over {rank}: no counterpart in AccelForge")
            case Kernel() | HostLoop() | WorkspaceNode():
                raise Infeasible(
                    f"{type(node).__name__} belongs to a realised tree: count the mapping that it came from"
                )


def _path(above: _Above, leaf: Compute, workload: Workload, view: View, machine: Machine, literal: bool) -> Path:
    einsums = {view.einsum_of(member).name: view.einsum_of(member) for member in leaf.einsums}
    if len(einsums) != 1:
        raise Infeasible(f"compute {' '.join(leaf.einsums)}: AccelForge has one Einsum a leaf, not {' '.join(einsums)}")
    einsum = next(iter(einsums.values()))
    hierarchy = machine_of(machine, einsum.name)
    ranks = _ranks(einsum, workload)
    unit = hierarchy.compute(leaf.unit)
    if unit.tensors is not None and len(ranks) != unit.tensors:
        raise Infeasible(f"{einsum.name} on {unit.name}: it takes Einsums of {unit.tensors} tensors, not {len(ranks)}")
    steps: list[Hold | Trip] = []
    for at, node in above:
        if isinstance(node, Storage):
            steps += _holds(at, node, steps, ranks, workload, view, hierarchy, literal)
        else:
            dim = node.dim if isinstance(node, Spatial) else None
            owner = hierarchy.owner(dim).name if dim is not None else None
            steps += [
                Trip((*at, i), _one(loop.rank, workload), loop.tile, owner, dim) for i, loop in enumerate(node.loops)
            ]
    _check_depth(einsum, steps, unit, hierarchy)
    return Path(einsum, ranks, tuple(steps), unit, hierarchy, literal)


def _check_depth(einsum: ViewEinsum, steps: list[Hold | Trip], unit: ComputeUnit, hierarchy: Hierarchy) -> None:
    """What an Einsum uses stands above its unit: AccelForge's chain ends there."""
    for step in steps:
        node = step.memory if isinstance(step, Hold) else step.owner
        if node is not None and hierarchy.depth(node) > hierarchy.depth(unit.name):
            raise Infeasible(f"{einsum.name} uses {node}, which stands below {unit.name}")


def _holds(
    at: Address,
    node: Storage,
    above: list[Hold | Trip],
    ranks: Mapping[str, tuple[str, ...]],
    workload: Workload,
    view: View,
    hierarchy: Hierarchy,
    literal: bool,
) -> list[Hold]:
    """A Storage as one Hold a tensor that the Einsum touches.

    A tensor that waits in that memory already is left out: registers are dropped, so that what a tree keeps in RF
    below SMEM is in SharedMemory once.  Read literally it is an error, as it is for AccelForge.
    """
    wanted: dict[str, int] = {}  # each with its place in the storage
    for i, name in enumerate(node.tensors):
        workload.tensor(name)  # UnknownName for a tensor that does not exist
        tensor = view.tensor(name)
        if tensor is not None and tensor in ranks:
            wanted.setdefault(tensor, i)
    if not wanted:
        return []  # the Einsum may lack the memory, too
    memory = hierarchy.holding(node.level).name
    known = {s.tensor: s.memory for s in above if isinstance(s, Hold)}  # the innermost so far
    out: dict[str, Hold] = {}
    for tensor, i in wanted.items():
        if known.get(tensor) == memory:
            if literal:
                raise Infeasible(f"{tensor} waits at {memory} twice on the way to one Einsum")
            continue
        if tensor in known and hierarchy.depth(known[tensor]) > hierarchy.depth(memory):
            raise Infeasible(f"{tensor} waits at {memory} below {known[tensor]}: storages of a tensor go inward")
        out[tensor] = Hold((*at, i), tensor, memory)
    return list(out.values())


def _ranks(einsum: ViewEinsum, workload: Workload) -> dict[str, tuple[str, ...]]:
    """The ranks that index each tensor of a view's Einsum, as its members access it."""
    seen: dict[str, Access] = {}
    for member in (workload.einsum(m) for m in einsum.members):
        for access in (*member.inputs, member.output):
            if seen.setdefault(access.tensor, access) != access:
                raise Infeasible(f"{einsum.name} reads {access.tensor} in two ways: no counterpart in AccelForge")
            if not all(isinstance(index, str) for index in access.indices):
                raise Infeasible(f"{access.tensor} is gathered through a tensor: no counterpart in AccelForge")
    wanted = (*einsum.inputs, einsum.output)
    missing = [t for t in wanted if t not in seen]
    if missing:
        raise UnknownName(f"{einsum.name} of the view names {missing[0]!r}, which none of its members touches")
    return {t: seen[t].ranks for t in wanted}


def _one(rank: str, workload: Workload) -> str:
    if workload.flat(rank) != (rank,):
        raise Infeasible(f"a loop over {rank}: AccelForge loops over one rank at a time; write one loop a rank")
    return rank


def _check_backing(found: tuple[Path, ...], workload: Workload) -> None:
    """Every tensor waits somewhere; what enters or leaves the workload, in the outermost memory; a handoff, in one."""
    backing: dict[str, tuple[object, ...]] = {}
    for path in found:
        outermost = path.machine.memories[0].name
        for tensor in path.ranks:
            holders = path.holders(tensor)
            if not holders:
                raise Infeasible(f"{tensor} waits nowhere above {path.einsum.name}: give it a storage")
            first = holders[0]
            at_edge = tensor in (*workload.inputs, *workload.outputs)
            if at_edge and first.memory != outermost and not path.literal:
                raise Infeasible(f"{tensor} starts at {first.memory}: it enters or leaves at {outermost}")
            place = (first.memory, path.loops_above(first)) if path.literal else (first.at,)
            if backing.setdefault(tensor, place) != place:
                raise Infeasible(f"{tensor} is handed over nowhere: store it above the steps that share it")
