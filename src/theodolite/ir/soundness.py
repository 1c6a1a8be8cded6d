"""Which values a tree reads before they are complete.

A reduction is complete once the loops over its rank have ended.  A reader below one of those loops comes too early,
unless that loop carries the tensor: then the table of carries says how what was read is put right.

    shared   a loop is shared by the leaves below it: branches of a Sequential, the nodes after it in its block.  What a
             single leaf has for itself it runs for one Einsum after the other, each over its whole row.
    spatial  a rank spread over SMs counts like a loop, except for a tensor that an Interleaved below carries: its
             slices become partials, which are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from theodolite.ir.tree import Block, Compute, Interleaved, Node, Sequential, Spatial, Temporal, Tree, blocks_of
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
    """A node above a leaf; `shared` where other leaves are below it, too."""

    node: Node
    shared: bool


@dataclass(frozen=True)
class _Leaf:
    compute: Compute
    above: tuple[_Above, ...]


def read_too_early(tree: Tree, workload: Workload) -> Iterator[Early]:
    """Every value that an abstract tree reads too early, in the order of the producers."""
    found = list(_leaves(tree.body, ()))
    for producer in found:
        for name in producer.compute.einsums:
            for reader in found:
                readers = [e for e in reader.compute.einsums if name in (a.tensor for a in workload.einsum(e).inputs)]
                ranks = _incomplete(name, producer, reader, workload) if readers else []
                yield from (Early(e, name, ranks[0], _meeting(producer, reader)) for e in readers if ranks)


def _leaves(block: Block, above: tuple[_Above, ...]) -> Iterator[_Leaf]:
    """The leaves of a block, in order; whatever two of them have above them both is shared."""
    opens = [n for n in block if isinstance(n, Compute) or blocks_of(n)]
    several = len(opens) > 1
    for node in block:
        match node:
            case Compute():
                yield _Leaf(node, _shared(above) if several else above)
            case Sequential(branches):
                mine = _shared(above) if several or len(branches) > 1 else above
                for branch in branches:
                    yield from _leaves(branch, (*mine, _Above(node, len(branches) > 1)))
            case Interleaved(body=body):
                yield from _leaves(body, (*(_shared(above) if several else above), _Above(node, True)))
            case _:
                above = (*above, _Above(node, False))


def _shared(above: tuple[_Above, ...]) -> tuple[_Above, ...]:
    return tuple(replace(a, shared=True) for a in above)


def _incomplete(name: str, producer: _Leaf, reader: _Leaf, workload: Workload) -> list[str]:
    """The ranks that a tensor is reduced over and that a loop above both leaves still runs over."""
    if _accumulates_alone(name, workload):
        return []
    both = _both(producer, reader)
    carried = {n.rank for n in both if isinstance(n, Interleaved) and name in n.carries}
    merged = {a.node.rank for a in producer.above if isinstance(a.node, Interleaved) and name in a.node.carries}
    found = []
    for rank in workload.einsum(name).reduced:
        looped = any(isinstance(n, Interleaved) and n.rank == rank for n in both) or _runs_over(both, Temporal, rank)
        spread = _runs_over(both, Spatial, rank) and rank not in merged
        if (looped and rank not in carried) or spread:
            found.append(rank)
    return found


def _both(a: _Leaf, b: _Leaf) -> list[Node]:
    """The nodes above two leaves; of a leaf and itself those that it shares with any other."""
    mine = {id(x.node) for x in b.above}
    return [x.node for x in a.above if (x.shared if a is b else id(x.node) in mine)]


def _runs_over(nodes: list[Node], kind: type[Temporal] | type[Spatial], rank: str) -> bool:
    return any(isinstance(n, kind) and rank in {x.rank for x in n.loops} for n in nodes)


def _meeting(a: _Leaf, b: _Leaf) -> Node:
    """The Sequential or Interleaved that two leaves part at, or the reader itself."""
    forks = [n for n in _both(a, b) if isinstance(n, (Sequential, Interleaved))]
    return forks[-1] if forks else b.compute


def _accumulates_alone(name: str, workload: Workload) -> bool:
    """A plain sum of products that only a final division reads may be accumulated under a shared loop."""
    einsum = workload.einsum(name)
    readers = [e for e in workload.einsums if name in (a.tensor for a in e.inputs)]
    return einsum.map == "mul" and bool(readers) and all(e.map == "div" for e in readers)
