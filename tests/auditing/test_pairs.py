"""Verdicts of frozen pairs: one a pair and model, from one comparison of what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.made_up import FAILED, candidate, manifest, samples, timing
from theodolite import records
from theodolite.auditing.manifest import Candidate, Manifest, Samples, Timing
from theodolite.auditing.pairs import FrozenPair, FrozenPairs, PairJudgement, judge_frozen_pairs
from theodolite.errors import Drift, RunError

BLIND = {"BASELINE": ("partial_bytes", "launches"), "CORRECTED": ()}


def pair(a: str, b: str, ident: str = "p", case: str = "sdpa:A") -> FrozenPair:
    return FrozenPair(ident, case, a, b, "split", 2, 1, BLIND)


def swapped(p: FrozenPair) -> FrozenPair:
    return replace(p, a=p.b, b=p.a, a_value=p.b_value, b_value=p.a_value)


def run(
    times: dict[str, float], predictions: dict[str, tuple[float | str, float | str]], again: float = 1.0
) -> tuple[Manifest, Samples, dict[str, Candidate]]:
    """Candidates with (BASELINE, CORRECTED) predictions; the first one's A/A partner is `again` times as slow."""
    made = {n: candidate(n, dict(zip(("BASELINE", "CORRECTED"), predictions[n], strict=True))) for n in times}
    known: list[Timing] = [timing(made[n], t, seed=k) for k, (n, t) in enumerate(times.items())]
    first = next(iter(times))
    known.append(timing(made[first], times[first] * again, seed=77, name=f"{first}#again"))
    return manifest(list(made.values())), samples(known), made


TIMES = {"a": 1e-5, "b": 1.2e-5, "c": 1.2e-5}
SAID = {"a": (3.0, 1.0), "b": (2.0, 2.0), "c": ("inexpressible: x", 2.0)}


def said(judgement: PairJudgement) -> list[tuple[str, str, str, str]]:
    return [(j.pair.id, j.model, j.verdict.outcome, j.verdict.reason) for j in judgement.judged]


