"""The nodes of a mapping and of what it becomes on a GPU: one closed set, abstract and realised.

    tree        := abstract Block | realised (Storage | Workspace)* (HostLoop | Kernel)+
    Block       := Node*                       Storage, Temporal and Spatial hold for the rest of their block
    Node        := Storage(level, tensors)     the tensors wait at this level from here on
                 | Temporal(loops)             outermost first; a loop's tile is the size *after* the loop
                 | Spatial(loops, dim)         dim is SM in an abstract tree and grid in a realised one
                 | Interleaved(rank, carries, body)   several Einsums share one nest and carry state over rank
                 | Sequential(branches)        one after the other; alone it never implies a fused kernel
                 | Compute(einsums, unit)      the leaf, on the tensor cores (mma) or the other lanes (simd)
                 | Workspace(...)              realised only: a global buffer between kernels
                 | HostLoop(loop, body)        realised only: launches in it multiply
                 | Kernel(...)                 realised only
    Size        := int | Key(name) | Part(rank, key)    a key is a hole that the decisions fill;
                                                        Part is ceil(rank / key), a rank in `key` slices

Nodes hold no numbers that a search varies: decisions do.  `text.py` prints and parses all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Level = Literal["HBM", "L2", "SMEM", "RF"]
LEVELS: tuple[Level, ...] = ("HBM", "L2", "SMEM", "RF")
OFF_CHIP: tuple[Level, ...] = ("HBM", "L2")
Unit = Literal["mma", "simd"]
Stage = Literal["abstract", "realised"]


@dataclass(frozen=True)
class Key:
    """A hole that a decision fills."""

    name: str


@dataclass(frozen=True)
class Part:
    """ceil(rank / key): the length of one of `key` slices of a rank."""

    rank: str
    key: str


Size = int | Key | Part


@dataclass(frozen=True)
class Loop:
    """`rank/tile`: a loop over a rank whose body sees `tile` of it."""

    rank: str
    tile: Size


@dataclass(frozen=True)
class Storage:
    level: Level
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Temporal:
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class Spatial:
    loops: tuple[Loop, ...]
    dim: str


@dataclass(frozen=True)
class Compute:
    einsums: tuple[str, ...]
    unit: Unit


@dataclass(frozen=True)
class Sequential:
    branches: tuple[Block, ...]


@dataclass(frozen=True)
class Interleaved:
    rank: str
    carries: tuple[str, ...]
    body: Block


@dataclass(frozen=True)
class Workspace:
    """A global buffer of a realised tree.

    `extents` are rank names, or a number (or key) of slices in front.  A partial holds one slice's reduction of
    `tensor` over `rank`; any other *holds* a tensor, or a quotient of two ("P / D").
    """

    name: str
    dtype: str
    extents: tuple[str | int | Key, ...]
    role: Literal["partial", "holds"]
    tensor: str
    rank: str | None = None


@dataclass(frozen=True)
class HostLoop:
    loop: Loop
    body: Block


@dataclass(frozen=True)
class Kernel:
    """One launch.  `order` names the grid's ranks on axis x, fastest first."""

    name: str
    warps: int | Key
    stages: int | Key
    order: tuple[str, ...]
    loads: Literal["pointer", "tma"]
    body: Block


Node = Storage | Temporal | Spatial | Compute | Sequential | Interleaved | Workspace | HostLoop | Kernel
Block = tuple[Node, ...]


@dataclass(frozen=True)
class Refinement:
    """One way in which the realised tree or its kernels differ from the mapping, and why."""

    rule: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """A tree with its header.  `mapping` is the abstract tree that a realised one came from."""

    stage: Stage
    name: str
    workload: str
    gpu: str
    decisions: Mapping[str, Any]
    body: Block
    refinements: tuple[Refinement, ...] = ()
    mapping: Tree | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash((self.stage, self.name, self.workload, self.gpu, self.body))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of a realised tree in launch order, those in host loops included."""
        return tuple(n for n in walk(self.body) if isinstance(n, Kernel))

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        return tuple(n for n in self.body if isinstance(n, Workspace))


def blocks_of(node: Node) -> tuple[Block, ...]:
    """The blocks that a node opens, in order."""
    match node:
        case Sequential(branches):
            return branches
        case Interleaved() | HostLoop() | Kernel():
            return (node.body,)
        case Storage() | Temporal() | Spatial() | Compute() | Workspace():
            return ()


def walk(block: Block) -> Iterator[Node]:
    """Every node of a block, depth first, in order."""
    for node in block:
        yield node
        for below in blocks_of(node):
            yield from walk(below)


def computed(block: Block) -> tuple[str, ...]:
    """The Einsums that a block computes, in order."""
    return tuple(e for n in walk(block) if isinstance(n, Compute) for e in n.einsums)


def substitute(value: Any, sizes: Mapping[str, int]) -> Any:
    """The same nodes with the keys named in `sizes` replaced by numbers."""
    if isinstance(value, Key):
        return sizes.get(value.name, value)
    if isinstance(value, tuple):
        return tuple(substitute(v, sizes) for v in value)
    if isinstance(
        value, (Loop, Storage, Temporal, Spatial, Compute, Sequential, Interleaved, Workspace, HostLoop, Kernel)
    ):
        changed = {f.name: substitute(getattr(value, f.name), sizes) for f in fields(value)}
        return replace(value, **changed)
    return value


def evaluate_size(size: Size, decisions: Mapping[str, Any], extent: Any) -> Any:
    """A size as a number, or as an array where the decision is one; `extent` is the whole rank's size (for Part).

    Raises KeyError where the decisions do not fill the hole.
    """
    match size:
        case Key(name):
            return decisions[name]
        case Part(_, key):
            return -(-extent // decisions[key])
        case _:
            return size
