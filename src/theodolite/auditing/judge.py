"""Manifest + Samples -> Judgement: every model against every case, and what may not be said of whom.

A candidate counts as measured only where everything holds: its gates passed before and on the GPU, its timing says
"ok", its samples are positive, and what was timed is what the manifest froze.  Anything else is UNMEASURED.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Prediction, Samples, Timing
from theodolite.auditing.ranking import Ranking, Standing, rank
from theodolite.auditing.verdict import Thresholds, Verdict, judge_pair
from theodolite.errors import Drift, RunError

AGAIN = "#again"
RECORDED_LOWERING = "recorded lowering"
TICK_KEYS = ("event_tick_s", "tick_s")


@dataclass(frozen=True)
class Measured:
    """What the GPU said of one candidate; times in seconds, None where it is UNMEASURED for `reason`.

    `note` marks a time of the same mapping in an earlier lowering.
    """

    candidate: str
    case: str
    status: Literal["MEASURED", "UNMEASURED"]
    reason: str | None
    note: str | None = None
    samples: int = 0
    median_s: float | None = None
    q05_s: float | None = None
    q25_s: float | None = None
    q75_s: float | None = None
    q95_s: float | None = None


@dataclass(frozen=True)
class SameKernel:
    """The A/A check of a case: one kernel under two names.  A sound protocol leaves it UNRESOLVED."""

    case: str
    candidate: str
    verdict: Verdict


@dataclass(frozen=True)
class PairVerdict:
    """The verdict on one of a ranking's worst inversions: does its measured order stand?"""

    case: str
    model: str
    predicted_faster: str
    measured_faster: str
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A run, judged.  `provenance` says whether the predictions were frozen before the samples were taken."""

    format: int
    run_id: str
    samples_run_id: str
    gpu: str
    provenance: Literal["predicted before", "retrodicted"]
    thresholds: Thresholds
    tick_s: float | None
    measured: tuple[Measured, ...]
    rankings: tuple[Ranking, ...]
    same: tuple[SameKernel, ...]
    verdicts: tuple[PairVerdict, ...]

    def of(self, candidate: str) -> Measured:
        return next(m for m in self.measured if m.candidate == candidate)

    def ranking(self, case: str, model: str) -> Ranking:
        return next(r for r in self.rankings if r.case == case and r.model == model)


def judge(
    manifest: Manifest,
    samples: Samples,
    recorded: bool,
    thresholds: Thresholds = Thresholds(),
    frozen_before: bool = False,
) -> Judgement:
    """Judge every model of a manifest on every case.

    `recorded` says that the samples may belong to another, earlier run: predictions are then *retrodicted*, unless
    `frozen_before` says that the earlier run had frozen the very same ones.  Raises Drift where samples of another run
    come with `recorded=False`, RunError for timings that name no candidate of the manifest or one candidate twice.
    """
    if not recorded and samples.run_id != manifest.run_id:
        raise Drift(f"samples of run {samples.run_id} do not belong to {manifest.run_id}: judge them as recorded")
    for candidate in manifest.candidates:
        if candidate.case not in manifest.cases:
            raise RunError(
                f"{candidate.id} belongs to {candidate.case!r}, no case of {manifest.run_id}: freeze it again"
            )
    timings = _timings(manifest, samples)
    candidates = [c for c in manifest.candidates if not c.id.endswith(AGAIN)]
    measured = {c.id: _measured(c, timings.get(c.id)) for c in candidates}
    rankings = tuple(
        rank(case, model.name, [_standing(c, measured[c.id], model.name) for c in candidates if c.case == case])
        for case in manifest.cases
        for model in manifest.models
    )
    series = {c: timings[c].samples_s if m.status == "MEASURED" else None for c, m in measured.items() if c in timings}
    tick_s = event_tick_s(samples.environment)
    return Judgement(
        format=FORMAT,
        run_id=manifest.run_id,
        samples_run_id=samples.run_id,
        gpu=manifest.gpu,
        provenance="retrodicted" if recorded and not frozen_before else "predicted before",
        thresholds=thresholds,
        tick_s=tick_s,
        measured=tuple(measured.values()),
        rankings=rankings,
        same=_same(candidates, timings, series, tick_s, thresholds),
        verdicts=_verdicts(manifest, rankings, series, tick_s, thresholds),
    )


def event_tick_s(environment: Mapping[str, Any]) -> float | None:
    """The event tick of a recording in seconds; None, which resolves no pair, where it holds none."""
    for key in TICK_KEYS:
        value = environment.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
            return float(value)
    return None


def prediction_of(candidate: Candidate, model: str) -> Prediction | None:
    """A model's prediction for a candidate, None where the manifest holds none."""
    return next((p for p in candidate.predictions if p.model == model), None)