def test_each_pair_gets_a_verdict_of_each_model() -> None:
    frozen, recording, _ = run(TIMES, SAID)
    found = judge_frozen_pairs(frozen, [pair("a", "b", "1"), pair("b", "c", "2"), pair("c", "a", "3")], recording)
    assert said(found) == [
        ("1", "BASELINE", "WRONG", "order-opposes"),
        ("1", "CORRECTED", "RIGHT", "order-agrees"),
        ("2", "BASELINE", "UNRESOLVED", "not-predicted"),
        ("2", "CORRECTED", "UNRESOLVED", found.judged[3].verdict.reason),
        ("3", "BASELINE", "UNRESOLVED", "not-predicted"),
        ("3", "CORRECTED", "RIGHT", "order-agrees"),
    ]
    assert [j.measured_faster for j in found.judged] == ["A", "A", None, None, "B", "B"]
    assert {j.provenance for j in found.judged} == {"predicted before"}
    assert found.counts("CORRECTED") == {"RIGHT": 2, "WRONG": 0, "UNRESOLVED": 1, "UNMEASURED": 0}
    assert found.judged[0].verdict.gap == pytest.approx(0.2, abs=0.01)
    assert records.load(PairJudgement, records.dump(found), "judgement") == found


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([1e-5, 1.004e-5, 1.03e-5, 2e-5]), min_size=3, max_size=3),
    st.lists(st.sampled_from(["inexpressible: x", 1.0, 1.5, 2.0]), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_swapping_the_members_flips_the_sign_and_nothing_else(times, predicted, turn) -> None:
    names = ("a", "b", "c")
    frozen, recording, _ = run(
        dict(zip(names, times, strict=True)), {n: (p, 1.0) for n, p in zip(names, predicted, strict=True)}
    )
    plain = [pair("a", "b", "1"), pair("b", "c", "2"), pair("a", "c", "3")]
    turned = [swapped(p) if t else p for p, t in zip(plain, turn, strict=True)]
    there, back = (judge_frozen_pairs(frozen, pairs, recording) for pairs in (plain, turned))
    flip = {"A": "B", "B": "A", None: None}
    for n, (x, y) in enumerate(zip(there.judged, back.judged, strict=True)):
        assert (x.verdict, x.provenance) == (y.verdict, y.provenance)
        assert y.measured_faster == (flip[x.measured_faster] if turn[n // 2] else x.measured_faster)


def test_a_member_that_was_not_measured_makes_its_pairs_unmeasured() -> None:
    frozen, recording, made = run(TIMES, SAID)
    failed = replace(frozen, candidates=(made["a"], replace(made["b"], gates=FAILED), made["c"]))
    found = judge_frozen_pairs(failed, [pair("a", "b", "1"), pair("a", "c", "2")], recording)
    assert [(p, m, o) for p, m, o, _ in said(found)][:2] == [
        ("1", "BASELINE", "UNMEASURED"),
        ("1", "CORRECTED", "UNMEASURED"),
    ]
    assert said(found)[3] == ("2", "CORRECTED", "RIGHT", "order-agrees")
    crashed = replace(recording, timings=(timing(made["a"], 1e-5, status="hang"), *recording.timings[1:]))
    assert {o for _, _, o, _ in said(judge_frozen_pairs(frozen, [pair("a", "b")], crashed))} == {"UNMEASURED"}
    missing = replace(recording, timings=recording.timings[1:])
    assert {o for _, _, o, _ in said(judge_frozen_pairs(frozen, [pair("a", "b")], missing))} == {"UNMEASURED"}


def test_no_gap_below_that_of_the_case_s_own_check_is_believed() -> None:
    frozen, recording, _ = run({"a": 1e-5, "b": 1.03e-5}, {"a": (1.0, 1.0), "b": (2.0, 2.0)}, again=1.05)
    assert said(judge_frozen_pairs(frozen, [pair("a", "b")], recording))[0][2:] == (
        "UNRESOLVED",
        "gap-below-same-kernel",
    )
    quiet = run({"a": 1e-5, "b": 1.03e-5}, {"a": (1.0, 1.0), "b": (2.0, 2.0)})
    assert said(judge_frozen_pairs(quiet[0], [pair("a", "b")], quiet[1]))[0][2] == "RIGHT"
    alone = replace(recording, timings=recording.timings[:2])
    assert said(judge_frozen_pairs(frozen, [pair("a", "b")], alone))[0][2:] == ("UNRESOLVED", "same-kernel-unknown")


def test_many_pairs_are_corrected_for_one_another() -> None:
    """Ten rounds give p = 2^-9 at best: it stands among five pairs, and not among six."""
    frozen, recording, made = run({"a": 1e-5, "b": 1.5e-5}, {"a": (1.0, 1.0), "b": (2.0, 2.0)})
    few = replace(recording, timings=tuple(replace(t, samples_s=t.samples_s[:10]) for t in recording.timings))
    assert made
    for count, outcome in ((5, "RIGHT"), (6, "UNRESOLVED")):
        found = judge_frozen_pairs(frozen, [pair("a", "b", str(n)) for n in range(count)], few)
        assert {j.verdict.outcome for j in found.judged} == {outcome}
    assert {j.verdict.reason for j in found.judged} == {"lost-to-correction"}


def test_provenance_is_each_verdict_s_own() -> None:
    frozen, recording, _ = run(TIMES, SAID)
    older = replace(recording, run_id="older-run")
    with pytest.raises(Drift, match="older-run"):
        judge_frozen_pairs(frozen, [pair("a", "b")], older)
    own = [
        replace(c, predictions=tuple(replace(p, prediction_id=f"{c.id}-{p.model}") for p in c.predictions))
        for c in frozen.candidates
    ]
    frozen = replace(frozen, candidates=tuple(own))
    before = {"a-CORRECTED", "b-CORRECTED", "b-BASELINE"}
    found = judge_frozen_pairs(frozen, [pair("a", "b"), pair("b", "c", "2")], older, before)
    assert [(j.model, j.provenance) for j in found.judged] == [
        ("BASELINE", "retrodicted"),  # that of a was not there
        ("CORRECTED", "predicted before"),
        ("BASELINE", "retrodicted"),
        ("CORRECTED", "retrodicted"),  # that of c was not there
    ]
    assert {j.provenance for j in judge_frozen_pairs(frozen, [pair("a", "b")], older, set()).judged} == {"retrodicted"}


def test_pairs_of_strangers_and_pairs_of_one_name_are_refused() -> None:
    frozen, recording, _ = run(TIMES, SAID)
    for strange in (pair("a", "z"), pair("a", "b", case="sdpa:B")):
        with pytest.raises(Drift, match="no candidate of"):
            judge_frozen_pairs(frozen, [strange], recording)
    with pytest.raises(RunError, match="two pairs"):
        judge_frozen_pairs(frozen, [pair("a", "b"), pair("b", "c")], recording)


def test_frozen_pairs_read_back_equal() -> None:
    kept = FrozenPairs(1, "CORRECTED", 0.05, (pair("a", "b"),))
    assert records.load(FrozenPairs, records.dump(kept), "pairs") == kept
