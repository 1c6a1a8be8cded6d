"""What `lower` hands on: kernels, workspaces and the launch DAG, as one record that serialises and reads back equal.

The source of a program is one plain file.  Tile sizes are constexprs; sizes, slice lengths and the number of partials
are runtime arguments, so that a *twin* (the same source at smaller sizes) runs the very same text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from theodolite.ir.workload import DTYPE_BYTES

Role = Literal["input", "output", "workspace"]


@dataclass(frozen=True)
class Buffer:
    """A global tensor: contiguous, `shape` in elements, outermost first."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Param:
    """A kernel parameter: a pointer (`*fp16`), a number (`i32`, `fp32`) or a `constexpr`."""

    name: str
    type: str


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of a program.

    `divisible_by_16` lists the positions of parameters that are marked so; the specialisation is fixed here and
    nothing is specialised on 1.
    """

    name: str
    params: tuple[Param, ...]
    constexprs: Mapping[str, int]
    divisible_by_16: tuple[int, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Launch:
    """One launch.  `args` gives, for each parameter that is no constexpr, a buffer's name or a number."""

    kernel: str
    grid: tuple[int, int, int]
    args: Mapping[str, str | int | float]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A lowered mapping: one source file, its kernels, the buffers they touch and the launches in order."""

    workload: str
    source: str
    kernels: tuple[KernelSpec, ...]
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]

    def kernel(self, name: str) -> KernelSpec:
        return next(k for k in self.kernels if k.name == name)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role == "workspace")
