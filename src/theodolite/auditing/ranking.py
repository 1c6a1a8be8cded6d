"""How well one model orders the candidates of one case, against what a GPU measured.

Only the order counts here: every figure but the regret stays the same when all predictions are multiplied by a number.
Nothing is dropped in silence: who is not ranked is listed with the reason, and a predicted tie counts as a wrong pair.
The main figures come with intervals (`metrics.py`), for the whole pool and for what is near the best measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from theodolite.auditing.metrics import CLEAR_GAP, NEAR_BEST, Metrics, metrics
from theodolite.errors import RunError

TIE_RELATIVE = 1e-9
BUCKETS: tuple[tuple[str, float, float], ...] = (
    ("< 5 %", 0.0, 0.05),
    ("5-10 %", 0.05, 0.10),
    ("10-25 %", 0.10, 0.25),
    ("> 25 %", 0.25, math.inf),
)
OVERALL = "> 5 %"
WORST_LISTED = 10

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["inexpressible", "infeasible", "other"]


@dataclass(frozen=True)
class Standing:
    """One candidate as the ranking sees it.  `measured_s` is None where it was not measured."""

    candidate: str
    measured_s: float | None
    predicted_s: float | None
    why_not: str | None = None


@dataclass(frozen=True)
class NotRanked:
    """A measured candidate that the model says nothing of."""

    candidate: str
    kind: Kind
    reason: str


@dataclass(frozen=True)
class TieGroup:
    """Candidates that the model cannot tell apart, fastest measured first.

    `spread` is the slowest measured time over the fastest: what the model cannot see.
    """

    candidates: tuple[str, ...]
    predicted_s: float
    fastest_s: float
    slowest_s: float
    spread: float


@dataclass(frozen=True)
class Bucket:
    """Pairs whose measured gap (slower over faster, minus one) lies in [low, high).

    `right + tied + wrong == pairs`; pairs measured exactly equal have no order and are in no bucket.  `accuracy` is
    right over pairs, None without pairs.
    """

    label: str
    pairs: int
    right: int
    tied: int
    wrong: int
    accuracy: float | None


@dataclass(frozen=True)
class Inversion:
    """A pair that the model orders the wrong way round.  Both ratios are the larger time over the smaller one."""

    predicted_faster: str
    measured_faster: str
    predicted_ratio: float
    measured_ratio: float


@dataclass(frozen=True)
class Pick:
    """What choosing by this model costs.

    `candidate` is its best prediction among the measured; in a tie for first (`tied` candidates) the slowest of them,
    since nothing in the model would have kept a user from it.  `unmeasured_ahead` lists candidates that the model puts
    ahead of it, or level, and that have no measured time: the regret cannot speak for them.
    """

    candidate: str
    tied: int
    measured_s: float
    best: str
    best_s: float
    regret: float
    best_ranked: str
    regret_ranked: float
    unmeasured_ahead: tuple[str, ...]


@dataclass(frozen=True)
class Ranking:
    """One model against one case.  `tau_b` is None where `no_resolution` says why there is none.

    whole: the main figures over all measured candidates, with intervals.  near: the same within NEAR_BEST times the
    best measured time, where a choice is made in earnest.
    """

    case: str
    model: str
    candidates: int
    measured: int
    ranked: int
    not_ranked: tuple[NotRanked, ...]
    tau_b: float | None
    tau_p_value: float | None
    no_resolution: str | None
    ties: tuple[TieGroup, ...]
    buckets: tuple[Bucket, ...]
    clear: Bucket
    measured_equal_pairs: int
    pick: Pick | None
    inversions: int
    clear_inversions: int
    worst: tuple[Inversion, ...]
    whole: Metrics
    near: Metrics

    @property
    def unmeasured(self) -> int:
        return self.candidates - self.measured

    def not_ranked_counts(self) -> dict[str, int]:
        """How many are not ranked, by kind."""
        return dict(sorted(Counter(n.kind for n in self.not_ranked).items()))


@dataclass(frozen=True)
class _Ranked:
    """Columns over the ranked candidates, in an order that depends on their values and ids alone."""

    ids: tuple[str, ...]
    predicted: Floats
    measured: Floats
    group: Ints


def rank(
    case: str, model: str, standings: Iterable[Standing], resampled: Mapping[str, Floats] | None = None
) -> Ranking:
    """Judge one model's order of one case's candidates.

    `resampled` holds each measured candidate's median in every draw of a bootstrap (`resample.py`); without it the
    figures have no intervals.  Times are in seconds.  Raises RunError for a repeated candidate, for a time that is not
    a positive number and for a measured candidate that was not resampled.
    Kendall's tau-b and its two-sided p-value are scipy.stats.kendalltau's.
    """
    everyone = sorted(standings, key=lambda s: s.candidate)
    _check(case, model, everyone)
    measured = [s for s in everyone if s.measured_s is not None]
    rows = _ranked(measured)
    tau, p_value, why = _tau(rows)
    buckets, clear, equal = _buckets(rows)
    inversions, clear_inversions, worst = _inversions(rows)
    return Ranking(
        case=case,
        model=model,
        candidates=len(everyone),
        measured=len(measured),
        ranked=len(rows.ids),
        not_ranked=tuple(_not_ranked(s) for s in measured if s.predicted_s is None),
        tau_b=tau,
        tau_p_value=p_value,
        no_resolution=why,
        ties=_ties(rows),
        buckets=buckets,
        clear=clear,
        measured_equal_pairs=equal,
        pick=_pick(rows, everyone),
        inversions=inversions,
        clear_inversions=clear_inversions,
        worst=worst,
        whole=_metrics(rows, measured, resampled, None),
        near=_metrics(rows, measured, resampled, NEAR_BEST),
    )


def tied(a_s: float, b_s: float) -> bool:
    """Whether two predictions are one and the same to TIE_RELATIVE."""
    return max(a_s, b_s) <= min(a_s, b_s) * (1 + TIE_RELATIVE)


def _check(case: str, model: str, standings: Sequence[Standing]) -> None:
    for before, after in pairwise(standings):
        if before.candidate == after.candidate:
            raise RunError(f"{case}: candidate {after.candidate!r} occurs twice: give each candidate its own id")
    for s in standings:
        for what, value in (("measured", s.measured_s), (f"predicted by {model}", s.predicted_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RunError(f"{case}: {s.candidate} is {what} as {value} s: a time must be positive and finite")


def _ranked(measured: Sequence[Standing]) -> _Ranked:
    both = [(s.predicted_s, s.measured_s, s.candidate) for s in measured if s.predicted_s is not None]
    both.sort(key=lambda row: (row[0], row[1] or 0.0, row[2]))
    predicted = np.array([row[0] for row in both], dtype=np.float64)
    times = np.array([row[1] for row in both], dtype=np.float64)
    # A chain of near-equal values is one group: "equal" must be transitive for ranks to exist.
    steps = predicted[1:] > predicted[:-1] * (1 + TIE_RELATIVE)
    group = np.concatenate([np.zeros(min(len(both), 1), np.int64), np.cumsum(steps, dtype=np.int64)])
    return _Ranked(tuple(row[2] for row in both), predicted, times, group)


def _not_ranked(standing: Standing) -> NotRanked:
    reason = standing.why_not or "the model gives no reason"
    kinds: tuple[Kind, ...] = ("inexpressible", "infeasible")
    kind: Kind = next((k for k in kinds if k in reason.lower()), "other")
    return NotRanked(standing.candidate, kind, reason)


def _tau(rows: _Ranked) -> tuple[float | None, float | None, str | None]:
    """(tau-b, p-value, why there is none)."""
    if len(rows.ids) < 2:
        return None, None, f"{len(rows.ids)} ranked: an order needs two"
    if rows.group[-1] == 0:
        return None, None, f"all {len(rows.ids)} predictions are one tie"
    if np.all(rows.measured == rows.measured[0]):
        return None, None, "every measured time is the same"
    result = kendalltau(rows.group, rows.measured)
    return float(result.statistic), float(result.pvalue), None


def _metrics(
    rows: _Ranked, measured: Sequence[Standing], resampled: Mapping[str, Floats] | None, within: float | None
) -> Metrics:
    """The main figures of the candidates measured within `within` times the best, or of all."""
    times = {s.candidate: s.measured_s for s in measured if s.measured_s is not None}
    limit = math.inf if within is None or not times else within * min(times.values())
    kept = [n for n in range(len(rows.ids)) if rows.measured[n] <= limit]
    names = [rows.ids[n] for n in kept]
    others = sorted(c for c, t in times.items() if t <= limit and c not in set(names))
    try:
        draws = None if resampled is None else np.array([resampled[c] for c in (*names, *others)])
    except KeyError as missing:
        raise RunError(f"candidate {missing} is measured and was not resampled: give the samples of all") from missing
    return metrics(rows.group[kept], np.array([times[c] for c in (*names, *others)]), draws)


def _pairs(rows: _Ranked) -> tuple[Ints, Ints, Ints, Floats]:
    """(i, j, agreement, gap) over all pairs of different measured times; agreement is 1 right, 0 tied, -1 wrong."""
    i, j = np.triu_indices(len(rows.ids), 1)
    differ = rows.measured[i] != rows.measured[j]
    i, j = i[differ], j[differ]
    a, b = rows.measured[i], rows.measured[j]
    agreement = np.sign(rows.group[i] - rows.group[j]) * np.sign(a - b).astype(np.int64)
    return i, j, agreement, np.maximum(a, b) / np.minimum(a, b) - 1


def _bucket(label: str, agreement: Ints) -> Bucket:
    right, even, wrong = (int(np.count_nonzero(agreement == sign)) for sign in (1, 0, -1))
    pairs = len(agreement)
    return Bucket(label, pairs, right, even, wrong, right / pairs if pairs else None)


def _buckets(rows: _Ranked) -> tuple[tuple[Bucket, ...], Bucket, int]:
    i, _, agreement, gap = _pairs(rows)
    buckets = tuple(_bucket(label, agreement[(gap >= low) & (gap < high)]) for label, low, high in BUCKETS)
    equal = len(rows.ids) * (len(rows.ids) - 1) // 2 - len(i)
    return buckets, _bucket(OVERALL, agreement[gap >= CLEAR_GAP]), equal


def _inversions(rows: _Ranked) -> tuple[int, int, tuple[Inversion, ...]]:
    """(all, those with a clear gap, the worst): one a candidate that was believed too fast, largest gap first.

    One a candidate, since a single slow favourite would otherwise fill the whole list.
    """
    i, j, agreement, gap = _pairs(rows)
    wrong = agreement < 0
    i, j, gap = i[wrong], j[wrong], gap[wrong]
    slower = np.where(rows.measured[i] > rows.measured[j], i, j)
    faster = i + j - slower
    found: dict[int, Inversion] = {}
    for n in np.lexsort((faster, slower, -gap)):
        bad, good = int(slower[n]), int(faster[n])
        if bad not in found:
            ratio = float(rows.predicted[good] / rows.predicted[bad])
            found[bad] = Inversion(rows.ids[bad], rows.ids[good], ratio, float(gap[n]) + 1)
        if len(found) == WORST_LISTED:
            break
    return len(i), int(np.count_nonzero(gap >= CLEAR_GAP)), tuple(found.values())


def _ties(rows: _Ranked) -> tuple[TieGroup, ...]:
    """Groups of two or more, largest spread first."""
    groups = []
    for number in np.unique(rows.group):
        members = sorted(map(int, np.flatnonzero(rows.group == number)), key=lambda n: (rows.measured[n], rows.ids[n]))
        if len(members) < 2:
            continue
        fastest, slowest = float(rows.measured[members[0]]), float(rows.measured[members[-1]])
        ids = tuple(rows.ids[n] for n in members)
        predicted = float(rows.predicted[members].min())
        groups.append(TieGroup(ids, predicted, fastest, slowest, slowest / fastest))
    return tuple(sorted(groups, key=lambda g: (-g.spread, g.candidates)))


def _pick(rows: _Ranked, everyone: Sequence[Standing]) -> Pick | None:
    if not rows.ids:
        return None
    times = {s.candidate: s.measured_s for s in everyone if s.measured_s is not None}
    first = [n for n in range(len(rows.ids)) if rows.group[n] == 0]
    chosen = min(first, key=lambda n: (-rows.measured[n], rows.ids[n]))
    best = min(times, key=lambda c: (times[c], c))
    best_ranked = min(rows.ids, key=lambda c: (times[c], c))
    level = float(rows.predicted[first[-1]]) * (1 + TIE_RELATIVE)
    ahead = tuple(
        s.candidate for s in everyone if s.measured_s is None and s.predicted_s is not None and s.predicted_s <= level
    )
    spent = float(rows.measured[chosen])
    return Pick(
        candidate=rows.ids[chosen],
        tied=len(first),
        measured_s=spent,
        best=best,
        best_s=times[best],
        regret=spent / times[best] - 1,
        best_ranked=best_ranked,
        regret_ranked=spent / times[best_ranked] - 1,
        unmeasured_ahead=ahead,
    )
