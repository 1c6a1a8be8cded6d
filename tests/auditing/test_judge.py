"""Verdicts and judgements: nothing is said without evidence, and swapping A and B changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.made_up import FAILED, candidate, demo, manifest, noisy, samples, timing
from theodolite import records
from theodolite.auditing.judge import Judgement, event_tick_s, judge
from theodolite.auditing.manifest import GateResult, Timing
from theodolite.auditing.verdict import Thresholds, compare, judge_pair
from theodolite.errors import Drift, RunError

TICK_S = 32e-9
SERIES = st.builds(
    noisy,
    st.sampled_from([10e-6, 10.05e-6, 10.5e-6, 20e-6]),
    st.sampled_from([5, 40, 41]),
    st.integers(0, 50),
    st.sampled_from([0.01, 0.15]),  # the wide ones give p-values that are neither 0 nor 1
)
PREDICTED = st.one_of(st.none(), st.sampled_from([1.0, 2.0]))


@settings(max_examples=60, deadline=None)
@given(PREDICTED, PREDICTED, SERIES, SERIES)
def test_swapping_a_and_b_keeps_the_verdict_and_flips_the_order(a, b, x, y) -> None:
    assert judge_pair(a, b, x, y, tick_s=TICK_S) == judge_pair(b, a, y, x, tick_s=TICK_S)
    there, back = compare(x, y, tick_s=TICK_S), compare(y, x, tick_s=TICK_S)
    assert {"A": "B", "B": "A", None: None}[there.faster] == back.faster
    assert (there.gap, there.p_value, there.reason) == (back.gap, back.p_value, back.reason)


@settings(max_examples=60, deadline=None)
@given(SERIES, SERIES)
def test_exchanging_the_predictions_exchanges_right_and_wrong(x, y) -> None:
    swap = {"RIGHT": "WRONG", "WRONG": "RIGHT", "UNRESOLVED": "UNRESOLVED"}
    there, back = (judge_pair(*p, x, y, tick_s=TICK_S) for p in ((1.0, 2.0), (2.0, 1.0)))
    assert swap[there.outcome] == back.outcome


@pytest.mark.parametrize("rounds_b", [60, 61])  # equal lengths take the sign test, others the bootstrap
def test_a_clear_order_is_right_wrong_or_a_lost_tie(rounds_b: int) -> None:
    fast, slow = noisy(10e-6, 60, 1), noisy(11e-6, rounds_b, 2)
    outcomes = [judge_pair(a, b, fast, slow, tick_s=TICK_S) for a, b in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0 + 1e-12))]
    assert [(v.outcome, v.reason) for v in outcomes] == [
        ("RIGHT", "order-agrees"),
        ("WRONG", "order-opposes"),
        ("WRONG", "predicted-tie"),
    ]


def test_every_way_of_not_knowing_has_its_reason() -> None:
    fast, slow = noisy(10e-6, 60, 1), noisy(11e-6, 60, 2)
    wild = noisy(10.4e-6, 60, 3, noise=0.5)

    def reason(x, y, a=1.0, b=2.0, tick_s=TICK_S):
        verdict = judge_pair(a, b, x, y, tick_s=tick_s)
        return verdict.outcome, verdict.reason

    assert reason(None, slow) == ("UNMEASURED", "not-measured")
    assert reason(fast, slow, b=None) == ("UNRESOLVED", "not-predicted")
    assert reason(fast[:5], slow[:5]) == ("UNRESOLVED", "too-few-samples")
    assert reason(fast, slow, tick_s=None) == ("UNRESOLVED", "tick-unknown")
    assert reason(fast, slow, tick_s=2e-6) == ("UNRESOLVED", "gap-below-tick")
    assert reason(fast, [x * 1.005 for x in fast]) == ("UNRESOLVED", "gap-below-minimum")
    assert reason(fast, wild) == ("UNRESOLVED", "not-significant")
    assert reason(fast, (*wild, wild[0])) == ("UNRESOLVED", "not-significant")


def test_a_median_against_the_rounds_is_unresolved() -> None:
    """B is a little slower in most rounds, though its median is lower: the two readings disagree."""
    a = np.array([1.0] * 40 + [2.0] * 41)
    b = np.array([1.1] * 40 + [1.2] * 1 + [2.1] * 40)
    seen = compare(a, b, tick_s=0.0)
    assert (seen.faster, seen.reason) == (None, "tests-disagree")


@pytest.mark.parametrize("rounds_b", [60, 61])
def test_equal_kernels_are_seldom_told_apart(rounds_b: int) -> None:
    """At a nominal 1 %, and a minimum gap, 200 pairs of equals give few false orders."""
    loose = Thresholds(minimum_gap=0.0, bootstrap_draws=400)
    pairs = [(noisy(10e-6, 60, 2 * n), noisy(10e-6, rounds_b, 2 * n + 1)) for n in range(200)]
    false = sum(compare(a, b, tick_s=0.0, thresholds=loose).faster is not None for a, b in pairs)
    assert false <= 8


@pytest.mark.parametrize("rounds_b", [60, 61])
def test_a_gap_of_three_percent_is_usually_resolved(rounds_b: int) -> None:
    pairs = [(noisy(10e-6, 60, 2 * n), noisy(10.3e-6, rounds_b, 2 * n + 1)) for n in range(30)]
    assert sum(compare(a, b, tick_s=TICK_S).faster == "A" for a, b in pairs) >= 28


def test_a_judgement_reads_back_equal_and_covers_everyone() -> None:
    frozen, recording = demo()
    judgement = judge(frozen, recording, recorded=False)
    assert records.load(Judgement, records.dump(judgement), "judgement") == judgement
    assert [m.candidate for m in judgement.measured] == [c.id for c in frozen.candidates]
    assert [(r.case, r.model) for r in judgement.rankings] == [
        (case, model) for case in ("sdpa:A", "sdpa:C") for model in ("BASELINE", "CORRECTED")
    ]
    assert judgement.provenance == "predicted before"
    baseline = judgement.ranking("sdpa:A", "BASELINE")
    assert (baseline.candidates, baseline.measured) == (24, 22)
    assert baseline.not_ranked_counts() == {"inexpressible": 8, "infeasible": 1}
    assert [(s.candidate, s.verdict.outcome) for s in judgement.same] == [
        ("A-flash-00", "UNRESOLVED"),
        ("C-flash-00", "UNRESOLVED"),
    ]
    assert {(v.case, v.predicted_faster, v.measured_faster) for v in judgement.verdicts if v.model == "BASELINE"} == {
        (r.case, w.predicted_faster, w.measured_faster)
        for r in judgement.rankings
        if r.model == "BASELINE"
        for w in r.worst
    }


def test_quantiles_are_the_samples_own() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    known = replace(timing(one, 1.0), samples_s=tuple(float(n) for n in range(1, 102)))
    measured = judge(manifest([one]), samples([known]), recorded=False).of("a")
    quantiles = measured.q05_s, measured.q25_s, measured.median_s, measured.q75_s, measured.q95_s
    assert quantiles == (6, 26, 51, 76, 96)
    assert measured.samples == 101


def cheats() -> list[tuple[str, object, Timing | None]]:
    """(what the reason must say, the candidate's gates, its timing)."""
    good = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    ok = timing(good, 1e-5)
    late = (GateResult("numerics", False, "a key is missing", {}),)
    return [
        ("gate fidelity failed", FAILED, ok),
        ("no gate was run", (), ok),
        ("not in the samples", good.gates, None),
        ("a key is missing", good.gates, replace(ok, gates=late)),
        ("hang: as planted", good.gates, timing(good, 1e-5, status="hang")),
        ("another kernel", good.gates, replace(ok, kernel_id="else")),
        ("no samples", good.gates, replace(ok, samples_s=())),
        ("positive", good.gates, replace(ok, samples_s=(1e-5, 0.0))),
        ("positive", good.gates, replace(ok, samples_s=(1e-5, float("nan")))),
    ]


@pytest.mark.parametrize(("reason", "gates", "known"), cheats())
def test_whatever_is_not_sound_is_unmeasured(reason, gates, known) -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0}, gates=gates)
    judgement = judge(manifest([one]), samples([known] if known else []), recorded=False)
    measured = judgement.of("a")
    assert (measured.status, measured.median_s) == ("UNMEASURED", None)
    assert reason in measured.reason
    assert judgement.ranking("sdpa:A", "BASELINE").ranked == 0


