"""Whether a GPU agrees with a model's order of two candidates.

    verdict := RIGHT | WRONG | UNRESOLVED | UNMEASURED, with a reason code

A verdict starts as UNRESOLVED and becomes RIGHT or WRONG only where the measured order stands by every threshold: the
two medians differ by more than the event tick, the paired gap is at least the minimum and larger than what the same
kernel under two names showed, a sign test over rounds stands after correction for all pairs judged together, and the
bootstrap interval of the paired median ratio leaves out equality on the same side.
A predicted tie of two candidates whose measured order stands is WRONG: a model that cannot choose has not chosen right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.stats import binomtest

from theodolite.auditing.ranking import tied
from theodolite.auditing.resample import Interval, median_interval
from theodolite.errors import RunError

Outcome = Literal["RIGHT", "WRONG", "UNRESOLVED", "UNMEASURED"]
Provenance = Literal["predicted before", "retrodicted"]
Faster = Literal["A", "B"]
Reason = Literal[
    "order-agrees",
    "order-opposes",
    "predicted-tie",
    "not-predicted",
    "not-measured",
    "too-few-samples",
    "tick-unknown",
    "same-kernel-unknown",
    "gap-below-tick",
    "gap-below-minimum",
    "gap-below-same-kernel",
    "not-significant",
    "lost-to-correction",
    "tests-disagree",
]


# Times come as float32 milliseconds: those one tick apart differ by a few per cent more or less than a tick.
TICK_SLACK = 1.05


@dataclass(frozen=True)
class Thresholds:
    """What a measured order must pass.

    minimum_gap: of the paired median ratio, slower over faster, minus one.  p_value: of the sign test, corrected for
    the family by Holm's method.  interval_level: of the bootstrap interval of the paired median ratio.
    """

    minimum_gap: float = 0.005
    p_value: float = 0.01
    interval_level: float = 0.99
    minimum_samples: int = 10
    bootstrap_draws: int = 2000
    bootstrap_seed: int = 20406

    def __str__(self) -> str:
        return (
            f"at least {self.minimum_samples} rounds of both; medians apart by more than the event tick; paired gap >= "
            f"{self.minimum_gap:.1%} and above the case's A/A gap; sign test p < {self.p_value:g}, corrected for all "
            f"pairs judged together; {self.interval_level:.0%} bootstrap interval of the paired ratio without equality"
        )


@dataclass(frozen=True)
class Comparison:
    """What the samples of A and B say: who is faster (None where nothing may be said) and why not.

    `gap` is the slower over the faster, minus one, by the median of the ratios of each round; `gap_interval` is its
    bootstrap interval, negative where it reaches past equality.  `p_adjusted` is set once the family is known.
    """

    faster: Faster | None
    reason: Reason | None
    gap: float | None = None
    gap_interval: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None

    def refused(self, reason: Reason) -> Comparison:
        return replace(self, faster=None, reason=reason)


@dataclass(frozen=True)
class Verdict:
    """A pair's verdict.  Figures are None where the comparison did not get that far; see `Comparison`."""

    outcome: Outcome
    reason: Reason
    gap: float | None = None
    gap_interval: Interval | None = None
    p_value: float | None = None
    p_adjusted: float | None = None


@dataclass(frozen=True)
class Paired:
    """One pair of a family: samples in seconds in the order of the rounds, None where a member was not measured.

    `same_gap` is how far the same kernel under two names was apart in the same case, None where that was not measured.
    """

    a_s: Sequence[float] | None
    b_s: Sequence[float] | None
    same_gap: float | None


# ---- one pair's samples ------------------------------------------------------------------------------------------
def compare(
    a_s: Sequence[float],
    b_s: Sequence[float],
    *,
    tick_s: float | None,
    same_gap: float | None,
    thresholds: Thresholds = Thresholds(),
) -> Comparison:
    """Which of two candidates is faster, before any correction for other pairs.

    Sample n of both is one round; rounds that only one took part in are left out.  Swapping A and B flips `faster` and
    changes nothing else.
    """
    rounds = min(len(a_s), len(b_s))
    if rounds < thresholds.minimum_samples:
        return Comparison(None, "too-few-samples")
    a, b = (np.asarray(x, dtype=np.float64)[:rounds] for x in (a_s, b_s))
    logs = np.log(b) - np.log(a)  # antisymmetric to the last bit, as a ratio is not
    centre = float(np.median(logs))
    spread = median_interval(logs, thresholds.interval_level, thresholds.bootstrap_draws, thresholds.bootstrap_seed)
    wins = int(np.count_nonzero(a < b)), int(np.count_nonzero(b < a))
    p_value = float(binomtest(min(wins), sum(wins), 0.5).pvalue) if sum(wins) else 1.0
    seen = Comparison(
        "A" if centre > 0 else "B", None, math.expm1(abs(centre)), _towards(centre, spread), p_value, p_value
    )
    apart_s = float(np.median(b) - np.median(a))
    reason = _against(seen, wins, apart_s, tick_s, same_gap, thresholds)
    return seen if reason is None else seen.refused(reason)


