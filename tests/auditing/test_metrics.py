"""Intervals of a ranking's figures: the same rounds for all, held against plain rankings of each draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.made_up import candidate, demo, manifest, noisy, samples, timing
from tests.auditing.test_ranking import standings
from theodolite.auditing.judge import judge
from theodolite.auditing.metrics import NEAR_BEST
from theodolite.auditing.ranking import Standing, rank
from theodolite.auditing.resample import Interval, drawn_rounds, interval, median_interval, resampled_medians
from theodolite.errors import RunError


def measured_rows(
    seed: int, count: int = 8, noise: float = 0.03
) -> tuple[list[Standing], dict[str, tuple[float, ...]]]:
    """Candidates a few per cent apart, with fewer rounds for some; the model ties some and misses one."""
    random = np.random.default_rng(seed)
    series = {
        f"c{n}": noisy(1e-5 * (1 + 0.08 * n), (60, 60, 25)[n % 3], seed=100 * seed + n, noise=noise)
        for n in range(count)
    }
    predicted = [None if n == 3 else float(random.integers(1, 6)) for n in range(count)]
    rows = [Standing(c, float(np.median(s)), p) for (c, s), p in zip(series.items(), predicted, strict=True)]
    return rows, series


# ---- figures -----------------------------------------------------------------------------------------------------
@given(standings())
def test_the_figures_of_the_whole_pool_are_the_ranking_s_own(rows: list[Standing]) -> None:
    result = rank("c", "M", rows)
    assert (result.whole.pool, result.whole.ranked) == (result.measured, result.ranked)
    assert result.whole.tau_b == (None if result.tau_b is None else pytest.approx(result.tau_b))
    assert (result.whole.pairs, result.whole.accuracy) == (result.clear.pairs, result.clear.accuracy)
    assert result.whole.regret == (result.pick.regret if result.pick else None)


@given(standings())
def test_near_the_best_is_a_ranking_of_those_near_it(rows: list[Standing]) -> None:
    times = [s.measured_s for s in rows if s.measured_s is not None]
    limit = NEAR_BEST * min(times, default=0.0)
    few = rank("c", "M", [s for s in rows if s.measured_s is not None and s.measured_s <= limit])
    near = rank("c", "M", rows).near
    assert near == few.whole
    assert near.pool == sum(t <= limit for t in times)


# ---- intervals ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_intervals_are_those_of_a_plain_ranking_of_each_draw(seed: int) -> None:
    rows, series = measured_rows(seed)
    draws = 60
    medians = resampled_medians(series, draws)
    result = rank("c", "M", rows, medians)
    plain = []
    for n in range(draws):
        # nothing near, and the pool is everybody: the oracle is the ranking itself, one draw at a time
        plain.append(
            rank("c", "M", [Standing(s.candidate, float(medians[s.candidate][n]), s.predicted_s) for s in rows])
        )

    def ends(values: list[float | None]) -> Interval:
        known = sorted(v for v in values if v is not None)
        cut = int(len(known) * (1 - 0.95) / 2)
        return Interval(pytest.approx(known[cut]), pytest.approx(known[-1 - cut]))

    assert result.whole.tau_b_interval == ends([r.tau_b for r in plain])
    assert result.whole.accuracy_interval == ends([r.clear.accuracy for r in plain])
    assert result.whole.regret_interval == ends([r.pick.regret for r in plain])
    assert result.whole.accuracy_interval.low < result.whole.accuracy_interval.high  # the noise does show


def test_each_candidate_is_resampled_in_the_rounds_of_the_others() -> None:
    """What a round did to everybody cancels: two candidates at a fixed ratio keep it in every draw."""
    rounds = noisy(1e-5, 90, seed=5, noise=0.2)
    medians = resampled_medians({"a": rounds, "b": [3 * r for r in rounds], "short": [2 * r for r in rounds[:31]]}, 100)
    assert medians["b"] == pytest.approx(3 * medians["a"])
    assert np.ptp(medians["a"]) > 0
    drawn = drawn_rounds((31, 90), 100, 20406)
    assert drawn[:, :31].max() == 30  # a draw of its own 31 rounds and of no others
    assert (drawn[:, 31:].min(), drawn[:, 31:].max()) == (31, 89)
    assert medians["short"] == pytest.approx(np.median(2 * np.array(rounds)[drawn[:, :31]], axis=1))
    assert resampled_medians({"empty": ()}, 100) == {}


def test_the_interval_of_a_median_covers_it_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(11)
    held = 0
    for _ in range(400):
        found = median_interval(random.normal(0, 1, 101), 0.95, 1000, 3)
        held += found.low <= 0 <= found.high
    assert 365 <= held <= 395  # 380 expected; three standard deviations either way


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40))
def test_turning_the_values_turns_the_interval_to_the_last_bit(values: list[float]) -> None:
    there, back = (median_interval(np.array(v), 0.9, 200, 1) for v in (values, [-x for x in values]))
    assert (there.low, there.high) == (-back.high, -back.low)
    assert min(values) <= there.low <= there.high <= max(values)


def test_an_interval_leaves_out_what_has_no_value() -> None:
    assert interval(np.array([np.nan, 3.0, 1.0, 2.0]), 1.0) == Interval(1.0, 3.0)
    assert interval(np.array([np.nan]), 0.95) is None
    assert interval(np.arange(1000.0), 0.95) == Interval(25.0, 974.0)


# ---- through the judge -------------------------------------------------------------------------------------------
@settings(max_examples=10)
@given(st.randoms())
def test_the_order_of_the_manifest_does_not_move_an_interval(random) -> None:
    frozen, recording = demo(count=9)
    turned = list(frozen.candidates)
    random.shuffle(turned)
    a = judge(frozen, recording, recorded=False)
    b = judge(manifest(turned), recording, recorded=False)
    for ranking in a.rankings:
        other = b.ranking(ranking.case, ranking.model)
        assert (ranking.whole, ranking.near) == (other.whole, other.near)


def test_a_judgement_gives_every_figure_that_has_a_meaning_its_interval() -> None:
    frozen, recording = demo()
    for ranking in judge(frozen, recording, recorded=False).rankings:
        for part in (ranking.whole, ranking.near):
            for name in ("tau_b", "accuracy", "regret"):
                value, spread = getattr(part, name), getattr(part, f"{name}_interval")
                assert (value is None) == (spread is None)
                if spread is not None:
                    assert spread.low <= value + 1e-3
                    assert spread.high >= value - 1e-3
        assert ranking.near.pool < ranking.whole.pool == 22


def test_steady_timings_leave_nothing_open() -> None:
    some = [candidate(f"c{n}", {"BASELINE": 1.0 + n % 3, "CORRECTED": 5.0 - n}) for n in range(4)]
    steady = [timing(c, 1e-5 * (1 + n / 10), seed=1) for n, c in enumerate(some)]  # one noise for all: no order moves
    for ranking in judge(manifest(some), samples(steady), recorded=False).rankings:
        whole = ranking.whole
        assert whole.tau_b_interval == Interval(whole.tau_b, whole.tau_b)
        assert whole.accuracy_interval == Interval(whole.accuracy, whole.accuracy)
        assert whole.regret_interval.low == pytest.approx(whole.regret)
        assert whole.regret_interval.high == pytest.approx(whole.regret)


def test_a_measured_candidate_that_was_not_resampled_is_refused() -> None:
    rows, series = measured_rows(1)
    del series["c2"]
    with pytest.raises(RunError, match="c2"):
        rank("c", "M", rows, resampled_medians(series, 10))
