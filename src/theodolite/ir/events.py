"""What programs of a kernel do, as counted by the interpreter or read back from compiled code.

All arrays run over the same P program ids.  A footprint stays factored: the element offsets of an access are

    base[p] + stride_0 * i_0 + stride_1 * i_1 + ...     for i_a < valid_a[p] <= size_a

so that a full-size case needs P numbers an axis and never P x rows x columns of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a tile: `size` elements `stride` apart, of which program p touches the first `valid[p]`."""

    stride: int
    size: int
    valid: Ints


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store that the `active` programs execute in lockstep.  Axes of size 1 are left out."""

    kind: Literal["load", "store"]
    buffer: str
    active: Bools
    base: Ints
    axes: tuple[Axis, ...]

    def elements(self) -> Ints:
        """How many elements each program moves (masked lanes move nothing); 0 where a program is not active."""
        count = self.active.astype(np.int64)
        for axis in self.axes:
            count = count * axis.valid
        return count

    def offsets(self, p: int) -> Ints:
        """The element offsets that program number p touches, sorted."""
        if not self.active[p]:
            return np.empty(0, np.int64)
        out = np.atleast_1d(self.base[p])
        for axis in self.axes:
            out = (out[:, None] + axis.stride * np.arange(axis.valid[p])[None, :]).ravel()
        return np.sort(out)


@dataclass(frozen=True, eq=False)
class Events:
    """Everything that programs `programs` of one kernel do; work arrays count lanes a program."""

    programs: Ints
    accesses: tuple[Access, ...]
    trips: Ints
    dots: dict[tuple[int, int, int], Ints]
    exp2: Ints
    fp32: Ints
    reductions: Ints

    def elements(self, kind: str) -> dict[str, int]:
        """Elements moved, summed over programs, a buffer."""
        total: dict[str, int] = {}
        for access in self.accesses:
            if access.kind == kind:
                total[access.buffer] = total.get(access.buffer, 0) + int(access.elements().sum())
        return total

    @property
    def flops(self) -> int:
        return sum(2 * m * n * k * int(count.sum()) for (m, n, k), count in self.dots.items())
