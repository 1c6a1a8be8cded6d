"""The manifest: everything that is frozen before anything is timed, and the samples that come back.

A run directory holds
    manifest.json          this record
    kernels/<id>.py        the program of each candidate, byte for byte what was hashed
    bundle/                run.py and all it needs on a machine with torch and triton
    samples.json.gz        what a GPU answered (absent until measured)
    verdicts.json, report.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from theodolite.lowering.plan import Program

FORMAT = 1


@dataclass(frozen=True)
class GateResult:
    """What one gate said of one candidate.  `figures` holds its measurements (errors, counts, seconds)."""

    gate: str
    passed: bool
    reason: str
    figures: Mapping[str, float | int | str]


@dataclass(frozen=True)
class Prediction:
    """What a model says of a candidate.  `seconds` is None where the model cannot say, and `why_not` tells why."""

    model: str
    seconds: float | None
    why_not: str | None
    terms: Mapping[str, float]
    prediction_id: str | None


@dataclass(frozen=True)
class Model:
    """A model as frozen: its terms in order and every constant that it may read."""

    name: str
    terms: tuple[str, ...]
    constants: Mapping[str, float]


@dataclass(frozen=True)
class Candidate:
    """One mapping, lowered.  `id` is unique in the run; `origin` says who asked for it ("CORRECTED 1", "random 3")."""

    id: str
    case: str
    origin: tuple[str, ...]
    schedule: str | None
    fusion: str
    mapping: str
    realised: str
    refinements: tuple[tuple[str, str], ...]
    program: Program
    kernel_id: str
    predictions: tuple[Prediction, ...]
    gates: tuple[GateResult, ...]
    resources: Mapping[str, Mapping[str, int]]

    @property
    def passed(self) -> bool:
        return bool(self.gates) and all(g.passed for g in self.gates)

    def prediction(self, model: str) -> Prediction:
        return next(p for p in self.predictions if p.model == model)


@dataclass(frozen=True)
class Manifest:
    """A frozen run.  `cases` maps a case's name ("sdpa:A") to the workload's canonical name."""

    format: int
    run_id: str
    gpu: str
    seed: int
    cases: Mapping[str, str]
    models: tuple[Model, ...]
    toolchain: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    space: Mapping[str, Any]


@dataclass(frozen=True)
class Timing:
    """Every sample of one candidate, in seconds, in the order of the rounds; `status` is "ok" or what went wrong.

    `energy`, where it was asked for: {"joules", "gross_w", "idle_w", "replays", "seconds"}, or {"why_not"}.
    """

    candidate: str
    kernel_id: str
    status: str
    detail: str
    gates: tuple[GateResult, ...]
    samples_s: tuple[float, ...]
    energy: Mapping[str, float | str] | None = None


@dataclass(frozen=True)
class Samples:
    """One recorded run on a GPU.  `environment` holds device, driver, clocks, versions, tick and protocol figures."""

    format: int
    run_id: str
    environment: Mapping[str, Any]
    timings: tuple[Timing, ...]