def _timings(manifest: Manifest, samples: Samples) -> dict[str, Timing]:
    known = {c.id for c in manifest.candidates}
    found: dict[str, Timing] = {}
    for timing in samples.timings:
        if timing.candidate.removesuffix(AGAIN) not in known:
            raise RunError(f"samples time {timing.candidate!r}, which the manifest does not have: use its own manifest")
        if timing.candidate in found:
            raise RunError(f"samples time {timing.candidate!r} twice: keep one timing a candidate")
        found[timing.candidate] = timing
    return found


def _unmeasured_because(candidate: Candidate, timing: Timing | None) -> str | None:
    """Why a candidate has no measured time, None where it has one."""
    for gate in candidate.gates:
        if not gate.passed:
            return f"gate {gate.gate} failed: {gate.reason}"
    if not candidate.gates:
        return "no gate was run"
    if timing is None:
        return "not in the samples"
    for gate in timing.gates:
        if not gate.passed:
            return f"gate {gate.gate} failed on the GPU: {gate.reason}"
    if timing.status != "ok":
        return f"{timing.status}: {timing.detail}" if timing.detail else timing.status
    if timing.kernel_id != candidate.kernel_id and RECORDED_LOWERING not in timing.detail:
        return f"another kernel was timed: {timing.kernel_id[:12]}, not {candidate.kernel_id[:12]}"
    if not timing.samples_s:
        return "no samples"
    if not all(math.isfinite(s) and s > 0 for s in timing.samples_s):
        return "a sample is not a positive time"
    return None


def _measured(candidate: Candidate, timing: Timing | None) -> Measured:
    reason = _unmeasured_because(candidate, timing)
    if reason is not None or timing is None:
        return Measured(candidate.id, candidate.case, "UNMEASURED", reason)
    q05, q25, median, q75, q95 = (float(q) for q in np.quantile(timing.samples_s, (0.05, 0.25, 0.5, 0.75, 0.95)))
    note = RECORDED_LOWERING if timing.kernel_id != candidate.kernel_id else None
    count = len(timing.samples_s)
    return Measured(candidate.id, candidate.case, "MEASURED", None, note, count, median, q05, q25, q75, q95)


def _standing(candidate: Candidate, measured: Measured, model: str) -> Standing:
    prediction = prediction_of(candidate, model)
    if prediction is None:
        return Standing(candidate.id, measured.median_s, None, "the manifest holds no prediction")
    return Standing(candidate.id, measured.median_s, prediction.seconds, prediction.why_not)


def _same(
    candidates: list[Candidate],
    timings: Mapping[str, Timing],
    series: Mapping[str, tuple[float, ...] | None],
    tick_s: float | None,
    thresholds: Thresholds,
) -> tuple[SameKernel, ...]:
    """One kernel twice is a predicted tie, by definition: a measured order that stands makes the check WRONG."""
    found = []
    for candidate in candidates:
        again = timings.get(candidate.id + AGAIN)
        if again is None:
            continue
        second = again.samples_s if again.status == "ok" and again.samples_s else None
        verdict = judge_pair(1.0, 1.0, series.get(candidate.id), second, tick_s=tick_s, thresholds=thresholds)
        found.append(SameKernel(candidate.case, candidate.id, verdict))
    return tuple(found)


def _verdicts(
    manifest: Manifest,
    rankings: tuple[Ranking, ...],
    series: Mapping[str, tuple[float, ...] | None],
    tick_s: float | None,
    thresholds: Thresholds,
) -> tuple[PairVerdict, ...]:
    predicted = {(c.id, p.model): p.seconds for c in manifest.candidates for p in c.predictions}
    found = []
    for ranking in rankings:
        for pair in ranking.worst:
            a, b = pair.predicted_faster, pair.measured_faster
            verdict = judge_pair(
                predicted[a, ranking.model],
                predicted[b, ranking.model],
                series.get(a),
                series.get(b),
                tick_s=tick_s,
                thresholds=thresholds,
            )
            found.append(PairVerdict(ranking.case, ranking.model, a, b, verdict))
    return tuple(found)
