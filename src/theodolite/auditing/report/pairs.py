"""The section of a run of pairs: counts by model and decision, the WRONG pairs, the unpriced fields beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from theodolite.auditing.manifest import Candidate, Manifest
from theodolite.auditing.pairs import FrozenPairs, PairJudged, PairJudgement, outcome_counts
from theodolite.auditing.ranking import tied
from theodolite.auditing.report.units import DASH, percent, percents
from theodolite.auditing.verdict import Outcome

Counts = Mapping[Outcome, int]


@dataclass(frozen=True)
class ModelRow:
    """One model: its counts, why pairs are UNRESOLVED, and how many verdicts have which provenance."""

    model: str
    counts: Counts
    unresolved: Mapping[str, int]
    provenance: Mapping[str, int]


@dataclass(frozen=True)
class DecisionRow:
    """One decision: how many pairs turn on it, and a model's counts of them."""

    decision: str
    pairs: int
    counts: tuple[Counts, ...]


@dataclass(frozen=True)
class PairRow:
    """One pair and one model's verdict.

    `before` and `after` are the decisions that its members share.  Predicted and measured name the faster member by its
    value of the decision and say by how much, so that a pair and its mirror image read alike.
    """

    judged: PairJudged
    before: str
    after: str
    predicted: str
    measured: str
    interval: str
    unpriced: tuple[str, ...]


@dataclass(frozen=True)
class FieldRow:
    """A field that some pairs move and the model does not price: its counts over those, and over all the others."""

    field: str
    moved: Counts
    still: Counts


@dataclass(frozen=True)
class ModelFaults:
    """What one model gets wrong, largest measured gap first, and the unpriced fields that go with it."""

    model: str
    wrong: tuple[PairRow, ...]
    fields: tuple[FieldRow, ...]


@dataclass(frozen=True)
class PairsView:
    """The whole section; `picked_by` and `gap` say what a pair had to show to be in it.

    `everyone` has one row a pair and model, those of a pair together.
    """

    run_id: str
    picked_by: str
    gap: str
    count: int
    models: tuple[ModelRow, ...]
    decisions: tuple[DecisionRow, ...]
    faults: tuple[ModelFaults, ...]
    everyone: tuple[tuple[PairRow, ...], ...]


def pairs_view(manifest: Manifest, frozen: FrozenPairs, judgement: PairJudgement) -> PairsView:
    """What the page shows of a judged run of pairs; before the measuring, of one whose pairs are all UNMEASURED."""
    known = {c.id: c for c in manifest.candidates}
    rows = tuple(_pair_row(j, known[j.pair.a]) for j in judgement.judged)
    models = judgement.models
    decisions = tuple(
        DecisionRow(d, len(judgement.of(models[0], d)), tuple(judgement.counts(m, d) for m in models))
        for d in judgement.decisions
    )
    return PairsView(
        run_id=judgement.run_id,
        picked_by=frozen.model,
        gap=percent(frozen.gap),
        count=len(frozen.pairs),
        models=tuple(_model_row(m, judgement) for m in models),
        decisions=decisions,
        faults=tuple(_faults(m, [r for r in rows if r.judged.model == m]) for m in models),
        everyone=tuple(rows[n : n + len(models)] for n in range(0, len(rows), len(models))),
    )


def _model_row(model: str, judgement: PairJudgement) -> ModelRow:
    own = judgement.of(model)
    reasons = Counter(j.verdict.reason for j in own if j.verdict.outcome == "UNRESOLVED")
    return ModelRow(
        model=model,
        counts=judgement.counts(model),
        unresolved=dict(reasons.most_common()),
        provenance=dict(Counter(j.provenance for j in own).most_common()),
    )


def _faults(model: str, rows: Sequence[PairRow]) -> ModelFaults:
    wrong = [r for r in rows if r.judged.verdict.outcome == "WRONG"]
    wrong.sort(key=lambda r: (-(r.judged.verdict.gap or 0.0), r.judged.pair.id))
    named = dict.fromkeys(f for r in rows for f in r.unpriced)
    fields = [
        FieldRow(
            field=f,
            moved=outcome_counts(r.judged for r in rows if f in r.unpriced),
            still=outcome_counts(r.judged for r in rows if f not in r.unpriced),
        )
        for f in named
    ]
    fields.sort(key=lambda f: (-f.moved["WRONG"], f.moved["RIGHT"], f.field))
    return ModelFaults(model, tuple(wrong), tuple(fields))


def _pair_row(judged: PairJudged, a: Candidate) -> PairRow:
    pair, verdict = judged.pair, judged.verdict
    before, after = _shared(a.schedule or "", pair.decision)
    names = {"A": f"{pair.decision}={pair.a_value}", "B": f"{pair.decision}={pair.b_value}"}
    measured = DASH
    if verdict.gap is not None:
        who = f"{names[judged.measured_faster]} by" if judged.measured_faster else "open,"
        measured = f"{who} {percent(verdict.gap)}"
    return PairRow(
        judged=judged,
        before=before,
        after=after,
        predicted=_predicted(judged.predicted_a_s, judged.predicted_b_s, names),
        measured=measured,
        interval=percents(verdict.gap_interval),
        unpriced=pair.unpriced.get(judged.model, ()),
    )


def _shared(schedule: str, decision: str) -> tuple[str, str]:
    """A schedule's decisions before and after the one that a pair turns on: `flash:bm=64, bn=32` and `warps=4, ...`."""
    family, _, rest = schedule.partition(":")
    words = rest.split(",")
    at = next((n for n, w in enumerate(words) if w.startswith(f"{decision}=")), len(words))
    return f"{family}: {' '.join(words[:at])}".rstrip(), " ".join(words[at + 1 :])


def _predicted(a_s: float | None, b_s: float | None, names: Mapping[str, str]) -> str:
    if a_s is None or b_s is None:
        return "not ranked"
    if tied(a_s, b_s):
        return "a tie"
    faster = "A" if a_s < b_s else "B"
    return f"{names[faster]} by {percent(max(a_s, b_s) / min(a_s, b_s) - 1)}"
