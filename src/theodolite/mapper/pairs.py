"""Pairs: two mappings whose decisions differ in exactly one key, what that moves, and what a model thinks of it.

A pair isolates one decision: whatever the GPU then says of it is about what that decision moves in the profile, priced
by the model or not.  Derived decisions follow from the named ones: each member's tree is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from theodolite.cost.capacity import capacity
from theodolite.cost.model import Model, corrected, score
from theodolite.cost.profile import KernelProfile, Profile
from theodolite.cost.profiles import profile_of
from theodolite.errors import Infeasible
from theodolite.gpus.gpu import Gpu
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule, schedule
from theodolite.mapper.skeletons import mapping

TIE_RELATIVE = 1e-9  # predictions closer than this are one and the same, as in a ranking
LAUNCHES = "launches"
# What a CTA or a thread has, or a kernel is built with: a sum over kernels would mean nothing, the largest is shown.
LARGEST = ("warps", "stages", "trips_longest", "smem_bytes", "registers", "tile_elements")
NOT_COUNTS = ("name", "first", "loads", "stores")  # names, order of launch, and details of what is counted anyway


@dataclass(frozen=True)
class Moved:
    """A field of the profile that a decision moves: `a` and `b` are its values over the kernels of either mapping.

    Totals are summed over the kernels; of what a CTA or a thread has the largest is taken.  A field counts as moved
    where any single kernel's value differs, so that two changes which cancel in the sum are not lost.  A kernel that
    only one mapping has does nothing in the other one: its totals move, and `launches` says that it is gone.
    """

    field: str
    a: float
    b: float
    priced: bool


@dataclass(frozen=True)
class Pair:
    """Mappings A and B one decision apart, and what one model predicts of them, in seconds.

    `a_s`, `b_s` are None where the model has no words or no room for a member; `why_not` then says why.
    """

    a: Schedule
    b: Schedule
    decision: str
    moved: tuple[Moved, ...]
    a_s: float | None
    b_s: float | None
    why_not: str | None

    @property
    def values(self) -> tuple[int, int]:
        """The decision's value in A and in B."""
        return self.a.values[self.decision], self.b.values[self.decision]

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The fields moved that no term of the model reads."""
        return tuple(m.field for m in self.moved if not m.priced)

    @property
    def gap(self) -> float | None:
        """The slower prediction over the faster, minus one: 0 for a predicted tie, None without predictions."""
        if self.a_s is None or self.b_s is None:
            return None
        ratio = max(self.a_s, self.b_s) / min(self.a_s, self.b_s)
        return ratio - 1 if ratio > 1 + TIE_RELATIVE else 0.0


@dataclass(frozen=True)
class _Member:
    """A mapping with its profile and what the model says of it."""

    schedule: Schedule
    profile: Profile
    seconds: float | None
    why_not: str | None


# ---- neighbours --------------------------------------------------------------------------------------------------
def neighbours(chosen: Schedule) -> Iterator[tuple[str, Schedule]]:
    """(decision, schedule) for every schedule one decision away, in the order of the domains."""
    for domain in FAMILIES[chosen.family]:
        for value in sorted(domain.values):
            if value != chosen.values[domain.key]:
                yield domain.key, schedule(chosen.family, {**chosen.values, domain.key: value})


def pairs(chosen: Schedule | str, workload: Workload, gpu: Gpu, model: Model | None = None) -> tuple[Pair, ...]:
    """Every pair of a mapping with one that is a decision away and fits the GPU, in the order of the domains.

    Raises Infeasible where the mapping itself does not fit; errors of `parse_schedule` for a text that names none.
    """
    asked = model or corrected()
    base = _member(parse_schedule(chosen) if isinstance(chosen, str) else chosen, workload, gpu, asked)
    if isinstance(base, str):
        raise Infeasible(f"{chosen} does not fit {gpu.name}: {base}")
    found = []
    for decision, other in neighbours(base.schedule):
        member = _member(other, workload, gpu, asked)
        if isinstance(member, _Member):
            found.append(_pair(base, member, decision, asked))
    return tuple(found)


def unpriced(a: Schedule, b: Schedule, workload: Workload, gpu: Gpu, model: Model) -> tuple[str, ...]:
    """The fields in which two mappings differ and that no term of the model reads."""
    profiles = [profile_of(mapping(s, workload, gpu), workload, gpu, "executed") for s in (a, b)]
    return tuple(m.field for m in moved(profiles[0], profiles[1], model) if not m.priced)


def _member(chosen: Schedule, workload: Workload, gpu: Gpu, model: Model) -> _Member | str:
    """The member, or why the GPU has no room for it, whatever the model says."""
    profile = profile_of(
        mapping(chosen, workload, gpu), workload, gpu, "both" if model.count == "buffet" else "executed"
    )
    no_room = [r for r, where in capacity(profile, gpu).items() if bool(np.any(where))]
    if no_room:
        return "; ".join(no_room)
    said = score(model, profile, gpu)
    why_not = "; ".join(r for r, where in said.why_not.items() if bool(np.any(where))) or None
    return _Member(chosen, profile, None if why_not else float(said.seconds), why_not)


def _pair(a: _Member, b: _Member, decision: str, model: Model) -> Pair:
    why_not = a.why_not or b.why_not
    return Pair(a.schedule, b.schedule, decision, moved(a.profile, b.profile, model), a.seconds, b.seconds, why_not)


# ---- what a decision moves ---------------------------------------------------------------------------------------
def moved(a: Profile, b: Profile, model: Model) -> tuple[Moved, ...]:
    """The fields of `KernelProfile`, and the number of launches, in which two realised mappings differ.

    BASELINE reads none of them: it prices counts of its own, of the abstract tree.
    """
    out = []
    for name in (f.name for f in fields(KernelProfile) if f.name not in NOT_COUNTS):
        if _differs(_by_kernel(a, name), _by_kernel(b, name), name in LARGEST):
            out.append(Moved(name, _over_kernels(a, name), _over_kernels(b, name), name in model.fields))
    if len(a.kernels) != len(b.kernels):
        # A launch is charged by terms that are told which launch it is: the first one, or a merge's.
        priced = bool(model.fields & {"first", "merge"})
        out.append(Moved(LAUNCHES, float(len(a.kernels)), float(len(b.kernels)), priced))
    return tuple(out)


def _differs(a: dict[str, float], b: dict[str, float], largest: bool) -> bool:
    if largest:
        return any(a[kernel] != b[kernel] for kernel in a.keys() & b.keys())
    return any(a.get(kernel, 0.0) != b.get(kernel, 0.0) for kernel in a.keys() | b.keys())


def _by_kernel(profile: Profile, name: str) -> dict[str, float]:
    return {k.name: float(getattr(k, name)) for k in profile.kernels}


def _over_kernels(profile: Profile, name: str) -> float:
    values: Any = _by_kernel(profile, name).values()
    return float(max(values) if name in LARGEST else sum(values))


# ---- picking -----------------------------------------------------------------------------------------------------
def pick(found: Sequence[Pair], gap: float, count: int | None = None) -> tuple[Pair, ...]:
    """Pairs with a strict predicted gap above `gap`, at most `count` of them, spread over the decisions.

    Each decision of each family in turn gives one pair, so that the first few cover as many decisions as there are: at
    first the one with the smallest gap, where a model is most easily wrong, then the one with the largest, and so on
    from both ends.  The same pairs in another order give the same answer, and A-B and B-A are one pair.
    """
    waiting: dict[tuple[str, str], list[Pair]] = {}
    seen: set[frozenset[Schedule]] = set()
    clear = [(p.gap, p) for p in found if p.gap is not None and p.gap > max(gap, 0.0)]
    for _, _, pair in sorted(((g, sorted((str(p.a), str(p.b))), p) for g, p in clear), key=lambda each: each[:2]):
        both = frozenset((pair.a, pair.b))
        if both not in seen:
            seen.add(both)
            waiting.setdefault((pair.a.family, pair.decision), []).append(pair)
    turns = [(f, d.key) for f, domains in FAMILIES.items() for d in domains if (f, d.key) in waiting]
    longest = max((len(w) for w in waiting.values()), default=0)
    spread = [_from_both_ends(waiting[t], n) for n in range(longest) for t in turns if n < len(waiting[t])]
    return tuple(spread[:count])


def _from_both_ends(sorted_pairs: Sequence[Pair], n: int) -> Pair:
    """First, last, second, last but one, ..."""
    return sorted_pairs[-1 - n // 2 if n % 2 else n // 2]
