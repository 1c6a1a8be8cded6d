"""Manifest + Samples -> Judgement: every model against every case, and what may not be said of whom.

A candidate counts as measured only where everything holds: its gates passed before and on the GPU, its timing says
"ok", its samples are positive, and what was timed is what the manifest froze.  Anything else is UNMEASURED.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from theodolite.auditing.bench.bundle import floor_s
from theodolite.auditing.conditions import conditions, disqualified
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Prediction, Samples, Timing
from theodolite.auditing.ranking import Ranking, Standing, rank
from theodolite.auditing.resample import resampled_medians
from theodolite.auditing.verdict import (
    Comparison,
    Paired,
    Provenance,
    Thresholds,
    Verdict,
    compare,
    compare_family,
    same_kernel_gap,
    verdict_of,
)
from theodolite.errors import Drift, RunError
from theodolite.gpus import gpu as gpu_named
from theodolite.workloads import workload as workload_named

AGAIN = "#again"
RECORDED_LOWERING = "recorded lowering"
LONGEST_S = 1e5  # a sample of a day is none
NUMERICS = "numerics"  # what the gates on the GPU that look at outputs are called, and after which inputs
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
    """The A/A check of a case: one kernel under two names.  A sound protocol leaves it UNRESOLVED.

    `floor_gap` is the smallest gap that means anything in the case; None where the second name has no sound samples.
    """

    case: str
    candidate: str
    verdict: Verdict
    floor_gap: float | None


@dataclass(frozen=True)
class PairVerdict:
    """The verdict on one of a ranking's worst inversions: does its measured order stand?"""

    case: str
    model: str
    predicted_faster: str
    measured_faster: str
    verdict: Verdict
    provenance: Provenance


