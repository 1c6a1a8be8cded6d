"""Pairs one decision apart that an H200 decided, judged again without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.pairs import PairJudgement
from theodolite.auditing.verdict import Thresholds
from theodolite.pair_audit import judge_pairs, read_pairs

RUNS = sorted(p.parent for p in (Path(__file__).parent.parent / "data" / "pairs").glob("*/pairs.json"))
CASES = {"sdpa:A", "sdpa:B", "sdpa:C", "sdpa:D"}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PairJudgement]:
    """Each recording's verdicts, from a copy, since judging keeps what it finds."""
    found = {}
    for run in RUNS:
        copy = tmp_path_factory.mktemp("pairs") / run.name
        shutil.copytree(run, copy)
        found[run.name] = judge_pairs(copy)
    return found


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.name)
def test_over_a_hundred_pairs_of_all_cases_were_frozen_before(run: Path) -> None:
    pairs = read_pairs(run, read_manifest(run / "manifest.json")).pairs
    assert len(pairs) >= 100
    assert {p.case for p in pairs} == CASES
    assert len({p.decision for p in pairs}) >= 10


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.name)
def test_nearly_all_of_them_are_resolved_and_corrected_is_mostly_right(
    run: Path, judged: dict[str, PairJudgement]
) -> None:
    counts = judged[run.name].counts("CORRECTED")
    resolved = counts["RIGHT"] + counts["WRONG"]
    assert resolved >= 0.9 * sum(counts.values())
    assert counts["RIGHT"] > 0.7 * resolved
    assert all(j.provenance == "predicted before" for j in judged[run.name].judged)
    assert judged[run.name].thresholds == Thresholds()


def test_baseline_sees_neither_tiles_of_one_nor_split_k(judged: dict[str, PairJudgement]) -> None:
    found = judged["h200-2026-11-30-both"]
    counts = found.counts("BASELINE")
    assert counts["RIGHT"] + counts["WRONG"] >= 100, "all of these can be said in it"
    assert counts["WRONG"] > 0.6 * sum(counts.values())
    for decision in ("qk.bk", "qk.split", "av.bs", "warps"):
        own = found.counts("BASELINE", decision)
        assert own["RIGHT"] == 0
        assert own["WRONG"] >= 10
    assert found.counts("CORRECTED")["WRONG"] < 0.4 * counts["WRONG"]
