"""The state of printing one kernel: its lines, its parameters, and what each rank and value is called.

Names: `l` holds the lanes of rank l, `i_l` its tile's index, `hi_s` the end of a loop over s, `BLOCK_L` a tile's size
(constexpr), `L` an extent, `SLICE_S` a slice's length; a value in registers is its tensor's name in lower case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from theodolite.errors import Unsupported
from theodolite.ir.scope import power_of_two
from theodolite.ir.steps import SLICES, Contract, For, Home, KernelSteps, flatten
from theodolite.ir.tree import Part, evaluate_size
from theodolite.ir.workload import Workload


@dataclass
class Emitter:
    kernel: KernelSteps
    workload: Workload
    decisions: Mapping[str, Any]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    pointers: dict[str, str] = field(default_factory=dict)  # parameter -> pointer type
    numbers: dict[str, int | float] = field(default_factory=dict)  # runtime parameter -> value
    constexprs: dict[str, int] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # value -> the ranks it runs over
    dtypes: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)  # rank -> what its lanes are masked below
    guarded: set[str] = field(default_factory=set)
    tile_elements: list[int] = field(default_factory=list)  # of every tile that is printed

    def __post_init__(self) -> None:
        self.flat = next((x.rank for x in self.kernel.grid if x.rank not in self.workload.ranks), None)
        self.loops = {s.loop.rank: s.loop for s in flatten(self.kernel.steps) if isinstance(s, For)}
        self.grid = {x.rank: x for x in self.kernel.grid}
        contracted = [s for s in flatten(self.kernel.steps) if isinstance(s, Contract)]
        self.dot_operands = {x for s in contracted for x in (s.a, s.b)}

    # ---- text ----
    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def value(self, tensor: str) -> str:
        """The register name of a tensor; it must not be the name of a rank's lanes."""
        name = tensor.lower()
        return f"{name}_" if name in self.workload.ranks else name

    # ---- sizes ----
    def extent(self, rank: str) -> str:
        """The name of a rank's extent: a constexpr for a whole feature rank, else a runtime argument."""
        size = self.workload.ranks[rank]
        if self.whole(rank) and rank in self.feature_ranks():
            if power_of_two(size) == size:
                return self.block(rank)
            self.constexprs[rank.upper()] = size
        else:
            self.numbers[rank.upper()] = size
        return rank.upper()

    def feature_ranks(self) -> set[str]:
        """The contiguous ranks of inputs and outputs: a head's width, which is never shrunk."""
        ends = (*self.workload.inputs, *self.workload.outputs)
        return {self.workload.tensor(t).ranks[-1] for t in ends}

    def whole(self, rank: str) -> bool:
        return rank not in self.loops and rank not in self.grid

    def tile(self, rank: str) -> int:
        """Lanes of a rank's tile in this kernel."""
        loop = self.loops.get(rank) or self.grid.get(rank)
        if loop is None:
            return power_of_two(self.workload.ranks[rank])
        if isinstance(loop.tile, Part):
            raise Unsupported(f"kernel {self.kernel.name}: a slice of {rank} is not tiled by a loop inside the kernel")
        return int(evaluate_size(loop.tile, self.decisions, self.workload.extent(rank)))

    def block(self, rank: str) -> str:
        name = "BLOCK" if rank == self.flat else f"BLOCK_{rank.upper()}"
        self.constexprs[name] = self.tile(rank)
        return name

    def is_unit(self, rank: str) -> bool:
        """Whether the rank is fixed in a program (a batch rank), so that tiles have no axis for it."""
        loop = self.grid.get(rank)
        return rank not in self.loops and loop is not None and loop.tile == 1

    def tiled(self, ranks: tuple[str, ...]) -> tuple[str, ...]:
        """The ranks that a tile over `ranks` has an axis for, in order."""
        if self.flat and len(ranks) > 1 and "".join(ranks) == self.flat:
            return (self.flat,)
        return tuple(r for r in ranks if not self.is_unit(r))

    def note_tile(self, axes: tuple[str, ...]) -> None:
        self.tile_elements.append(math.prod(self.tile(r) for r in axes))

    # ---- index text ----
    def lane(self, rank: str, axes: tuple[str, ...]) -> str:
        """The lanes of a rank, broadcast to the axes of a tile: `l[:, None]`."""
        name = "at" if rank == self.flat else rank
        if len(axes) == 1:
            return name
        return f"{name}[{', '.join(':' if r == rank else 'None' for r in axes)}]"

    def spread(self, value: str, axes: tuple[str, ...], over: tuple[str, ...]) -> str:
        """A value with axes `axes`, broadcast against a tile with axes `over`."""
        if axes == over:
            return value
        return f"{value}[{', '.join(':' if r in axes else 'None' for r in over)}]"

    def mask(self, axes: tuple[str, ...]) -> str | None:
        parts = [f"{self.lane(r, axes)} < {self.limits[r]}" for r in axes if r in self.limits]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else " & ".join(f"({p})" for p in parts)

    def address(self, home: Home, base: str | None = None) -> str:
        """Pointer expression of a home's tile: a 64-bit scalar part and a 32-bit tile part."""
        tiled = self.tiled(home.ranks)
        if max(math.prod(self.workload.ranks[r] for r in home.ranks if r in tiled), 1) >= 2**31:
            raise Unsupported(
                f"{home.buffer}: offsets inside {' x '.join(tiled)} pass 32 bits, which kernels use there"
            )
        if tiled == (self.flat,):
            return f"{base or home.buffer} + at"
        parts = [f"{self.lane(r, tiled)}{self.stride(home, r)}" for r in tiled]
        inside = " + ".join(parts)
        return f"{base or self.base(home)} + {f'({inside})' if len(parts) > 1 else inside}"

    def stride(self, home: Home, rank: str) -> str:
        after = home.ranks[home.ranks.index(rank) + 1 :]
        return "".join(f" * {self.extent(r)}" for r in after)

    def base(self, home: Home, with_slice: bool = True) -> str:
        """`Q + (i_b * H + i_h) * (L * E)`; `i_b` is 64 bits wide, so that nothing below it overflows."""
        outer = [f"i_{r}" for r in home.ranks if self.is_unit(r)]
        sizes = [self.extent(r) for r in home.ranks if self.is_unit(r)]
        if home.over is not None and with_slice:
            outer, sizes = [f"i_{home.over}", *outer], ["", *sizes]
        if not outer:
            return home.buffer
        text = outer[0]
        for index, size in zip(outer[1:], sizes[1:], strict=True):
            text = f"({text} * {size} + {index})"
        inner = " * ".join(self.extent(r) for r in home.ranks if not self.is_unit(r))
        return f"{home.buffer} + {text} * {f'({inner})' if '*' in inner else inner}"

    def pointer(self, home: Home) -> None:
        self.pointers[home.buffer] = f"*{home.dtype}"

    def slice_count(self, home: Home) -> int:
        return int(evaluate_size(home.slices, self.decisions, 0))

    def slices(self) -> str:
        self.numbers["SPLIT"] = next(self.slice_count(h) for h in self.kernel.loads if h.over is not None)
        return "SPLIT"

    @property
    def merges(self) -> bool:
        return SLICES in self.loops
