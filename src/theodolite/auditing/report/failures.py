"""Where a model fails on a case: what it cannot tell apart and what it orders wrongly, beside another model's word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from theodolite.auditing.judge import Judgement, prediction_of
from theodolite.auditing.manifest import Candidate
from theodolite.auditing.ranking import Bucket, Inversion, Ranking, Standing, TieGroup, rank, tied
from theodolite.auditing.report.units import times
from theodolite.auditing.verdict import Verdict

TIES_LISTED = 12


@dataclass(frozen=True)
class OtherWord:
    """What the other model says of the same pair: a class for colour, and words."""

    kind: str
    text: str


@dataclass(frozen=True)
class TieRow:
    """A tie group, and how the other model orders its fastest and slowest and all its clear pairs."""

    group: TieGroup
    other: OtherWord | None
    other_clear: Bucket | None


@dataclass(frozen=True)
class InversionRow:
    """A wrongly ordered pair: both predictions and both measured times, in seconds."""

    pair: Inversion
    verdict: Verdict
    predicted_s: tuple[float, float]
    measured_s: tuple[float, float]
    other: OtherWord | None


@dataclass(frozen=True)
class Failures:
    """All that one model gets wrong on one case; `other` is the model shown beside it, None where there is none."""

    ranking: Ranking
    other: str | None
    ties: tuple[TieRow, ...]
    ties_left_out: int
    inversions: tuple[InversionRow, ...]


def failures(
    rankings: Sequence[Ranking], candidates: Sequence[Candidate], judgement: Judgement
) -> tuple[Failures, ...]:
    """One record a model of a case, in the order of the rankings."""
    return tuple(
        _failures(r, next((o.model for o in rankings if o.model != r.model), None), candidates, judgement)
        for r in rankings
    )


def _failures(ranking: Ranking, other: str | None, candidates: Sequence[Candidate], judgement: Judgement) -> Failures:
    mine = _seconds(candidates, ranking.model)
    theirs = None if other is None else _seconds(candidates, other)
    ties = tuple(_tie_row(ranking, g, other, theirs, judgement) for g in ranking.ties[:TIES_LISTED])
    verdicts = {
        (v.predicted_faster, v.measured_faster): v.verdict
        for v in judgement.verdicts
        if (v.case, v.model) == (ranking.case, ranking.model)
    }
    inversions = tuple(
        InversionRow(
            pair=pair,
            verdict=verdicts[pair.predicted_faster, pair.measured_faster],
            predicted_s=(mine[pair.predicted_faster] or 0.0, mine[pair.measured_faster] or 0.0),
            measured_s=(_median_s(judgement, pair.predicted_faster), _median_s(judgement, pair.measured_faster)),
            other=None if theirs is None else other_word(theirs, pair.measured_faster, pair.predicted_faster),
        )
        for pair in ranking.worst
    )
    return Failures(ranking, other, ties, len(ranking.ties) - len(ties), inversions)


def other_word(seconds: Mapping[str, float | None], faster: str, slower: str) -> OtherWord:
    """Whether a model puts `faster` ahead of `slower`, and by how much."""
    a, b = seconds[faster], seconds[slower]
    if a is None or b is None:
        return OtherWord("even", "not ranked")
    if tied(a, b):
        return OtherWord("even", "a tie")
    return OtherWord("right", f"right, {times(b / a)}") if a < b else OtherWord("wrong", f"wrong, {times(a / b)}")


def _tie_row(
    ranking: Ranking,
    group: TieGroup,
    other: str | None,
    theirs: Mapping[str, float | None] | None,
    judgement: Judgement,
) -> TieRow:
    if other is None or theirs is None:
        return TieRow(group, None, None)
    inside = rank(ranking.case, other, [Standing(c, _median_s(judgement, c), theirs[c]) for c in group.candidates])
    return TieRow(group, other_word(theirs, group.candidates[0], group.candidates[-1]), inside.clear)


def _seconds(candidates: Sequence[Candidate], model: str) -> dict[str, float | None]:
    found = {c.id: prediction_of(c, model) for c in candidates}
    return {name: None if p is None else p.seconds for name, p in found.items()}


def _median_s(judgement: Judgement, candidate: str) -> float:
    """The median of a candidate that a ranking holds, which is therefore measured."""
    median_s = judgement.of(candidate).median_s
    assert median_s is not None
    return median_s
