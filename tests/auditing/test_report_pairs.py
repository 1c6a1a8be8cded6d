"""The section of pairs says what their judgement says, and a pair and its mirror image read alike."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.auditing.made_up import FAILED, candidate, manifest, samples, timing
from tests.auditing.test_report import Page
from theodolite.auditing.judge import judge
from theodolite.auditing.manifest import FORMAT, Manifest, Samples
from theodolite.auditing.pairs import OUTCOMES, FrozenPair, FrozenPairs, PairJudgement, judge_frozen_pairs
from theodolite.auditing.report import pairs_table, render
from theodolite.auditing.report.pairs import PairsView, pairs_view
from theodolite.errors import RunError

BLIND = {"BASELINE": ("launches", "warps"), "CORRECTED": ("warps",)}
# BASELINE and CORRECTED seconds, then what was measured; CORRECTED is wrong of b-c alone
MADE = {
    "a": (2e-6, 1e-6, 1.0e-5),
    "b": (2e-6, 3e-6, 1.2e-5),
    "c": ("inexpressible: x", 2e-6, 1.8e-5),
    "d": (9e-6, 9e-6, 3.0e-5),
}
PAIRS = (
    FrozenPair("1", "sdpa:A", "a", "b", "split", 2, 1, {"BASELINE": ("launches",), "CORRECTED": ()}),
    FrozenPair("2", "sdpa:A", "b", "c", "warps", 4, 8, BLIND),
    FrozenPair("3", "sdpa:A", "a", "d", "warps", 4, 1, BLIND),
)


def mirror(pair: FrozenPair) -> FrozenPair:
    return replace(pair, a=pair.b, b=pair.a, a_value=pair.b_value, b_value=pair.a_value)


def made(gates_of_d: tuple = ()) -> tuple[Manifest, Samples]:
    known = [candidate(n, {"BASELINE": b, "CORRECTED": c}) for n, (b, c, _) in MADE.items()]
    if gates_of_d:
        known[-1] = replace(known[-1], gates=gates_of_d)
    rows = [timing(c, MADE[c.id][2], seed=n) for n, c in enumerate(known)]
    return manifest(known), samples([*rows, timing(known[0], 1e-5, seed=50, name="a#again")])


def seen(pairs: tuple[FrozenPair, ...] = PAIRS, gates_of_d: tuple = ()) -> tuple[PairsView, PairJudgement, str]:
    frozen, recording = made(gates_of_d)
    judged = judge_frozen_pairs(frozen, pairs, recording)
    view = pairs_view(frozen, FrozenPairs(FORMAT, "CORRECTED", 0.05, pairs), judged)
    return view, judged, render(frozen, recording, judge(frozen, recording, recorded=False), view)


def section(page: str) -> str:
    begin = page.index('<section id="pairs">')
    return page[begin : page.index("</section>", begin)]


def test_counts_by_model_and_decision_are_the_judgement_s() -> None:
    view, judged, page = seen()
    assert [dict(m.counts) for m in view.models] == [judged.counts("BASELINE"), judged.counts("CORRECTED")]
    assert dict(view.models[0].counts) == {"RIGHT": 1, "WRONG": 1, "UNRESOLVED": 1, "UNMEASURED": 0}
    assert dict(view.models[1].counts) == {"RIGHT": 2, "WRONG": 1, "UNRESOLVED": 0, "UNMEASURED": 0}
    assert [(d.decision, d.pairs) for d in view.decisions] == [("split", 1), ("warps", 2)]
    for n, model in enumerate(judged.models):
        for outcome in OUTCOMES:
            assert sum(d.counts[n][outcome] for d in view.decisions) == judged.counts(model)[outcome]
    assert dict(view.models[0].unresolved) == {"not-predicted": 1}
    text = Page(section(page)).text
    assert "3 pairs, each of two mappings that differ in one decision" in text
    assert "that CORRECTED puts more than 5.0 % apart" in text
    assert "CORRECTED 2 1 0 0 1 of 3 (33.3 %)" in text
    assert "1 not-predicted" in text


def test_a_wrong_pair_shows_both_gaps_its_provenance_and_what_is_unpriced() -> None:
    view, _, page = seen()
    baseline, corrected = view.faults
    (tie,), (row,) = baseline.wrong, corrected.wrong
    assert (tie.judged.pair.id, tie.predicted) == ("1", "a tie")
    assert row.predicted == "warps=8 by 50.0\u00a0%"
    assert row.measured.startswith("warps=4 by ")
    assert row.judged.verdict.gap == pytest.approx(0.5, abs=0.01)
    assert (row.before, row.after) == ("flash: bm=64 bn=32 split=2", "stages=2")
    text = Page(section(page)).text
    low = text[text.index("Pairs that CORRECTED gets WRONG") :]
    assert (
        f"flash: bm=64 bn=32 split=2 warps 4 → 8 stages=2 {row.predicted} {row.measured}".replace("\u00a0", " ") in low
    )
    assert f"{row.interval} predicted before warps".replace("\u00a0", " ") in low


def test_a_field_is_counted_where_it_moves_and_where_it_does_not() -> None:
    view, _, page = seen()
    (warps,) = view.faults[1].fields
    assert (warps.field, warps.moved["WRONG"], warps.moved["RIGHT"]) == ("warps", 1, 1)
    assert (warps.still["WRONG"], warps.still["RIGHT"]) == (0, 1)
    assert [f.field for f in view.faults[0].fields] == ["launches", "warps"]
    text = Page(section(page)).text
    assert "warps 2 1 of 2 (50.0 %) 0 of 1 (0.0 %)" in text
    assert "Moved by no pair that is WRONG: warps ." in text  # BASELINE's only mistake moves launches alone


def test_a_pair_and_its_mirror_image_read_alike() -> None:
    there, _, _ = seen()
    back, _, _ = seen(tuple(mirror(p) for p in PAIRS))
    assert (there.models, there.decisions) == (back.models, back.decisions)
    assert [f.fields for f in there.faults] == [f.fields for f in back.faults]
    for one, other in zip(there.everyone, back.everyone, strict=True):
        for x, y in zip(one, other, strict=True):
            assert (x.predicted, x.measured, x.interval) == (y.predicted, y.measured, y.interval)
            assert x.judged.verdict == y.judged.verdict
            assert (x.judged.pair.a_value, x.judged.pair.b_value) == (y.judged.pair.b_value, y.judged.pair.a_value)


def test_the_page_stays_well_formed_and_its_links_lead_somewhere() -> None:
    page = Page(seen()[2])
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "#pairs" in page.links


def test_a_member_that_failed_a_gate_leaves_its_pairs_unmeasured() -> None:
    view, _, page = seen(gates_of_d=FAILED)
    assert [m.counts["UNMEASURED"] for m in view.models] == [1, 1]
    assert view.everyone[2][0].measured == "–"
    assert "UNMEASURED not-measured" in Page(section(page)).text


def test_before_the_measuring_the_pairs_and_their_predictions_stand_there() -> None:
    frozen, _ = made()
    nothing = judge_frozen_pairs(frozen, PAIRS, Samples(FORMAT, frozen.run_id, {}, ()))
    view = pairs_view(frozen, FrozenPairs(FORMAT, "CORRECTED", 0.05, PAIRS), nothing)
    text = Page(section(render(frozen, None, None, view))).text
    assert "Nothing was measured yet" in text
    assert "warps=8 by 50.0" in text
    assert not any(word in text for word in OUTCOMES)


def test_a_run_without_pairs_has_no_such_section_and_another_run_s_are_refused() -> None:
    frozen, recording = made()
    judgement = judge(frozen, recording, recorded=False)
    assert 'id="pairs"' not in render(frozen, recording, judgement)
    view = replace(seen()[0], run_id="other")
    with pytest.raises(RunError, match="pairs of run other"):
        render(frozen, recording, judgement, view)


def test_hostile_names_are_only_text() -> None:
    bad = '<script>alert("x")</script>'
    page = seen(tuple(replace(p, decision=bad, id=f"{bad}{p.id}", unpriced={"CORRECTED": (bad,)}) for p in PAIRS))[2]
    assert bad not in page
    assert page.count("<script>") == 1


def test_the_terminal_table_has_the_same_counts() -> None:
    _, judged, _ = seen()
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(pairs_table(judged))
    text = console.export_text()
    rows = [[c.strip() for c in line.strip("│ ").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 6
    for (model, decision), row in zip(
        [(m, d) for m in judged.models for d in (None, *judged.decisions)], rows, strict=True
    ):
        # a row of a decision begins with the empty cell of its model, which stripping takes away
        assert row[-5:] == [decision or "all", *(str(n) for n in judged.counts(model, decision).values())]
    assert "3 pairs, predicted before" in text
    assert "UNRESOLVED: BASELINE 1 not-predicted" in text
