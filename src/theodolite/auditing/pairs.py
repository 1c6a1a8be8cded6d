"""Frozen pairs and their verdicts: two candidates a pair, one decision apart, judged for every model of the run.

What was measured of a pair is one comparison; all pairs of a run are one family, and each model is held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from theodolite.auditing.conditions import conditions
from theodolite.auditing.judge import prediction_of, sound_samples
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Samples
from theodolite.auditing.verdict import Faster, Outcome, Provenance, Thresholds, Verdict, compare_family, verdict_of
from theodolite.errors import Drift, RunError

OUTCOMES: tuple[Outcome, ...] = ("RIGHT", "WRONG", "UNRESOLVED", "UNMEASURED")


@dataclass(frozen=True)
class FrozenPair:
    """One pair as it was frozen: candidates `a` and `b`, the decision, its two values, and what no term reads.

    `unpriced` names, by model, the fields of the profile that the decision moves and the model does not price.
    """

    id: str
    case: str
    a: str
    b: str
    decision: str
    a_value: int
    b_value: int
    unpriced: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class FrozenPairs:
    """pairs.json: the pairs of a run, the model that they were picked by and the gap that it had to predict."""

    format: int
    model: str
    gap: float
    pairs: tuple[FrozenPair, ...]


@dataclass(frozen=True)
class PairJudged:
    """What the GPU says of one model's order of one pair.  Seconds are None where there is no prediction."""

    pair: FrozenPair
    model: str
    predicted_a_s: float | None
    predicted_b_s: float | None
    measured_faster: Faster | None
    verdict: Verdict
    provenance: Provenance


@dataclass(frozen=True)
class PairJudgement:
    """All pairs of a run, judged by one set of thresholds; one record a pair and model."""

    format: int
    run_id: str
    samples_run_id: str
    gpu: str
    thresholds: Thresholds
    tick_s: float | None
    judged: tuple[PairJudged, ...]
    conditions: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models judged, in the manifest's order."""
        return tuple(dict.fromkeys(j.model for j in self.judged))

    @property
    def decisions(self) -> tuple[str, ...]:
        """The decisions that the pairs turn on, each once, in the order of the pairs."""
        return tuple(dict.fromkeys(j.pair.decision for j in self.judged))

    def of(self, model: str, decision: str | None = None) -> tuple[PairJudged, ...]:
        """What one model got, of all pairs or of those that turn on one decision."""
        return tuple(j for j in self.judged if j.model == model and decision in (None, j.pair.decision))

    def counts(self, model: str, decision: str | None = None) -> dict[Outcome, int]:
        """How many pairs came out how, every outcome named."""
        return outcome_counts(self.of(model, decision))


def outcome_counts(judged: Iterable[PairJudged]) -> dict[Outcome, int]:
    found = Counter(j.verdict.outcome for j in judged)
    return {o: found[o] for o in OUTCOMES}


def judge_frozen_pairs(
    manifest: Manifest,
    pairs: Sequence[FrozenPair],
    samples: Samples,
    frozen_before: Collection[str] | None = None,
    thresholds: Thresholds = Thresholds(),
) -> PairJudgement:
    """A verdict for each pair and model.

    `frozen_before`: ids of the predictions that were frozen before the samples were taken; None where the samples are
    this run's own, which is measured only after it is frozen.  Raises as `judge` does, and Drift for a pair of
    candidates that the manifest does not have.
    """
    known = {c.id: c for c in manifest.candidates}
    for pair in pairs:
        for name in (pair.a, pair.b):
            if name not in known or known[name].case != pair.case:
                raise Drift(f"pair {pair.id} names {name}, no candidate of {pair.case} in run {manifest.run_id}")
    if len({p.id for p in pairs}) != len(pairs):
        raise RunError(f"run {manifest.run_id} has two pairs of one id: freeze it again")
    sound = sound_samples(manifest, samples, frozen_before is not None, thresholds)
    seen = compare_family([sound.paired(p.case, p.a, p.b) for p in pairs], tick_s=sound.tick_s, thresholds=thresholds)
    judged = []
    for pair, comparison in zip(pairs, seen, strict=True):
        for model in manifest.models:
            a_s, b_s = (_seconds(known[name], model.name) for name in (pair.a, pair.b))
            judged.append(
                PairJudged(
                    pair=pair,
                    model=model.name,
                    predicted_a_s=a_s,
                    predicted_b_s=b_s,
                    measured_faster=comparison.faster if comparison else None,
                    verdict=verdict_of(a_s, b_s, comparison),
                    provenance=_provenance((known[pair.a], known[pair.b]), model.name, frozen_before),
                )
            )
    return PairJudgement(
        format=FORMAT,
        run_id=manifest.run_id,
        samples_run_id=samples.run_id,
        gpu=manifest.gpu,
        thresholds=thresholds,
        tick_s=sound.tick_s,
        judged=tuple(judged),
        conditions=conditions(samples.environment),
    )


def _seconds(candidate: Candidate, model: str) -> float | None:
    prediction = prediction_of(candidate, model)
    return None if prediction is None else prediction.seconds


def _provenance(members: Sequence[Candidate], model: str, frozen_before: Collection[str] | None) -> Provenance:
    """Retrodicted as soon as one of the two predictions was not there, or was another, before the measuring."""
    if frozen_before is None:
        return "predicted before"
    found = [prediction_of(m, model) for m in members]
    ids = [p.prediction_id for p in found if p is not None]
    before = len(ids) == len(found) and all(i is not None and i in frozen_before for i in ids)
    return "predicted before" if before else "retrodicted"
