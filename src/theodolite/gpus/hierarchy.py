"""A chain of memories, arrays and compute units: what AccelForge's model knows of a machine.

All rates are per unit, and what stands below a fanout exists that many times.  An action of a compute unit is one
operation (a multiply-accumulate on the tensor cores); one of a memory moves `bits` of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from theodolite.errors import Infeasible


@dataclass(frozen=True)
class Fanout:
    """`units` copies along one dimension; `may_reuse` names the tensors that they may share (None: every one)."""

    dim: str
    units: int
    may_reuse: frozenset[str] | None = None

    def shares(self, tensor: str) -> bool:
        """Whether one read serves all units that want the same values of the tensor."""
        return self.may_reuse is None or tensor in self.may_reuse


@dataclass(frozen=True)
class Action:
    """What a memory does: `per_s` times a second, for `joules`, `bits` each time (or `values` of a tensor in it)."""

    per_s: float
    joules: float = 0.0
    bits: float = 1.0
    values: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Memory:
    """One memory; `levels` are the tree's levels that wait in it.

    `ports` says whether reads and writes take turns or run beside each other.  `starts_from_nothing`: the first tile
    of an output is not read.  `value_bits` has the tensors that are wider or narrower here than elsewhere.
    """

    name: str
    levels: tuple[str, ...]
    size_bits: float
    read: Action
    write: Action
    fanouts: tuple[Fanout, ...] = ()
    ports: Literal["shared", "separate"] = "shared"
    starts_from_nothing: bool = True
    actions_scale: float = 1.0
    value_bits: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def read_bits_per_s(self) -> float:
        return self.read.per_s * self.read.bits

    @property
    def write_bits_per_s(self) -> float:
        return self.write.per_s * self.write.bits

    @property
    def fanout(self) -> tuple[str, int] | None:
        """(dimension, units) of the first fanout."""
        return (self.fanouts[0].dim, self.fanouts[0].units) if self.fanouts else None

    def calls(self, kind: str, tensor: str, bits: int) -> float:
        """Actions that one value of the tensor takes; `bits` is its width elsewhere."""
        action = self.read if kind == "read" else self.write
        values = action.values.get(tensor, action.bits / self.bits(tensor, bits))
        return self.actions_scale / values

    def bits(self, tensor: str, bits: int) -> float:
        """The width of one value of the tensor in here; `bits` is its width elsewhere."""
        return self.value_bits.get(tensor, bits)


@dataclass(frozen=True)
class Array:
    """Copies of all that stands below, with nothing of its own."""

    name: str
    fanouts: tuple[Fanout, ...]


@dataclass(frozen=True)
class ComputeUnit:
    """One kind of leaf; `tensors` is how many tensors (output included) the Einsums that it takes have, if it cares."""

    name: str
    unit: str
    ops_per_s: float
    tensors: int | None
    joules: float = 0.0
    fanouts: tuple[Fanout, ...] = ()
    starts_from_nothing: bool = True
    actions_scale: float = 1.0


Node = Memory | Array | ComputeUnit


@dataclass(frozen=True)
class Hierarchy:
    """Memories, outermost first, then the compute units.

    `order` names every node from the outermost inwards where compute units or arrays stand between memories.
    `leak_w` has the power that each component leaks whatever happens, over all of its units.
    """

    memories: tuple[Memory, ...]
    units: tuple[ComputeUnit, ...]
    arrays: tuple[Array, ...] = ()
    order: tuple[str, ...] = ()
    leak_w: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, outermost first."""
        nodes: tuple[Node, ...] = (*self.memories, *self.arrays, *self.units)
        return tuple(sorted(nodes, key=lambda n: self.order.index(n.name))) if self.order else nodes

    def memory(self, name: str) -> Memory:
        """The memory of that name; Infeasible where there is none."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise Infeasible(f"no memory {name!r}: the hierarchy has {', '.join(m.name for m in self.memories)}")

    def holding(self, level: str) -> Memory:
        """The memory in which a level's tensors wait; Infeasible where there is none."""
        for memory in self.memories:
            if level in memory.levels:
                return memory
        raise Infeasible(f"level {level}: no memory of the hierarchy holds it")

    def owner(self, dim: str) -> Node:
        """The node whose fanout has that name; Infeasible where there is none."""
        for node in self.nodes:
            if any(f.dim == dim for f in node.fanouts):
                return node
        raise Infeasible(f"spatial on {dim}: no counterpart in AccelForge's hierarchy; use {self._dims()}")

    def fanout(self, dim: str) -> Fanout:
        """The fanout of that name; Infeasible where there is none."""
        return next(f for f in self.owner(dim).fanouts if f.dim == dim)

    def compute(self, unit: str) -> ComputeUnit:
        """The compute unit that a leaf names; Infeasible where there is none."""
        for candidate in self.units:
            if candidate.unit == unit:
                return candidate
        raise Infeasible(f"compute on {unit}: the hierarchy has no such unit")

    def depth(self, node: str) -> int:
        """How far down a node stands, the outermost being 0; Infeasible where there is none."""
        for depth, candidate in enumerate(self.nodes):
            if candidate.name == node:
                return depth
        raise Infeasible(f"no component {node!r}: the hierarchy has {', '.join(n.name for n in self.nodes)}")

    def _dims(self) -> str:
        return ", ".join(f.dim for n in self.nodes for f in n.fanouts) or "none, it has no fanout"


Machine = Hierarchy | Mapping[str, Hierarchy]  # one for all Einsums, or one each by the view's name for it


def machine_of(machine: Machine, einsum: str) -> Hierarchy:
    """The hierarchy as an Einsum sees it."""
    return machine if isinstance(machine, Hierarchy) else machine[einsum]
