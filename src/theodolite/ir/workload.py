"""A workload: a cascade of extended Einsums over named ranks.

    cascade   := Einsum*                              in the order of their dependencies
    Einsum    := output = reduce_{ranks} map(inputs)  [* scale]  [where domain]
    map       := mul | copy | exp_sub | div           exp_sub(S, M) is exp(S - M)
    reduce    := sum | max                            over the ranks that the output lacks
    domain    := Inequality*                          sum of coefficient * rank <= bound
    index     := rank | Gather(tensor, ranks)         K[idx[l,t],e] reads through a tensor

A *view* groups Einsums for a model that sees less: softmax as one Einsum, say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field
from typing import Literal

from theodolite.errors import UnknownName

MapOp = Literal["mul", "copy", "exp_sub", "div"]
ReduceOp = Literal["sum", "max"]
DTYPE_BYTES = {"fp16": 2, "fp32": 4, "i32": 4}


@dataclass(frozen=True)
class Gather:
    """An index read from an integer tensor, as in K[idx[l,t], e]."""

    tensor: str
    ranks: tuple[str, ...]


Index = str | Gather


@dataclass(frozen=True)
class Access:
    """A tensor and what indexes each of its dimensions, outermost first."""

    tensor: str
    indices: tuple[Index, ...]

    @property
    def ranks(self) -> tuple[str, ...]:
        """Every rank that the access depends on, those inside a gather included."""
        seen: dict[str, None] = {}
        for index in self.indices:
            for rank in (index,) if isinstance(index, str) else index.ranks:
                seen[rank] = None
        return tuple(seen)


@dataclass(frozen=True)
class Inequality:
    """sum(coefficient * rank) <= bound, over integers."""

    coefficients: tuple[tuple[str, int], ...]
    bound: int


@dataclass(frozen=True)
class Einsum:
    """One step of the cascade; it is named after its output."""

    output: Access
    inputs: tuple[Access, ...]
    map: MapOp
    reduce: ReduceOp | None = None
    scale: float = 1.0
    domain: tuple[Inequality, ...] = ()

    @property
    def name(self) -> str:
        return self.output.tensor

    @property
    def ranks(self) -> tuple[str, ...]:
        seen = dict.fromkeys(self.output.ranks)
        for access in self.inputs:
            seen.update(dict.fromkeys(access.ranks))
        return tuple(seen)

    @property
    def reduced(self) -> tuple[str, ...]:
        """The ranks that the reduce operator removes."""
        return tuple(r for r in self.ranks if r not in self.output.ranks)


@dataclass(frozen=True)
class Tensor:
    """A tensor, contiguous in the order of its ranks."""

    name: str
    ranks: tuple[str, ...]
    dtype: str


@dataclass(frozen=True)
class ViewEinsum:
    """One Einsum of a view: the members it stands for and the tensors that another model sees."""

    name: str
    members: tuple[str, ...]
    output: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """How another model sees a cascade.  `alias` renames a tensor that the view folds into another."""

    name: str
    einsums: tuple[ViewEinsum, ...]
    alias: MappingType[str, str] = field(default_factory=dict)

    def tensor(self, name: str) -> str | None:
        """The view's name for a tensor, or None where the view does not have it."""
        name = self.alias.get(name, name)
        known = any(name == e.output or name in e.inputs for e in self.einsums)
        return name if known else None

    def einsum_of(self, member: str) -> ViewEinsum:
        """The view's Einsum that stands for a member of the cascade."""
        for einsum in self.einsums:
            if member in einsum.members:
                return einsum
        raise UnknownName(f"view {self.name!r} has no Einsum for {member!r}")


@dataclass(frozen=True)
class Workload:
    """A cascade with sizes.

    `name` is canonical: the same sizes give the same name, and the name gives the workload back.
    `inputs` are listed in the order in which the input generator draws them.  `labels` names the kernel whose last
    Einsum is the key.
    """

    name: str
    ranks: MappingType[str, int]
    tensors: tuple[Tensor, ...]
    einsums: tuple[Einsum, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    views: tuple[View, ...] = ()
    labels: MappingType[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name; UnknownName where there is none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise UnknownName(f"{self.name} has no tensor {name!r}: it has {' '.join(t.name for t in self.tensors)}")

    def einsum(self, name: str) -> Einsum:
        """The Einsum whose output has that name; UnknownName where there is none."""
        for einsum in self.einsums:
            if einsum.name == name:
                return einsum
        raise UnknownName(f"{self.name} has no Einsum {name!r}: it has {' '.join(e.name for e in self.einsums)}")

    def view(self, name: str) -> View:
        """The view of that name; UnknownName where there is none."""
        for view in self.views:
            if view.name == name:
                return view
        raise UnknownName(f"{self.name} has no view {name!r}")

    def extent(self, rank: str) -> int:
        """The size of a rank, or of several flattened into one (`bhls`); UnknownName for any other."""
        return math.prod(self.ranks[r] for r in self.flat(rank))

    def flat(self, rank: str) -> tuple[str, ...]:
        """The ranks that a rank's name stands for: itself, or the letters of a flattened one."""
        if rank in self.ranks:
            return (rank,)
        if rank and all(letter in self.ranks for letter in rank):
            return tuple(rank)
        raise UnknownName(f"unknown rank {rank!r}: {self.name} has {' '.join(self.ranks)}")

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The sizes of a tensor's dimensions, outermost first."""
        return tuple(self.ranks[r] for r in self.tensor(tensor).ranks)

    def passes(self, rank: str) -> dict[str, int]:
        """In which pass over `rank` each Einsum runs, counted from 1, where nothing is carried.

        An Einsum that reads a value already reduced over the rank, and iterates over it again, starts a new
        pass (FuseMax, arXiv 2406.10491, section 3).
        """
        done: dict[str, int] = {}
        for einsum in self.einsums:
            before = [(self.einsum(a.tensor), done[a.tensor]) for a in einsum.inputs if a.tensor in done]
            again = rank in einsum.ranks
            done[einsum.name] = max((n + (again and rank in producer.reduced) for producer, n in before), default=1)
        return done


def causal_bound(einsum: Einsum, rank: str) -> tuple[str, int] | None:
    """(row rank, offset) where the domain says `rank <= row + offset`; None without a domain on that rank."""
    for inequality in einsum.domain:
        terms = dict(inequality.coefficients)
        rows = [r for r, c in terms.items() if c == -1]
        if terms.get(rank) == 1 and len(terms) == 2 and rows:
            return rows[0], inequality.bound
    return None


def points(einsum: Einsum, workload: Workload) -> int:
    """How many points of its ranks lie in an Einsum's domain.

    A domain that is not understood counts none: what is built on this is a floor, which may be low and never high.
    """
    total = math.prod(workload.ranks[r] for r in einsum.ranks)
    if not einsum.domain:
        return total
    for rank in einsum.ranks:
        bound = causal_bound(einsum, rank)
        if bound is not None and len(einsum.domain) == 1:
            row, offset = bound
            rows, extent = workload.ranks[row], workload.ranks[rank]
            seen = sum(min(extent, max(0, at + offset + 1)) for at in range(rows))
            return total // (rows * extent) * seen
    return 0