def test_a_time_of_an_earlier_lowering_counts_and_is_marked() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    old = replace(timing(one, 1e-5), kernel_id="older", detail="recorded lowering")
    measured = judge(manifest([one]), samples([old]), recorded=True).of("a")
    assert (measured.status, measured.note) == ("MEASURED", "recorded lowering")


def test_an_unmeasured_first_choice_is_named() -> None:
    best = candidate("best", {"BASELINE": 1.0, "CORRECTED": 1.0})
    rest = candidate("rest", {"BASELINE": 2.0, "CORRECTED": 2.0})
    known = [timing(best, 1e-5, status="hang"), timing(rest, 2e-5)]
    judgement = judge(manifest([best, rest]), samples(known), recorded=False)
    assert judgement.ranking("sdpa:A", "CORRECTED").pick.unmeasured_ahead == ("best",)


def test_a_planted_difference_in_the_same_kernel_is_wrong() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    known = [timing(one, 1e-5), timing(one, 1.2e-5, seed=1, name="a#again")]
    (same,) = judge(manifest([one]), samples(known), recorded=False).same
    assert (same.verdict.outcome, same.verdict.reason) == ("WRONG", "predicted-tie")


def test_the_second_name_of_a_kernel_is_never_ranked() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    twin = replace(one, id="a#again")
    known = [timing(one, 1e-5), timing(one, 1e-5, seed=1, name="a#again")]
    judgement = judge(manifest([one, twin]), samples(known), recorded=False)
    assert judgement.ranking("sdpa:A", "BASELINE").candidates == 1


def test_samples_of_another_run_are_drift_unless_recorded() -> None:
    frozen, recording = demo(count=3)
    other = replace(recording, run_id="run-2")
    with pytest.raises(Drift, match="run-2"):
        judge(frozen, other, recorded=False)
    judgement = judge(frozen, other, recorded=True)
    assert (judgement.provenance, judgement.samples_run_id) == ("retrodicted", "run-2")


def test_strange_and_repeated_timings_are_refused() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    with pytest.raises(RunError, match="does not have"):
        judge(manifest([one]), samples([timing(one, 1.0, name="b")]), recorded=False)
    with pytest.raises(RunError, match="twice"):
        judge(manifest([one]), samples([timing(one, 1.0), timing(one, 1.0)]), recorded=False)


def test_a_model_without_a_prediction_ranks_nobody() -> None:
    one = candidate("a", {"BASELINE": 1.0})
    ranking = judge(manifest([one]), samples([timing(one, 1.0)]), recorded=False).ranking("sdpa:A", "CORRECTED")
    assert (ranking.ranked, [n.kind for n in ranking.not_ranked]) == (0, ["other"])


def test_the_tick_is_read_or_unknown() -> None:
    assert event_tick_s({"event_tick_s": 32e-9}) == 32e-9
    assert event_tick_s({"event_tick_s": float("nan")}) is None
    assert event_tick_s({}) is None
