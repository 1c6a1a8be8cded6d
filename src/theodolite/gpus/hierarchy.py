"""A chain of memories and the compute units below it: what AccelForge's model knows of a machine.

An action of a memory is one bit moved, an action of a compute unit one operation (a multiply-accumulate on the tensor
cores); all rates are per unit, and a unit below a fanout exists `fanout` times.
"""

from __future__ import annotations

from dataclasses import dataclass

from theodolite.errors import Infeasible
from theodolite.ir.tree import Level, Unit


@dataclass(frozen=True)
class Memory:
    """One memory; `levels` are the tree's levels that wait in it, `fanout` is (dimension, units) where it is many."""

    name: str
    levels: tuple[Level, ...]
    size_bits: float
    read_bits_per_s: float
    write_bits_per_s: float
    fanout: tuple[str, int] | None


@dataclass(frozen=True)
class ComputeUnit:
    """One kind of leaf; `tensors` is how many tensors (output included) the Einsums that it takes have."""

    name: str
    unit: Unit
    ops_per_s: float
    tensors: int


@dataclass(frozen=True)
class Hierarchy:
    """Memories, outermost first, then the compute units."""

    memories: tuple[Memory, ...]
    units: tuple[ComputeUnit, ...]

    def memory(self, name: str) -> Memory:
        """The memory of that name; Infeasible where there is none."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise Infeasible(f"no memory {name!r}: the hierarchy has {', '.join(m.name for m in self.memories)}")

    def holding(self, level: Level) -> Memory:
        """The memory in which a level's tensors wait; Infeasible where there is none."""
        for memory in self.memories:
            if level in memory.levels:
                return memory
        raise Infeasible(f"level {level}: no memory of the hierarchy holds it")

    def owner(self, dim: str) -> Memory:
        """The memory whose fanout has that name; Infeasible where there is none."""
        for memory in self.memories:
            if memory.fanout is not None and memory.fanout[0] == dim:
                return memory
        raise Infeasible(f"spatial on {dim}: no counterpart in AccelForge's hierarchy; use SM")

    def compute(self, unit: Unit) -> ComputeUnit:
        """The compute unit that a leaf names; Infeasible where there is none."""
        for candidate in self.units:
            if candidate.unit == unit:
                return candidate
        raise Infeasible(f"compute on {unit}: the hierarchy has no such unit")

    def depth(self, memory: str) -> int:
        """How far down a memory stands, the outermost being 0."""
        return self.memories.index(self.memory(memory))
