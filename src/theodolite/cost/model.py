"""Models: which count they read, which terms they add up, and what they say of a mapping.

BASELINE   buffet counts of the abstract tree; the maximum over components, summed over Einsums (AccelForge's view)
CORRECTED  executed counts of the realised tree; every term that says `corrected`
TERM,TERM  executed counts and just these terms, besides those that are always on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from theodolite.cost import buffet
from theodolite.cost.capacity import capacity
from theodolite.cost.ledger import Charge, kernel_seconds
from theodolite.cost.profile import KernelProfile, Profile
from theodolite.cost.profiles import profile_of
from theodolite.cost.terms import term, terms
from theodolite.cost.terms.term import Term
from theodolite.errors import TheodoliteError
from theodolite.gpus.gpu import Gpu
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload

Number = Any


@dataclass(frozen=True)
class Model:
    """A count and a set of terms; `terms` is empty for BASELINE, whose prices are the hierarchy's."""

    name: str
    count: Literal["buffet", "executed"]
    terms: tuple[Term, ...]

    @property
    def term_names(self) -> tuple[str, ...]:
        return ("traffic", "compute") if self.count == "buffet" else tuple(t.name for t in self.terms)

    @property
    def fields(self) -> frozenset[str]:
        """The profile fields that the model prices."""
        return frozenset().union(*(t.fields for t in self.terms))


@dataclass(frozen=True)
class Score:
    """Seconds of each step (kernel or Einsum), and where which reason speaks against the mapping; arrays broadcast."""

    steps_s: tuple[Number, ...]
    why_not: Mapping[str, Any]

    @property
    def seconds(self) -> Number:
        total: Number = 0.0
        for step in self.steps_s:
            total = total + step
        return total

    @property
    def feasible(self) -> Any:
        out: Any = np.True_
        for where in self.why_not.values():
            out = np.logical_and(out, np.logical_not(where))
        return out


@dataclass(frozen=True)
class Cost:
    """What a model says of one mapping.

    `seconds` is None exactly where `feasible` is false; `terms` says what each term added, in order, and sums to it.
    `expressible` is false where the model has no words for the mapping, whatever the GPU's room.
    """

    seconds: float | None
    feasible: bool
    why_not: str | None
    terms: Mapping[str, float]
    expressible: bool = True


def baseline() -> Model:
    return Model("BASELINE", "buffet", ())


def corrected() -> Model:
    return Model("CORRECTED", "executed", tuple(t for t in terms().values() if t.corrected or t.always))


def model(text: str) -> Model:
    """`baseline`, `corrected`, or terms separated by commas; UnknownName for an unknown term."""
    if text.lower() == "baseline":
        return baseline()
    if text.lower() == "corrected":
        return corrected()
    named = {term(name.strip()).name for name in text.split(",")}
    chosen = tuple(t for t in terms().values() if t.always or t.name in named)
    return Model("+".join(t.name for t in chosen), "executed", chosen)


def charges(model_: Model, kernel: KernelProfile, gpu: Gpu) -> list[Charge]:
    """What each term of the model charges a kernel, in order."""
    return [t.price(gpu, **{f: getattr(kernel, f) for f in t.fields}) for t in model_.terms]


def score(model_: Model, profile: Profile, gpu: Gpu) -> Score:
    """What the model says of a profile, for one mapping or a whole grid."""
    if model_.count == "buffet":
        if profile.inexpressible is not None:
            return Score((), {profile.inexpressible: np.True_})
        return Score(tuple(e.latency_s for e in profile.einsums), buffet.why_not(profile.einsums))
    steps = tuple(kernel_seconds(charges(model_, k, gpu), gpu) for k in profile.kernels)
    return Score(steps, capacity(profile, gpu))


def floor_s(model_: Model, profile: Profile, gpu: Gpu) -> float:
    """The largest compulsory work over peak rate among the resources that the model's terms price, in seconds."""
    return max((t.floor(gpu, profile.floor) for t in model_.terms if t.floor), default=0.0)


def evaluate(mapping: Tree, workload: Workload, gpu: Gpu, model_: Model | None = None) -> Cost:
    """What a model (CORRECTED if none is given) says of one mapping.

    Raises RuleBroken or Unsupported for a tree that no realisation covers; a mapping that does not fit is no error
    but infeasible, with its reason.
    """
    chosen = model_ or corrected()
    profile = profile_of(mapping, workload, gpu, chosen.count)
    said = score(chosen, profile, gpu)
    if not bool(said.feasible):
        reasons = "; ".join(r for r, where in said.why_not.items() if np.any(where))
        return Cost(None, False, reasons, {}, expressible=bool(said.steps_s))
    seconds = float(said.seconds)
    if not np.isfinite(seconds) or seconds <= 0:
        raise TheodoliteError(f"{chosen.name} says {seconds} s of {mapping.name}: a term or a constant is broken")
    return Cost(seconds, True, None, _shares(chosen, profile, gpu, seconds))


def _shares(chosen: Model, profile: Profile, gpu: Gpu, seconds: float) -> dict[str, float]:
    """What each term adds to the sum when they are added one by one."""
    if chosen.count == "buffet":
        return _baseline_shares(profile, seconds)
    out, before = {}, 0.0
    for i, added in enumerate(chosen.terms):
        part = Model("", "executed", chosen.terms[: i + 1])
        value = float(score(part, profile, gpu).seconds)
        out[added.name], before = value - before, value
    return out


def _baseline_shares(profile: Profile, seconds: float) -> dict[str, float]:
    """Memories alone, then the compute units' excess over them."""
    traffic = sum(max(float(v) for name, v in e.latencies_s.items() if name != e.component) for e in profile.einsums)
    return {"traffic": traffic, "compute": seconds - traffic}
