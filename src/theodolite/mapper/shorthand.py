"""The schedule shorthand: two families of mappings, each named by its decisions.

    flash:bm=64,bn=32,split=2,warps=4,stages=2
    pipeline:qk.bm=64,qk.bn=32,qk.bk=32,qk.split=2,sm.rows=4,av.bm=64,av.bs=32,av.split=2,warps=4,stages=2

flash: one kernel; a query tile of bm stays on chip, keys come bn at a time, state (M, D, A) is carried over s.
pipeline: QK, softmax and AV are kernels of their own; scores and weights wait in global memory between them.
A split above 1 spreads a reduction over that many CTAs and adds a merge kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from theodolite.errors import TextError, UnknownName, one_of

WIDE = (16, 32, 64, 128, 256)
NARROW = (1, 2, 4, 8, *WIDE)
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WARPS = (4, 8, 2, 1)
STAGES = (2, 3, 1, 4, 5)


@dataclass(frozen=True)
class Domain:
    """The values of one decision.

    `values` is what a search tries, in the order that breaks ties; a split may be any number up to the largest when it
    is written by hand.
    """

    key: str
    values: tuple[int, ...]
    any_up_to: int | None = None

    def holds(self, value: int) -> bool:
        if self.any_up_to is not None:
            return 1 <= value <= self.any_up_to
        return value in self.values

    def words(self) -> str:
        if self.any_up_to is not None:
            return f"1 to {self.any_up_to}"
        return ", ".join(str(v) for v in sorted(self.values))


FAMILIES: Mapping[str, tuple[Domain, ...]] = {
    "flash": (
        Domain("bm", WIDE),
        Domain("bn", WIDE),
        Domain("split", SPLITS, 512),
        Domain("warps", WARPS),
        Domain("stages", STAGES),
    ),
    "pipeline": (
        Domain("qk.bm", WIDE),
        Domain("qk.bn", WIDE),
        Domain("qk.bk", NARROW),
        Domain("qk.split", SPLITS, 512),
        Domain("sm.rows", NARROW),
        Domain("av.bm", WIDE),
        Domain("av.bs", NARROW),
        Domain("av.split", SPLITS, 512),
        Domain("warps", WARPS),
        Domain("stages", STAGES),
    ),
}


@dataclass(frozen=True)
class Schedule:
    """A family and all its decisions, in the family's order."""

    family: str
    decisions: tuple[tuple[str, int], ...]

    @property
    def values(self) -> dict[str, int]:
        return dict(self.decisions)

    def __str__(self) -> str:
        return f"{self.family}:" + ",".join(f"{k}={v}" for k, v in self.decisions)


def schedule(family: str, decisions: Mapping[str, int]) -> Schedule:
    """Check decisions against the family's domains.

    Raises UnknownName for a family or key that does not exist, TextError for one that is missing or out of its domain.
    """
    if family not in FAMILIES:
        raise one_of("schedule family", family, FAMILIES)
    domains = {d.key: d for d in FAMILIES[family]}
    for key in decisions:
        if key not in domains:
            raise UnknownName(f"{family} has no decision {key!r}: it has {', '.join(domains)}")
    missing = [k for k in domains if k not in decisions]
    if missing:
        raise TextError(f"schedule {family}: {', '.join(missing)} missing")
    for key, value in decisions.items():
        if not domains[key].holds(value):
            raise TextError(f"schedule {family}: {key}={value} is outside its domain ({domains[key].words()})")
    return Schedule(family, tuple((k, decisions[k]) for k in domains))


def parse_schedule(text: str) -> Schedule:
    """`flash:bm=64,...` -> Schedule; errors as in `schedule`, and TextError for what does not read KEY=NUMBER."""
    family, colon, rest = text.partition(":")
    if not colon:
        raise TextError(f"a schedule reads FAMILY:KEY=NUMBER,..., not {text!r}")
    decisions: dict[str, int] = {}
    for word in rest.split(","):
        match = re.fullmatch(r"\s*([\w.]+)=([0-9]+)\s*", word)
        if not match:
            raise TextError(f"schedule {family}: {word!r} does not read KEY=NUMBER")
        if match[1] in decisions:
            raise TextError(f"schedule {family}: {match[1]} is given twice")
        decisions[match[1]] = int(match[2])
    return schedule(family, decisions)
