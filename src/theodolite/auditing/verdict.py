"""Whether a GPU agrees with a model's order of two candidates.

    verdict := RIGHT | WRONG | UNRESOLVED | UNMEASURED, with a reason code

A verdict starts as UNRESOLVED and becomes RIGHT or WRONG only where the measured order stands by every threshold.
A predicted tie of two candidates whose measured order stands is WRONG: a model that cannot choose has not chosen right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import binomtest

from theodolite.auditing.ranking import tied

Outcome = Literal["RIGHT", "WRONG", "UNRESOLVED", "UNMEASURED"]
Faster = Literal["A", "B"]
Reason = Literal[
    "order-agrees",
    "order-opposes",
    "predicted-tie",
    "not-predicted",
    "not-measured",
    "too-few-samples",
    "tick-unknown",
    "gap-below-tick",
    "gap-below-minimum",
    "not-significant",
    "tests-disagree",
]


@dataclass(frozen=True)
class Thresholds:
    """What a measured order must pass.  A gap is the slower median over the faster, minus one."""

    minimum_gap: float = 0.01
    p_value: float = 0.01
    minimum_samples: int = 10
    bootstrap_draws: int = 2000
    bootstrap_seed: int = 20406


@dataclass(frozen=True)
class Comparison:
    """What the samples of A and B say: who is faster (None where nothing may be said) and why."""

    faster: Faster | None
    reason: Reason | None
    gap: float | None
    p_value: float | None
    test: Literal["sign", "bootstrap"] | None


@dataclass(frozen=True)
class Verdict:
    """A pair's verdict.  `gap` and `p_value` are None where the comparison did not get that far."""

    outcome: Outcome
    reason: Reason
    gap: float | None = None
    p_value: float | None = None


def compare(
    a_s: Sequence[float], b_s: Sequence[float], *, tick_s: float | None, thresholds: Thresholds = Thresholds()
) -> Comparison:
    """Which of two candidates is faster, from samples in seconds in the order of the rounds.

    Sample n of both is taken as one round where both have equally many: then an exact two-sided sign test decides, and
    otherwise a bootstrap of the difference of the medians with a fixed seed.
    """
    a, b = np.asarray(a_s, dtype=np.float64), np.asarray(b_s, dtype=np.float64)
    if min(len(a), len(b)) < thresholds.minimum_samples:
        return Comparison(None, "too-few-samples", None, None, None)
    difference = float(np.median(a) - np.median(b))
    gap = abs(difference) / float(min(np.median(a), np.median(b)))
    if tick_s is None:
        return Comparison(None, "tick-unknown", gap, None, None)
    if abs(difference) <= tick_s:
        return Comparison(None, "gap-below-tick", gap, None, None)
    if gap < thresholds.minimum_gap:
        return Comparison(None, "gap-below-minimum", gap, None, None)
    faster: Faster = "A" if difference < 0 else "B"
    if len(a) == len(b):
        wins = int(np.count_nonzero(a < b)), int(np.count_nonzero(b < a))
        p_value = float(binomtest(min(wins), sum(wins), 0.5).pvalue) if sum(wins) else 1.0
        if p_value < thresholds.p_value and (wins[0] > wins[1]) != (faster == "A"):
            return Comparison(None, "tests-disagree", gap, p_value, "sign")
        test: Literal["sign", "bootstrap"] = "sign"
    else:
        p_value, test = _bootstrap(a, b, thresholds), "bootstrap"
    if p_value >= thresholds.p_value:
        return Comparison(None, "not-significant", gap, p_value, test)
    return Comparison(faster, None, gap, p_value, test)


def judge_pair(
    predicted_a_s: float | None,
    predicted_b_s: float | None,
    samples_a_s: Sequence[float] | None,
    samples_b_s: Sequence[float] | None,
    *,
    tick_s: float | None,
    thresholds: Thresholds = Thresholds(),
) -> Verdict:
    """The verdict on a model's order of A and B; swapping A and B changes nothing in it.

    Predictions are seconds, None where the model cannot say; samples are None where a candidate was not measured.
    """
    if samples_a_s is None or samples_b_s is None:
        return Verdict("UNMEASURED", "not-measured")
    if predicted_a_s is None or predicted_b_s is None:
        return Verdict("UNRESOLVED", "not-predicted")
    seen = compare(samples_a_s, samples_b_s, tick_s=tick_s, thresholds=thresholds)
    if seen.faster is None:
        return Verdict("UNRESOLVED", seen.reason or "not-significant", seen.gap, seen.p_value)
    if tied(predicted_a_s, predicted_b_s):
        return Verdict("WRONG", "predicted-tie", seen.gap, seen.p_value)
    if (predicted_a_s < predicted_b_s) == (seen.faster == "A"):
        return Verdict("RIGHT", "order-agrees", seen.gap, seen.p_value)
    return Verdict("WRONG", "order-opposes", seen.gap, seen.p_value)


def _bootstrap(a: np.typing.NDArray[np.float64], b: np.typing.NDArray[np.float64], thresholds: Thresholds) -> float:
    """Two-sided p-value of "the medians are equal", at best one over the draws."""
    # The shorter series draws first, whichever of the two it is: swapping A and B must not change the numbers drawn.
    first, second = (a, b) if len(a) < len(b) else (b, a)
    random = np.random.default_rng(thresholds.bootstrap_seed)
    medians = [
        np.median(random.choice(series, (thresholds.bootstrap_draws, len(series))), axis=1)
        for series in (first, second)
    ]
    differences = medians[0] - medians[1]
    against = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return float(min(1.0, 2 * max(int(against), 1) / thresholds.bootstrap_draws))
