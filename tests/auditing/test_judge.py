"""Judgements: nothing is said without evidence, and everyone is accounted for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.auditing.made_up import FAILED, candidate, demo, manifest, samples, timing
from theodolite import records
from theodolite.auditing.bench.bundle import read_manifest, read_results
from theodolite.auditing.judge import Judgement, event_tick_s, judge
from theodolite.auditing.manifest import GateResult, Timing
from theodolite.auditing.verdict import Paired, compare_family
from theodolite.errors import Drift, RunError


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


def test_the_gap_of_the_same_kernel_is_a_floor_under_its_case_alone() -> None:
    """Case A's two names of one kernel are 5 % apart, so that its inversion of 3 % is no verdict; case C's is."""
    made, known = [], []
    for case, again in (("sdpa:A", 1.05), ("sdpa:C", 1.0)):
        fast, slow = (
            candidate(f"{case[-1]}-{n}", {"BASELINE": 3.0 - n, "CORRECTED": 1.0 + n}, case=case) for n in (1, 2)
        )
        made += [fast, slow]
        known += [timing(fast, 1e-5, seed=1), timing(slow, 1.03e-5, seed=2)]
        known.append(timing(fast, 1e-5 * again, seed=3, name=f"{fast.id}#again"))
    judgement = judge(manifest(made), samples(known), recorded=False)
    assert [s.floor_gap > 0.05 for s in judgement.same] == [True, False]
    said = {v.case: (v.verdict.outcome, v.verdict.reason) for v in judgement.verdicts if v.model == "BASELINE"}
    assert said == {"sdpa:A": ("UNRESOLVED", "gap-below-same-kernel"), "sdpa:C": ("WRONG", "order-opposes")}
    unknown = judge(manifest(made), samples([t for t in known if "#" not in t.candidate]), recorded=False)
    assert {v.verdict.reason for v in unknown.verdicts} == {"same-kernel-unknown"}


def test_the_verdicts_shown_are_corrected_for_all_pairs_they_were_chosen_from() -> None:
    frozen, recording = demo()
    judgement = judge(frozen, recording, recorded=False)
    measured = [sum(m.status == "MEASURED" for m in judgement.measured if m.case == c) for c in frozen.cases]
    assert judgement.family == sum(n * (n - 1) // 2 for n in measured) == 2 * 231
    for verdict in (v.verdict for v in judgement.verdicts):
        assert verdict.p_adjusted == pytest.approx(min(1.0, verdict.p_value * judgement.family))


def test_a_second_name_with_impossible_times_is_no_check() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    broken = replace(timing(one, 1e-5, seed=1, name="a#again"), samples_s=(float("nan"),) * 60)
    (same,) = judge(manifest([one]), samples([timing(one, 1e-5), broken]), recorded=False).same
    assert (same.verdict.outcome, same.floor_gap) == ("UNMEASURED", None)


def test_the_recorded_check_of_case_a_is_reported_as_it_is() -> None:
    """Two graphs of one kernel 1.1 % apart, beyond any noise: the check says so, and as a pair it is no verdict."""
    run = Path(__file__).parents[2] / "data" / "h200-2026-11-30"
    frozen = read_manifest(run / "manifest.json")
    recording = read_results(run / "samples.json.gz", frozen)
    by_case = {s.case: s for s in judge(frozen, recording, recorded=False).same}
    assert {c: s.verdict.outcome for c, s in by_case.items()} == {
        "sdpa:A": "WRONG",
        "sdpa:B": "UNRESOLVED",
        "sdpa:C": "UNRESOLVED",
        "sdpa:D": "UNRESOLVED",
    }
    same = by_case["sdpa:A"]
    assert same.floor_gap > same.verdict.gap == pytest.approx(0.0109, abs=1e-4)
    series = {t.candidate: t.samples_s for t in recording.timings}
    twice = Paired(series[same.candidate], series[f"{same.candidate}#again"], same.floor_gap)
    (seen,) = compare_family([twice], tick_s=32e-9)
    assert seen.reason == "gap-below-same-kernel"


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"samples_s": (1e-9,) * 60}, "below the .* that the peaks allow"),
        ({"samples_s": (1e308,) * 60}, "not a positive time"),
        ({"samples_s": (5e-324,) * 60}, "below the"),
        ({"gates": ()}, "not looked at on the GPU"),
        ({"gates": (GateResult("loaded", True, "", {}),)}, "not looked at on the GPU"),
    ],
)
def test_samples_are_not_taken_on_trust(change: dict[str, object], why: str) -> None:
    c = candidate("a", {"BASELINE": 1e-6, "CORRECTED": 1e-6})
    recording = samples([replace(timing(c, 8e-6), **change)])  # type: ignore[arg-type]
    (measured,) = judge(manifest([c]), recording, recorded=False).measured
    assert measured.status == "UNMEASURED"
    assert re.search(why, measured.reason or "")


def test_company_on_the_gpu_unmeasures_all_of_a_recording() -> None:
    frozen, recording = demo()
    shared = replace(recording, environment={**recording.environment, "exclusive": False})
    judgement = judge(frozen, shared, recorded=False)
    assert {m.status for m in judgement.measured} == {"UNMEASURED"}
    assert judgement.conditions == ("another process used the GPU meanwhile",)
