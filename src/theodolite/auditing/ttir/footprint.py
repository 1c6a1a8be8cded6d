"""Footprints in one form, so that equal ones compare equal; and whether stores cover a buffer exactly once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from theodolite.ir.events import Access, Axis, Bools, Ints

MAX_RUNS = 20_000_000


def canonical(access: Access) -> Access:
    """The same elements with axes by falling stride and each axis that continues a full inner one joined to it.

    A program that moves nothing counts as not active.  Footprints that are equal as sets but differ beyond this (a
    ragged axis cut elsewhere) stay different.
    """
    moved = access.elements() > 0
    active = access.active if np.array_equal(moved, access.active) else moved
    axes: list[Axis] = []
    for axis in sorted((a for a in access.axes if a.size > 1), key=lambda a: (-abs(a.stride), -a.size)):
        outer = axes[-1] if axes else None
        if outer and outer.stride == axis.stride * axis.size and _full(axis, active):
            axes[-1] = Axis(axis.stride, outer.size * axis.size, outer.valid * axis.size)
        else:
            axes.append(axis)
    return replace(access, active=active, axes=tuple(axes))


def _full(axis: Axis, active: Bools) -> bool:
    """Whether every active program uses the whole axis."""
    if axis.valid.size and axis.valid.strides == (0,):
        return bool(axis.valid[0] == axis.size)
    return bool(((axis.valid == axis.size) | ~active).all())


def extremes(access: Access) -> tuple[int, int] | None:
    """The smallest and the largest element touched by any program; None where none is."""
    active = access.elements() > 0
    if not active.any():
        return None
    low, high = access.base[active], access.base[active]
    for axis in access.axes:
        reach = axis.stride * (axis.valid[active] - 1)
        low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
    return int(low.min()), int(high.max())


def runs_per_program(access: Access) -> int:
    """At most how many stretches of neighbouring elements one program touches."""
    return math.prod(axis.size for axis in _split(access)[0])


def _split(access: Access) -> tuple[tuple[Axis, ...], Axis | None]:
    """A canonical footprint's outer axes, and the innermost one where its elements are neighbours."""
    if access.axes and access.axes[-1].stride == 1:
        return access.axes[:-1], access.axes[-1]
    return access.axes, None


def runs(access: Access) -> tuple[Ints, Ints]:
    """Starts and lengths of the stretches that all programs touch, in no particular order."""
    access = canonical(access)
    outer, inner = _split(access)
    programs = np.flatnonzero(access.active)
    starts = access.base[programs]
    for axis in outer:
        steps = np.arange(axis.size)
        kept = (steps < axis.valid[programs][:, None]).ravel()
        starts = (starts[:, None] + axis.stride * steps).ravel()[kept]
        programs = np.repeat(programs, axis.size)[kept]
    lengths = inner.valid[programs] if inner else np.ones(len(programs), np.int64)
    return starts, lengths


@dataclass
class Coverage:
    """Counts how often each element of a buffer is stored to.

    Exact: stretches are sorted and must follow one another without overlap.  Where there would be more than MAX_RUNS,
    only the number of stored elements is held against the buffer's size (`exact` is False then).
    """

    size: int
    exact: bool
    count: int = 0
    starts: list[Ints] = field(default_factory=list)
    lengths: list[Ints] = field(default_factory=list)

    def add(self, access: Access) -> None:
        self.count += int(access.elements().sum())
        if self.exact:
            starts, lengths = runs(access)
            self.starts.append(starts)
            self.lengths.append(lengths)

    def twice(self) -> str | None:
        """Where an element is stored to twice, in words."""
        if not self.exact:
            return f"{self.count} elements stored to {self.size}" if self.count > self.size else None
        starts, ends = self.sorted()
        overlap = np.flatnonzero(starts[1:] < ends[:-1])
        return f"element {starts[1:][overlap[0]]} is stored to twice" if overlap.size else None

    def missing(self) -> str | None:
        """Where an element is never stored to, in words; for stretches that do not overlap."""
        if self.count == self.size:
            return None
        if not self.exact:
            return f"only {self.count} of {self.size} elements are stored to"
        starts, ends = self.sorted()
        starts, ends = np.append(starts, self.size), np.insert(ends, 0, 0)
        return f"element {ends[np.flatnonzero(starts > ends)[0]]} is never stored to"

    def sorted(self) -> tuple[Ints, Ints]:
        """Starts and ends of all stretches, by start."""
        starts = np.concatenate([np.empty(0, np.int64), *self.starts])
        lengths = np.concatenate([np.empty(0, np.int64), *self.lengths])
        order = np.argsort(starts, kind="stable")
        return starts[order], starts[order] + lengths[order]


def joined(parts: Sequence[Coverage]) -> Coverage:
    """What several launches store to together."""
    whole = Coverage(parts[0].size, all(p.exact for p in parts), sum(p.count for p in parts))
    for part in parts:
        whole.starts += part.starts
        whole.lengths += part.lengths
    return whole
