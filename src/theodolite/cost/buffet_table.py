"""The most that each memory holds, by AccelForge's table of reservations.

AccelForge has a column for each memory and number of loops: what is reserved there or further out.  Columns on the
*right* are the path that the next Einsum will share; those on the *left* belong to Einsums that are done.  Joining adds
each side's columns to the other's, takes away once what both counted, and lets the columns below the loops still
shared grow together to their maximum (`pmapping_dataframe.py`).  Its slips are part of the table, see
docs/accelforge.md: a tensor is taken away at the loops that stand above its storage in the mapping, but was added at
those above it in its own order, and the size taken away is that of its first Einsum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from theodolite.cost.buffet_join import Join

ROUNDING_BITS = 1e-6  # shares of a size that differs between Einsums do not add up exactly
Number = Any  # a float, or an array of float64
Key = tuple[int, bool]  # loops above, and whether on the left
Column = dict[int, Number]  # by Einsum whose peak it is; AccelForge has the maximum of them
Columns = dict[Key, Column]


class Table:
    """The columns of one memory while Einsums are joined, and what they came to at most."""

    def __init__(self, own: tuple[Mapping[int, Number], ...]) -> None:
        """`own` has for each Einsum what it reserves itself under each number of loops.

        After `run`, `worst` is the most that any column came to for each Einsum, `negative` says at which Einsums and
        where a new column would be below zero, `stuck` at which the column to start one from is missing.
        """
        self.own = own
        self.columns: Columns = {}
        self.worst: Column = {k: sum(mine.values()) for k, mine in enumerate(own) if mine}  # each fits alone first
        self.negative: dict[int, Any] = {}
        self.stuck: set[int] = set()

    def run(self, shared: tuple[int, ...], joins: tuple[Join, ...], sizes: Mapping[str, Number]) -> Column:
        """Join all and return the peak of each Einsum.

        `shared` has for each Einsum the loops above what it hands on or is handed, `sizes` what each tensor takes.
        """
        self.columns = _freed(_own(0, self.own[0]), shared[0])
        self._note()
        for k, join in enumerate(joins, 1):
            left = _shifted(_freed(self.columns, join.shared), join.shared)
            self.columns = _merged(left, _freed(_own(k, self.own[k]), shared[k]), k)
            self._adjust(k, join, sizes)
            self.columns = _freed(self.columns, join.following)
            self._note()
            self._raise_left()
        return _most(_freed(_freed(self.columns, 0), -1).values())

    def _note(self) -> None:
        self.worst = _most([self.worst, *self.columns.values()])

    def _adjust(self, k: int, join: Join, sizes: Mapping[str, Number]) -> None:
        """Take away what both sides counted, add what lives on and the right did not count."""
        changes = [(one.level, sizes[one.tensor]) for one in join.kept]
        changes += [(one.level, -sizes[one.tensor]) for one in join.freed]
        levels = {level for level, left in self.columns if not left} | {level for level, _ in changes}
        targets: dict[Key, Number] = {}
        for at, size in changes:
            for key in [(n, False) for n in levels] + [key for key in self.columns if key[1]]:
                if key[0] > at or key == (at, False):
                    targets[key] = targets.get(key, 0.0) + size
        known = levels  # until it has made one column, AccelForge also looks for those that it is about to make
        for key in sorted(targets, reverse=True):
            if key in self.columns:
                self.columns[key] = _plus(self.columns[key], targets[key])
                continue
            above = max((n for n in known if n < key[0]), default=None)
            if above is not None and (above, False) not in self.columns:
                self.stuck.add(k)
                return
            base = _value(self.columns[above, False]) if above is not None else 0.0
            self.columns[key] = {k: base + targets[key]}
            self.negative[k] = np.logical_or(self.negative.get(k, False), base + targets[key] < -ROUNDING_BITS)
            known = {level for level, left in self.columns if not left}

    def _raise_left(self) -> None:
        """A column on the left is at least what is on the right beside it."""
        for (level, left), column in list(self.columns.items()):
            if left and (level, False) in self.columns:
                self.columns[level, True] = _most([column, self.columns[level, False]])


def _own(k: int, reserved: Mapping[int, Number]) -> Columns:
    """An Einsum's own columns: what it reserves under that many loops or fewer."""
    total: Number = 0.0
    out: Columns = {}
    for level in sorted(reserved):
        total = total + reserved[level]
        out[level, False] = {k: total}
    return out


def _freed(columns: Columns, shared: int) -> Columns:
    """All below the shared loops in one column on the right, which holds their maximum.

    Of the right's own columns only the innermost counts, which the others should be part of.
    """
    right = [key for key in columns if not key[1] and key[0] > shared]
    below = [key for key in columns if key[1] and key[0] >= shared] + ([max(right)] if right else [])
    if not below:
        return columns
    target = (shared, False)
    out = {key: column for key, column in columns.items() if key not in below and key not in right and key != target}
    out[target] = _most([columns[key] for key in [*below, target] if key in columns])
    return out


def _shifted(columns: Columns, shared: int) -> Columns:
    """The innermost column on the right belongs to Einsums that are done."""
    out = {key: column for key, column in columns.items() if key != (shared, False)}
    if (shared, False) in columns:
        out[shared, True] = _most([columns[key] for key in ((shared, True), (shared, False)) if key in columns])
    return out


def _merged(left: Columns, right: Columns, k: int) -> Columns:
    """Each side's columns with what the other reserves above them."""
    out: Columns = {}
    for (level, _), column in right.items():
        if (level, False) not in left:
            out[level, False] = {k: _value(column) + _above(left, level - 1)}
    for key, column in left.items():
        level, done = key
        added = _above(right, level - 1 if done else level)
        out[key] = _plus(column, added) if done else {k: _value(column) + added}
    return out


def _above(columns: Columns, level: int) -> Number:
    """The innermost column on the right under at most that many loops."""
    found = [n for n, left in columns if not left and n <= level]
    return _value(columns[max(found), False]) if found else 0.0


def _value(column: Column) -> Number:
    out: Number = -np.inf
    for value in column.values():
        out = np.maximum(out, value)
    return out


def _plus(column: Column, size: Number) -> Column:
    return {k: value + size for k, value in column.items()}


def _most(columns: Any) -> Column:
    out: Column = {}
    for column in columns:
        for k, value in column.items():
            out[k] = np.maximum(out.get(k, value), value)
    return out
