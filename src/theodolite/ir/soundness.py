"""Which values a tree reads before they are complete.

A reduction is complete once the loops over its rank have ended.  A reader below one of those loops comes too early,
unless that loop carries the tensor: then the table of carries says how what was read is put right.

    shared   a loop holds for the rest of its block, and all leaves there share it.  In a tree made under a view, which
             is another model's, only those do that hand each other a tensor which waits below the loop, and those that
             these share it with.  A leaf that shares a loop with nobody runs it for one Einsum after the other, each
             over its whole row.
    one trip is no loop.
    spatial  a rank spread over SMs counts like a loop, except for a tensor that an Interleaved below carries: its
             slices become partials, which are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from theodolite.ir.tree import (
    Block,
    Compute,
    Interleaved,
    Node,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    evaluate_size,
)
from theodolite.ir.workload import Workload


@dataclass(frozen=True)
class Early:
    """`reader` reads `tensor` below a loop over `rank`, over which it is not complete; `node` is where they meet."""

    reader: str
    tensor: str
    rank: str
    node: Node


@dataclass(frozen=True)
class _Above:
    """A node above a leaf; `ranks` are those that it loops over more than once."""

    node: Node
    ranks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Leaf:
    compute: Compute
    above: tuple[_Above, ...]

    def stored_at(self, tensor: str) -> int:
        """How many nodes stand above the place where a tensor waits; past all of them where it has none."""
        places = (n for n, a in enumerate(self.above) if isinstance(a.node, Storage) and tensor in a.node.tensors)
        return next(places, len(self.above))

    def place(self, node: Node) -> int | None:
        """How many nodes stand above one that is above the leaf; None where it is not."""
        return next((n for n, a in enumerate(self.above) if a.node is node), None)


def read_too_early(tree: Tree, workload: Workload) -> Iterator[Early]:
    """Every value that an abstract tree reads too early, in the order of the producers."""
    found = list(_leaves(tree.body, (), tree, workload))
    viewed = "view" in tree.decisions
    for producer in found:
        for name in producer.compute.einsums:
            for reader in found:
                readers = [e for e in reader.compute.einsums if name in (a.tensor for a in workload.einsum(e).inputs)]
                if readers and not _accumulates_alone(name, workload):
                    both = _both(producer, reader, found, workload, viewed)
                    ranks = _incomplete(name, producer, both, workload)
                    yield from (Early(e, name, ranks[0], _meeting(both, reader)) for e in readers if ranks)


def _leaves(block: Block, above: tuple[_Above, ...], tree: Tree, workload: Workload) -> Iterator[_Leaf]:
    """The leaves of a block, in order."""
    for node in block:
        match node:
            case Compute():
                yield _Leaf(node, above)
            case Temporal() | Spatial():
                above = (*above, _Above(node, frozenset(_looped(node, above, tree, workload))))
            case Interleaved(rank=rank, body=body):
                yield from _leaves(body, (*above, _Above(node, frozenset({rank}))), tree, workload)
            case Sequential(branches):
                for branch in branches:
                    yield from _leaves(branch, (*above, _Above(node)), tree, workload)
            case _:
                above = (*above, _Above(node))


def _looped(node: Temporal | Spatial, above: tuple[_Above, ...], tree: Tree, workload: Workload) -> Iterator[str]:
    """The ranks that a node loops over more than once; so does a hole that nothing fills."""
    for loop in node.loops:
        if loop.rank not in workload.ranks:
            continue  # another rule's
        whole = workload.ranks[loop.rank]
        loops = [x for a in above if isinstance(a.node, (Temporal, Spatial)) for x in a.node.loops]
        outer = [x.tile for x in loops if x.rank == loop.rank]
        try:
            extent = evaluate_size(outer[-1], tree.decisions, whole) if outer else whole
            if evaluate_size(loop.tile, tree.decisions, whole) < extent:
                yield loop.rank
        except KeyError:
            yield loop.rank


def _both(a: _Leaf, b: _Leaf, leaves: list[_Leaf], workload: Workload, viewed: bool) -> list[_Above]:
    """The nodes that two leaves share; of one leaf, those that it shares with any other."""
    return [x for x in a.above if len(group := _sharing(x.node, a, leaves, workload, viewed)) > 1 and b in group]


def _sharing(node: Node, leaf: _Leaf, leaves: list[_Leaf], workload: Workload, viewed: bool) -> list[_Leaf]:
    """The leaf and all that share a node above it."""
    below = [x for x in leaves if x.place(node) is not None]
    if not viewed or isinstance(node, Interleaved):
        return below
    group = [leaf]
    for one in group:  # which grows meanwhile
        group += [x for x in below if x not in group and _hand_over_below(node, one, x, workload)]
    return group


def _hand_over_below(node: Node, a: _Leaf, b: _Leaf, workload: Workload) -> bool:
    """Whether one of two leaves hands the other a tensor that waits below a node.

    What the view folds away is stored nowhere: it waits with what the same leaf hands over under the view.
    """
    place = a.place(node)
    assert place is not None
    places = {a.stored_at(t) for t in (*_handed(a, b, workload), *_handed(b, a, workload))}
    stored = {p for p in places if p < len(a.above)}
    return any(p > place for p in stored or places)


def _handed(maker: _Leaf, reader: _Leaf, workload: Workload) -> set[str]:
    read = {x.tensor for e in reader.compute.einsums for x in workload.einsum(e).inputs}
    return read & set(maker.compute.einsums)


def _incomplete(name: str, producer: _Leaf, both: list[_Above], workload: Workload) -> list[str]:
    """The ranks that a tensor is reduced over and that a loop above both leaves still runs over."""
    carried = {x.node.rank for x in both if isinstance(x.node, Interleaved) and name in x.node.carries}
    merged = {x.node.rank for x in producer.above if isinstance(x.node, Interleaved) and name in x.node.carries}
    found = []
    for rank in workload.einsum(name).reduced:
        kinds = [type(x.node) for x in both if rank in x.ranks]
        looped = Temporal in kinds or Interleaved in kinds
        if (looped and rank not in carried) or (Spatial in kinds and rank not in merged):
            found.append(rank)
    return found


def _meeting(both: list[_Above], reader: _Leaf) -> Node:
    """The Sequential or Interleaved that two leaves part at, or the reader itself."""
    forks = [x.node for x in both if isinstance(x.node, (Sequential, Interleaved))]
    return forks[-1] if forks else reader.compute


def _accumulates_alone(name: str, workload: Workload) -> bool:
    """A plain sum of products that only a final division reads may be accumulated under a shared loop."""
    einsum = workload.einsum(name)
    readers = [e for e in workload.einsums if name in (a.tensor for a in e.inputs)]
    return einsum.map == "mul" and bool(readers) and all(e.map == "div" for e in readers)
