"""Verdicts: swapping A and B flips the sign and nothing else, and every way of not knowing has its reason."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.made_up import noisy
from theodolite.auditing.resample import Interval
from theodolite.auditing.verdict import (
    Comparison,
    Paired,
    Reason,
    Thresholds,
    Verdict,
    compare,
    compare_family,
    holm,
    same_kernel_gap,
    verdict_of,
)
from theodolite.errors import RunError

TICK_S = 32e-9
SERIES = st.builds(
    noisy,
    st.sampled_from([10e-6, 10.05e-6, 10.5e-6, 20e-6]),
    st.sampled_from([5, 40, 41]),
    st.integers(0, 50),
    st.sampled_from([0.01, 0.15]),  # the wide ones give p-values that are neither 0 nor 1
)
PREDICTED = st.one_of(st.none(), st.sampled_from([1.0, 2.0]))
FLOOR = st.sampled_from([None, 0.0, 0.02])


def judged(a, b, x, y, *, tick_s=TICK_S, same_gap: float | None = 0.0, thresholds=Thresholds()) -> Verdict:
    (seen,) = compare_family([Paired(x, y, same_gap)], tick_s=tick_s, thresholds=thresholds)
    return verdict_of(a, b, seen)


# ---- symmetry ----------------------------------------------------------------------------------------------------
@given(PREDICTED, PREDICTED, SERIES, SERIES, FLOOR)
def test_swapping_a_and_b_flips_the_sign_and_nothing_else(a, b, x, y, floor) -> None:
    assert judged(a, b, x, y, same_gap=floor) == judged(b, a, y, x, same_gap=floor)
    there, back = (compare(*p, tick_s=TICK_S, same_gap=floor) for p in ((x, y), (y, x)))
    assert {"A": "B", "B": "A", None: None}[there.faster] == back.faster
    assert (there.reason, there.gap, there.gap_interval) == (back.reason, back.gap, back.gap_interval)
    assert (there.p_value, there.p_adjusted) == (back.p_value, back.p_adjusted)


@given(SERIES, SERIES)
def test_exchanging_the_predictions_exchanges_right_and_wrong(x, y) -> None:
    swap = {"RIGHT": "WRONG", "WRONG": "RIGHT", "UNRESOLVED": "UNRESOLVED"}
    there, back = (judged(*p, x, y) for p in ((1.0, 2.0), (2.0, 1.0)))
    assert swap[there.outcome] == back.outcome


@settings(max_examples=25)
@given(st.lists(st.tuples(SERIES, SERIES), min_size=1, max_size=5), st.randoms())
def test_the_order_of_a_family_is_irrelevant_and_so_is_who_is_a(pairs, random) -> None:
    plain = compare_family([Paired(x, y, 0.0) for x, y in pairs], tick_s=TICK_S)
    at = list(range(len(pairs)))
    random.shuffle(at)
    turned = compare_family([Paired(pairs[n][1], pairs[n][0], 0.0) for n in at], tick_s=TICK_S)
    for position, n in enumerate(at):
        assert (turned[position].gap, turned[position].reason) == (plain[n].gap, plain[n].reason)
        assert turned[position].p_adjusted == plain[n].p_adjusted


# ---- outcomes and reasons ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounds_b", [60, 61])
def test_a_clear_order_is_right_wrong_or_a_lost_tie(rounds_b: int) -> None:
    fast, slow = noisy(10e-6, 60, 1), noisy(11e-6, rounds_b, 2)
    outcomes = [judged(a, b, fast, slow) for a, b in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0 + 1e-12))]
    assert [(v.outcome, v.reason) for v in outcomes] == [
        ("RIGHT", "order-agrees"),
        ("WRONG", "order-opposes"),
        ("WRONG", "predicted-tie"),
    ]


def test_every_way_of_not_knowing_has_its_reason() -> None:
    fast, slow = noisy(10e-6, 60, 1), noisy(11e-6, 60, 2)
    wild = noisy(10.4e-6, 60, 3, noise=0.5)
    found: set[str] = {"order-agrees", "order-opposes", "predicted-tie"}  # the test above

    def reason(x, y, a=1.0, b=2.0, **more) -> tuple[str, str]:
        verdict = judged(a, b, x, y, **more)
        found.add(verdict.reason)
        return verdict.outcome, verdict.reason

    assert reason(None, slow) == ("UNMEASURED", "not-measured")
    assert reason(fast, slow, b=None) == ("UNRESOLVED", "not-predicted")
    assert reason(fast[:5], slow[:5]) == ("UNRESOLVED", "too-few-samples")
    assert reason(fast, slow[:5]) == ("UNRESOLVED", "too-few-samples")  # five rounds in common
    assert reason(fast, slow, tick_s=None) == ("UNRESOLVED", "tick-unknown")
    assert reason(fast, slow, same_gap=None) == ("UNRESOLVED", "same-kernel-unknown")
    assert reason(fast, slow, tick_s=2e-6) == ("UNRESOLVED", "gap-below-tick")
    assert reason(fast, [x * 1.004 for x in fast]) == ("UNRESOLVED", "gap-below-minimum")
    assert reason(fast, slow, same_gap=0.2) == ("UNRESOLVED", "gap-below-same-kernel")
    assert reason(fast, wild) == ("UNRESOLVED", "not-significant")
    (seen,) = compare_family([Paired(fast[:10], slow[:10], 0.0)], tick_s=TICK_S, family=100)
    assert seen.reason == "lost-to-correction"  # 2 * 2^-10 alone, and 0.2 among a hundred
    found |= {seen.reason, "tests-disagree"}  # the next test
    assert found == set(get_args(Reason))


def test_a_median_against_the_rounds_is_unresolved() -> None:
    """B is a little slower in most rounds, though its median is lower: the two readings disagree."""
    a = np.array([1.0] * 40 + [2.0] * 41)
    b = np.array([1.1] * 40 + [1.2] * 1 + [2.1] * 40)
    seen = compare(a, b, tick_s=0.0, same_gap=0.0)
    assert (seen.faster, seen.reason) == (None, "tests-disagree")


def test_rounds_that_one_took_part_in_alone_say_nothing() -> None:
    a, b = noisy(10e-6, 300, 1), noisy(11e-6, 40, 2)
    assert compare(a, b, tick_s=TICK_S, same_gap=0.0) == compare(a[:40], b, tick_s=TICK_S, same_gap=0.0)


def test_the_gap_is_that_of_the_rounds_whatever_a_round_did_to_both() -> None:
    """Ratios of 1.02 in every round, under a drift of a factor of two that both share."""
    drift = np.geomspace(1e-5, 2e-5, 51)
    seen = compare(drift, drift * 1.02, tick_s=TICK_S, same_gap=0.0)
    assert (seen.faster, seen.reason) == ("A", None)
    assert seen.gap == pytest.approx(0.02)
    assert seen.gap_interval == Interval(pytest.approx(0.02), pytest.approx(0.02))
    assert seen.p_value == pytest.approx(2 * 0.5**51)


def test_the_floor_of_a_case_is_the_far_end_of_its_check() -> None:
    def floor(low: float, high: float) -> float:
        return same_kernel_gap(Comparison(None, "not-significant", 0.0, Interval(low, high), 1.0))

    assert floor(-0.001, 0.015) == 0.015
    assert floor(-0.02, 0.001) == pytest.approx(1 / 0.98 - 1)
    assert same_kernel_gap(Comparison(None, "too-few-samples")) is None
    rounds = np.full(20, 1e-5)
    assert same_kernel_gap(compare(rounds, rounds * 1.012, tick_s=TICK_S, same_gap=0.0)) == pytest.approx(0.012)
    assert same_kernel_gap(compare(rounds * 1.012, rounds, tick_s=TICK_S, same_gap=0.0)) == pytest.approx(0.012)


# ---- families ----------------------------------------------------------------------------------------------------
P_VALUES = st.lists(st.floats(0, 1), max_size=8)


@given(P_VALUES, st.floats(0.001, 0.2))
def test_holm_rejects_what_its_definition_rejects(p_values: list[float], level: float) -> None:
    """Step down from the smallest and stop at the first one above level / (how many are left)."""
    rejected: set[int] = set()
    for k, n in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        if p_values[n] * (len(p_values) - k) >= level:
            break
        rejected.add(n)
    assert {n for n, p in enumerate(holm(p_values)) if p < level} == rejected


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(P_VALUES, st.integers(0, 50))
def test_chosen_from_a_larger_family_nothing_gets_easier(p_values: list[float], more: int) -> None:
    assert all(x >= y for x, y in zip(holm(p_values, len(p_values) + more), holm(p_values), strict=True))
    with pytest.raises(RunError, match="family"):
        holm([*p_values, 0.5], len(p_values))


def test_a_pair_that_fails_elsewhere_still_counts_in_the_family() -> None:
    """Two pairs, one of them under the A/A floor: the other's p is doubled all the same; an UNMEASURED one is none."""
    x, y = noisy(10e-6, 60, 1), noisy(10.3e-6, 60, 2)
    alone, under, missing = Paired(x, y, 0.0), Paired(x, y, 1.0), Paired(None, y, 0.0)
    one, two, none = compare_family([alone, under, missing], tick_s=TICK_S)
    assert none is None
    assert two.reason == "gap-below-same-kernel"
    assert one.p_adjusted == pytest.approx(2 * one.p_value)


def test_thresholds_print_every_one_of_them() -> None:
    text = str(Thresholds(minimum_gap=0.031, p_value=0.0123, interval_level=0.87, minimum_samples=17))
    assert all(part in text for part in ("3.1%", "0.0123", "87%", "17 rounds", "tick", "A/A"))
    assert math.isclose(Thresholds().minimum_gap, 0.005)