@dataclass(frozen=True)
class Judgement:
    """A run, judged.  `provenance` says whether the predictions were frozen before the samples were taken.

    `family` is how many measured pairs of a case there are, over all cases: each verdict is corrected for all of them,
    since the pairs shown were chosen after looking.  `conditions`: what was not ordinary about the measuring.
    """

    format: int
    run_id: str
    samples_run_id: str
    gpu: str
    provenance: Provenance
    thresholds: Thresholds
    tick_s: float | None
    family: int
    measured: tuple[Measured, ...]
    rankings: tuple[Ranking, ...]
    same: tuple[SameKernel, ...]
    verdicts: tuple[PairVerdict, ...]
    conditions: tuple[str, ...] = ()

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
    sound = sound_samples(manifest, samples, recorded, thresholds)
    candidates = [c for c in manifest.candidates if not c.id.endswith(AGAIN)]
    rankings: list[Ranking] = []
    for case in manifest.cases:
        own = [c for c in candidates if c.case == case]
        medians = resampled_medians({c.id: series for c in own if (series := sound.series.get(c.id))})
        rankings += [
            rank(case, m.name, [_standing(c, sound.measured[c.id], m.name) for c in own], medians)
            for m in manifest.models
        ]
    counts = [
        sum(m.status == "MEASURED" and m.case == case for m in sound.measured.values()) for case in manifest.cases
    ]
    family = sum(n * (n - 1) // 2 for n in counts)
    provenance: Provenance = "retrodicted" if recorded and not frozen_before else "predicted before"
    return Judgement(
        format=FORMAT,
        run_id=manifest.run_id,
        samples_run_id=samples.run_id,
        gpu=manifest.gpu,
        provenance=provenance,
        thresholds=thresholds,
        tick_s=sound.tick_s,
        family=family,
        measured=tuple(sound.measured.values()),
        rankings=tuple(rankings),
        same=sound.same,
        verdicts=_verdicts(manifest, rankings, sound, thresholds, family, provenance),
        conditions=conditions(samples.environment),
    )


# ---- what may be judged at all -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sound:
    """The samples that count.

    series: of each measured candidate, in seconds in the order of the rounds.  same: the A/A checks.
    """

    measured: Mapping[str, Measured]
    series: Mapping[str, Sequence[float]]
    same: tuple[SameKernel, ...]
    tick_s: float | None

    def same_gap(self, case: str) -> float | None:
        """The floor under every gap of a case: its widest A/A check; None where it has none."""
        gaps = [s.floor_gap for s in self.same if s.case == case and s.floor_gap is not None]
        return max(gaps, default=None)

    def paired(self, case: str, a: str, b: str) -> Paired:
        return Paired(self.series.get(a), self.series.get(b), self.same_gap(case))


def sound_samples(manifest: Manifest, samples: Samples, recorded: bool, thresholds: Thresholds) -> Sound:
    """What a recording says of a manifest's candidates; raises as `judge` does."""
    if not recorded and samples.run_id != manifest.run_id:
        raise Drift(f"samples of run {samples.run_id} do not belong to {manifest.run_id}: judge them as recorded")
    for candidate in manifest.candidates:
        if candidate.case not in manifest.cases:
            raise RunError(
                f"{candidate.id} belongs to {candidate.case!r}, no case of {manifest.run_id}: freeze it again"
            )
    timings = _timings(manifest, samples)
    candidates = [c for c in manifest.candidates if not c.id.endswith(AGAIN)]
    void = disqualified(samples.environment)
    gpu = gpu_named(manifest.gpu)
    floors_s = {case: floor_s(workload_named(name), gpu) for case, name in manifest.cases.items()}
    measured = {c.id: _measured(c, timings.get(c.id), floors_s[c.case], void) for c in candidates}
    series = {c: timings[c].samples_s for c, m in measured.items() if m.status == "MEASURED"}
    tick_s = event_tick_s(samples.environment)
    return Sound(measured, series, _same(candidates, timings, series, floors_s, tick_s, thresholds), tick_s)


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


def _unmeasured_because(candidate: Candidate, timing: Timing | None, least_s: float) -> str | None:
    """Why a candidate has no measured time, None where it has one; no time can be below `least_s`."""
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
    if not all(math.isfinite(s) and 0 < s < LONGEST_S for s in timing.samples_s):
        return "a sample is not a positive time"
    if min(timing.samples_s) < least_s:
        return f"{min(timing.samples_s):.3g} s is below the {least_s:.3g} s that the peaks allow"
    return None


def _measured(candidate: Candidate, timing: Timing | None, least_s: float, void: str | None) -> Measured:
    reason = _unmeasured_because(candidate, timing, least_s) or void
    if reason is None and timing is not None and not any(g.gate.startswith(NUMERICS) for g in timing.gates):
        reason = "its outputs were not looked at on the GPU"
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
    series: Mapping[str, Sequence[float]],
    floors_s: Mapping[str, float],
    tick_s: float | None,
    thresholds: Thresholds,
) -> tuple[SameKernel, ...]:
    """One kernel twice is a predicted tie, by definition: a measured order that stands makes the check WRONG."""
    found = []
    for candidate in candidates:
        again = timings.get(candidate.id + AGAIN)
        if again is None:
            continue
        seen: Comparison | None = None
        if candidate.id in series and _unmeasured_because(candidate, again, floors_s[candidate.case]) is None:
            # Nothing is under this floor, and no correction makes it milder: it is the protocol that stands trial.
            seen = compare(series[candidate.id], again.samples_s, tick_s=tick_s, same_gap=0.0, thresholds=thresholds)
        floor_gap = None if seen is None else same_kernel_gap(seen)
        found.append(SameKernel(candidate.case, candidate.id, verdict_of(1.0, 1.0, seen), floor_gap))
    return tuple(found)


def _verdicts(
    manifest: Manifest,
    rankings: Sequence[Ranking],
    sound: Sound,
    thresholds: Thresholds,
    family: int,
    provenance: Provenance,
) -> tuple[PairVerdict, ...]:
    """One a worst inversion.  What was measured of a pair is one comparison, however many models get it wrong."""
    predicted = {(c.id, p.model): p.seconds for c in manifest.candidates for p in c.predictions}
    listed = [(r, w.predicted_faster, w.measured_faster) for r in rankings for w in r.worst]
    pairs = list(dict.fromkeys((r.case, *sorted((a, b))) for r, a, b in listed))
    seen = compare_family(
        [sound.paired(*pair) for pair in pairs], tick_s=sound.tick_s, thresholds=thresholds, family=family
    )
    by_pair = dict(zip(pairs, seen, strict=True))
    found = []
    for r, a, b in listed:
        first, second = sorted((a, b))
        verdict = verdict_of(predicted[first, r.model], predicted[second, r.model], by_pair[r.case, first, second])
        found.append(PairVerdict(r.case, r.model, a, b, verdict, provenance))
    return tuple(found)
