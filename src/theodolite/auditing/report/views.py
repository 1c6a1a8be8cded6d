"""What the page shows, worked out before any HTML: rows whose cells are text, with a number to sort by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from theodolite.auditing.judge import AGAIN, Judgement, Measured, SameKernel, prediction_of
from theodolite.auditing.manifest import Candidate, GateResult, Manifest, Prediction, Samples, Timing
from theodolite.auditing.ranking import Ranking
from theodolite.auditing.report.failures import Failures, failures
from theodolite.auditing.report.plots import Plot, Point, draw, limits_us
from theodolite.auditing.report.units import DASH, us

RESOURCE_PREFIXES = ("reg", "spill", "stack", "shared")


@dataclass(frozen=True)
class Cell:
    """Text with the number that its column sorts by; None sorts last."""

    text: str
    value: float | None = None
    title: str = ""


@dataclass(frozen=True)
class CandidateView:
    """One candidate, as a table row and as the details below it."""

    candidate: Candidate
    anchor: str
    measured: Measured | None
    predictions: tuple[Cell, ...]
    median: Cell
    spread: str
    energy: Cell
    resources: tuple[Cell, ...]
    gates: tuple[GateResult, ...]
    gates_on_gpu: tuple[GateResult, ...]

    @property
    def failed(self) -> tuple[GateResult, ...]:
        return tuple(g for g in (*self.gates, *self.gates_on_gpu) if not g.passed)

    @property
    def gate_word(self) -> str:
        if self.failed:
            return f"FAIL {self.failed[0].gate}"
        return "pass" if self.gates else "none run"


@dataclass(frozen=True)
class CaseView:
    """One case: its rankings, figures, failures and candidates."""

    name: str
    anchor: str
    workload: str
    rankings: tuple[Ranking, ...]
    same: tuple[SameKernel, ...]
    plots: tuple[str, ...]
    failures: tuple[Failures, ...]
    candidates: tuple[CandidateView, ...]

    @property
    def has_energy(self) -> bool:
        return any(c.energy.text != DASH for c in self.candidates)

    @property
    def same_floor(self) -> float | None:
        """The widest gap that one kernel shows against itself."""
        return max((s.floor_gap for s in self.same if s.floor_gap is not None), default=None)


@dataclass(frozen=True)
class PageView:
    """The whole page."""

    manifest: Manifest
    samples: Samples | None
    judgement: Judgement | None
    models: tuple[str, ...]
    resource_keys: tuple[str, ...]
    cases: tuple[CaseView, ...]

    @property
    def anchors(self) -> dict[str, str]:
        """Candidate id -> the id of its place on the page."""
        return {c.candidate.id: c.anchor for case in self.cases for c in case.candidates}

    @property
    def failed(self) -> tuple[CandidateView, ...]:
        return tuple(c for case in self.cases for c in case.candidates if c.failed or not c.gates)

    @property
    def unmeasured(self) -> tuple[CandidateView, ...]:
        """Those that passed their gates and still have no time."""
        everyone = (c for case in self.cases for c in case.candidates)
        return tuple(c for c in everyone if c.measured and c.measured.median_s is None and c not in self.failed)


def page_view(manifest: Manifest, samples: Samples | None, judgement: Judgement | None) -> PageView:
    """Everything on the page; without a judgement the predictions and gates alone."""
    models = tuple(m.name for m in manifest.models)
    found = {k for c in manifest.candidates for kernel in c.resources.values() for k in kernel}
    keys = tuple(k for prefix in RESOURCE_PREFIXES for k in sorted(found) if k.startswith(prefix))
    views = [
        _candidate_view(n, c, models, keys, samples, judgement)
        for n, c in enumerate(manifest.candidates)
        if not c.id.endswith(AGAIN)
    ]
    cases = tuple(
        _case_view(n, name, workload, [v for v in views if v.candidate.case == name], models, judgement)
        for n, (name, workload) in enumerate(manifest.cases.items())
    )
    return PageView(manifest, samples, judgement, models, keys, cases)


def _candidate_view(
    number: int,
    candidate: Candidate,
    models: tuple[str, ...],
    keys: tuple[str, ...],
    samples: Samples | None,
    judgement: Judgement | None,
) -> CandidateView:
    timings = () if samples is None else samples.timings
    timing = next((t for t in timings if t.candidate == candidate.id), None)
    measured = None if judgement is None else judgement.of(candidate.id)
    return CandidateView(
        candidate=candidate,
        anchor=f"c{number}-" + re.sub(r"[^A-Za-z0-9]+", "-", candidate.id).strip("-"),
        measured=measured,
        predictions=tuple(_prediction_cell(prediction_of(candidate, m)) for m in models),
        median=_median_cell(measured),
        spread=DASH if measured is None or measured.q05_s is None else f"{us(measured.q05_s)} – {us(measured.q95_s)}",
        energy=_energy_cell(timing),
        resources=tuple(_resource_cell(candidate.resources, key) for key in keys),
        gates=candidate.gates,
        gates_on_gpu=() if timing is None else timing.gates,
    )


def _prediction_cell(prediction: Prediction | None) -> Cell:
    if prediction is None:
        return Cell("none frozen")
    if prediction.seconds is None:
        reason = prediction.why_not or "the model gives no reason"
        word = next((k for k in ("inexpressible", "infeasible") if k in reason.lower()), "not ranked")
        return Cell(word, None, reason)
    return Cell(us(prediction.seconds), prediction.seconds)


def _median_cell(measured: Measured | None) -> Cell:
    if measured is None:
        return Cell("not yet")
    if measured.median_s is None:
        return Cell("UNMEASURED", None, measured.reason or "")
    note = measured.note or ""
    return Cell(us(measured.median_s) + (" *" if note else ""), measured.median_s, note)


def _energy_cell(timing: Timing | None) -> Cell:
    """Millijoules a run, where the energy was asked for."""
    energy = None if timing is None else timing.energy
    if not energy:
        return Cell(DASH)
    joules = energy.get("joules")
    if not isinstance(joules, float):
        return Cell("unread", None, str(energy.get("why_not", "")))
    title = f"{energy['gross_w']:.0f} W less {energy['idle_w']:.0f} W idle, over {energy['replays']:,} runs"
    return Cell(f"{joules * 1e3:.3g}", joules, title)


def _resource_cell(resources: Mapping[str, Mapping[str, int]], key: str) -> Cell:
    """The largest value over the kernels of a program."""
    values = [kernel[key] for kernel in resources.values() if key in kernel]
    return Cell(f"{max(values):,}", max(values)) if values else Cell(DASH)


def _case_view(
    number: int,
    name: str,
    workload: str,
    views: list[CandidateView],
    models: tuple[str, ...],
    judgement: Judgement | None,
) -> CaseView:
    views = sorted(views, key=lambda v: (v.median.value is None, v.median.value or 0.0, v.candidate.id))
    rankings = () if judgement is None else tuple(r for r in judgement.rankings if r.case == name)
    same = () if judgement is None else tuple(s for s in judgement.same if s.case == name)
    return CaseView(
        name=name,
        anchor=f"case{number}",
        workload=workload,
        rankings=rankings,
        same=same,
        plots=tuple(draw(p) for p in plots_of(name, views, models, rankings)),
        failures=() if judgement is None else failures(rankings, [v.candidate for v in views], judgement),
        candidates=tuple(views),
    )


def plots_of(
    case: str, views: list[CandidateView], models: tuple[str, ...], rankings: tuple[Ranking, ...]
) -> tuple[Plot, ...]:
    """One plot a model over the measured candidates; none where nothing was measured."""
    times = [v.median.value for v in views if v.median.value is not None]
    if not times or not rankings:
        return ()
    plots = []
    for column, model in enumerate(models):
        ranking = next(r for r in rankings if r.model == model)
        tied = {c for group in ranking.ties for c in group.candidates}
        pick = ranking.pick.candidate if ranking.pick else None
        points = tuple(
            Point(
                candidate=v.candidate.id,
                anchor=v.anchor,
                fusion=v.candidate.fusion,
                measured_s=v.median.value,
                predicted_s=v.predictions[column].value,
                tied=v.candidate.id in tied,
                picked=v.candidate.id == pick,
            )
            for v in views
            if v.median.value is not None
        )
        plots.append(Plot(case, model, points, limits_us(times)))
    return tuple(plots)