def _towards(centre: float, spread: Interval) -> Interval:
    """The interval of the gap: of slower over faster, minus one."""
    if centre == 0:  # nobody is slower: the wider side counts for both
        widest = max(spread.high, -spread.low)
        return Interval(math.expm1(-widest), math.expm1(widest))
    low, high = (spread.low, spread.high) if centre > 0 else (-spread.high, -spread.low)
    return Interval(math.expm1(low), math.expm1(high))


def _against(
    seen: Comparison,
    wins: tuple[int, int],
    apart_s: float,
    tick_s: float | None,
    same_gap: float | None,
    thresholds: Thresholds,
) -> Reason | None:
    """Why the order may not stand, or None; `apart_s` is B's median minus A's."""
    assert seen.gap is not None
    assert seen.gap_interval is not None
    assert seen.p_value is not None
    if tick_s is None:
        return "tick-unknown"
    if same_gap is None:
        return "same-kernel-unknown"
    if abs(apart_s) <= tick_s * TICK_SLACK:
        return "gap-below-tick"
    if seen.gap < thresholds.minimum_gap:
        return "gap-below-minimum"
    if seen.gap <= same_gap:
        return "gap-below-same-kernel"
    if seen.p_value >= thresholds.p_value:
        return "not-significant"
    readings = (apart_s > 0, wins[0] > wins[1], seen.faster == "A")
    if len(set(readings)) > 1 or seen.gap_interval.low <= 0:
        return "tests-disagree"
    return None


def same_kernel_gap(seen: Comparison) -> float | None:
    """The floor that an A/A pair puts under its case: the end of its interval that lies farther from equality.

    None where the comparison did not come to a gap.
    """
    if seen.gap_interval is None:
        return None
    return max(seen.gap_interval.high, 1 / (1 + seen.gap_interval.low) - 1)


# ---- many pairs --------------------------------------------------------------------------------------------------
def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """P-values adjusted so that the chance of even one false order among all of them stays below the threshold.

    Holm's step-down: the k-th smallest of m times m - k + 1, never below that of a smaller one.  `family` is larger
    than the number of values where these were chosen from more pairs: what the others show is then unknown, and each
    value is multiplied by the whole family (Bonferroni).  Raises RunError for a family smaller than its members.
    """
    count = len(p_values)
    if family is not None and family < count:
        raise RunError(f"{count} pairs cannot be chosen from a family of {family}")
    if family is not None and family > count:
        return [min(1.0, p * family) for p in p_values]
    out, highest = [1.0] * count, 0.0
    for rank, n in enumerate(sorted(range(count), key=lambda n: p_values[n])):
        highest = max(highest, min(1.0, p_values[n] * (count - rank)))
        out[n] = highest
    return out


def compare_family(
    pairs: Sequence[Paired],
    *,
    tick_s: float | None,
    thresholds: Thresholds = Thresholds(),
    family: int | None = None,
) -> list[Comparison | None]:
    """Every pair compared, and corrected for all of them together; None where a member was not measured.

    A pair that fails another threshold still counts in the family: leaving it out would be choosing after looking.
    """
    seen = [
        None
        if p.a_s is None or p.b_s is None
        else compare(p.a_s, p.b_s, tick_s=tick_s, same_gap=p.same_gap, thresholds=thresholds)
        for p in pairs
    ]
    tested = [n for n, s in enumerate(seen) if s is not None and s.p_value is not None]
    size = None if family is None else max(family, len(tested))
    adjusted = holm([s.p_value for s in seen if s is not None and s.p_value is not None], size)
    for n, p_adjusted in zip(tested, adjusted, strict=True):
        one = seen[n]
        assert one is not None
        one = replace(one, p_adjusted=p_adjusted)
        lost = one.reason is None and p_adjusted >= thresholds.p_value
        seen[n] = one.refused("lost-to-correction") if lost else one
    return seen


def verdict_of(predicted_a_s: float | None, predicted_b_s: float | None, seen: Comparison | None) -> Verdict:
    """What a comparison means for a model's predictions; swapping A and B throughout changes nothing in it.

    Predictions are seconds, None where the model cannot say; `seen` is None where a member was not measured.
    """
    if seen is None:
        return Verdict("UNMEASURED", "not-measured")
    figures = (seen.gap, seen.gap_interval, seen.p_value, seen.p_adjusted)
    if predicted_a_s is None or predicted_b_s is None:
        return Verdict("UNRESOLVED", "not-predicted", *figures)
    if seen.faster is None:
        return Verdict("UNRESOLVED", seen.reason or "not-significant", *figures)
    if tied(predicted_a_s, predicted_b_s):
        return Verdict("WRONG", "predicted-tie", *figures)
    if (predicted_a_s < predicted_b_s) == (seen.faster == "A"):
        return Verdict("RIGHT", "order-agrees", *figures)
    return Verdict("WRONG", "order-opposes", *figures)
