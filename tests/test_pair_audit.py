"""The audit of pairs, from picking to verdicts, on a workload of a few programs; and the verb that lists pairs."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.auditing.made_up import ON_GPU, noisy
from theodolite import pair_audit, pipeline, records
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Samples, Timing
from theodolite.auditing.verdict import Thresholds
from theodolite.cli import app
from theodolite.cost.model import model
from theodolite.errors import Drift, Infeasible, RunError
from theodolite.gpus import gpu
from theodolite.mapper.pairs import pairs
from theodolite.mapper.shorthand import parse_schedule
from theodolite.pair_audit import (
    PAIRS,
    VERDICTS,
    PickedPair,
    base_mappings,
    freeze_pairs,
    judge_pairs,
    pick_pairs,
    read_pairs,
)
from theodolite.workloads import workload

H200 = gpu("h200")
CASE = "sdpa:b=1,h=2,l=64,s=64,d=16"
FLASH = "flash:bm=64,bn=32,split=2,warps=4,stages=2"


# ---- pick --------------------------------------------------------------------------------------------------------
def test_picked_pairs_are_neighbours_of_the_bases_clear_and_the_same_again() -> None:
    cases = [CASE, "sdpa:b=1,h=2,l=64,s=80,d=16"]
    picked = pick_pairs(cases, H200, 5, gap=0.1, bases=2, seed=3)
    assert [p.case for p in picked] == [c for c in cases for _ in range(5)]
    assert picked == pick_pairs(cases, H200, 5, gap=0.1, bases=2, seed=3)
    assert len({p.id for p in picked}) == 10
    for p in picked:
        assert p.pair.gap > 0.1
        assert p.pair.a in base_mappings(p.workload, H200, model("corrected"), 2, 3)
    for case in cases:
        assert len({p.pair.decision for p in picked if p.case == case}) >= 4
    with pytest.raises(Infeasible, match="ask for fewer, a smaller gap or more bases"):
        pick_pairs([CASE], H200, 5000, bases=1)


# ---- freeze ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs that share a member, hence three candidates, gated and frozen."""
    load = workload(CASE)
    found = pairs(FLASH, load, H200)
    chosen = [next(p for p in found if (p.decision, p.values[1]) == want) for want in (("split", 1), ("warps", 1))]
    directory = tmp_path_factory.mktemp("pairs") / "run"
    freeze_pairs([PickedPair(CASE, load, p) for p in chosen], H200, directory, jobs=2)
    return directory


def test_a_run_of_pairs_is_a_run_and_holds_each_mapping_once(frozen: Path) -> None:
    manifest = read_manifest(frozen / "manifest.json")
    assert all(c.passed for c in manifest.candidates)
    assert len(manifest.candidates) == 3
    kept = read_pairs(frozen, manifest)
    by_id = {c.id: c for c in manifest.candidates}
    assert [(p.decision, p.a_value, p.b_value) for p in kept.pairs] == [("split", 2, 1), ("warps", 4, 1)]
    for p in kept.pairs:
        a, b = (parse_schedule(by_id[name].schedule).values for name in (p.a, p.b))
        assert {k for k in a if a[k] != b[k]} == {p.decision}
        assert (a[p.decision], b[p.decision]) == (p.a_value, p.b_value)
        assert any(p.id in origin for origin in by_id[p.b].origin)
        assert set(p.unpriced) == {"BASELINE", "CORRECTED"}
        assert set(p.unpriced["CORRECTED"]) < set(p.unpriced["BASELINE"])
    assert "launches" in kept.pairs[0].unpriced["BASELINE"]
    assert (frozen / "bundle" / "run.py").exists()
    assert pipeline.verify(frozen) == []
    pipeline.check_unchanged(frozen)


def test_a_run_is_not_written_over_another_and_needs_pairs(frozen: Path, tmp_path: Path) -> None:
    picked = pick_pairs([CASE], H200, 1, bases=1)
    with pytest.raises(RunError, match="another run"):
        freeze_pairs(picked, H200, frozen)
    with pytest.raises(RunError, match="no pair"):
        freeze_pairs([], H200, tmp_path / "none")


# ---- judge -------------------------------------------------------------------------------------------------------
def measured(manifest: Manifest, time_s: Callable[[Candidate], float]) -> Samples:
    """What a GPU might have answered, the A/A pair included."""

    def timing(c: Candidate, name: str, seed: int) -> Timing:
        return Timing(name, c.kernel_id, "ok", "", ON_GPU, noisy(time_s(c), 60, seed))

    rows = [timing(c, c.id, n) for n, c in enumerate(manifest.candidates)]
    first = manifest.candidates[0]
    rows.append(timing(first, f"{first.id}#again", 99))
    return Samples(FORMAT, manifest.run_id, {"event_tick_s": 32e-9}, tuple(rows))


def with_samples(frozen: Path, to: Path, samples: Samples) -> Path:
    """A copy of the run with these samples in it."""
    for path in frozen.rglob("*"):
        if path.is_file() and path.name not in ("samples.json.gz", VERDICTS):
            records.write(to / path.relative_to(frozen), path.read_bytes())
    records.write(to / "samples.json.gz", gzip.compress(records.dump(samples).encode()))
    return to


def as_predicted(c: Candidate) -> float:
    return 10 * c.prediction("CORRECTED").seconds


def test_a_gpu_that_does_as_predicted_makes_corrected_right_and_its_opposite_wrong(
    frozen: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(frozen / "manifest.json")
    for name, outcome, time_s in (
        ("right", "RIGHT", as_predicted),
        ("wrong", "WRONG", lambda c: 1e-10 / as_predicted(c)),
    ):
        run = with_samples(frozen, tmp_path / name, measured(manifest, time_s))
        judged = judge_pairs(run)
        assert judged.counts("CORRECTED")[outcome] == 2
        assert judged.counts("BASELINE")["UNRESOLVED"] == 2  # it has no words for flash
        assert {j.provenance for j in judged.judged} == {"predicted before"}
        assert records.load(type(judged), (run / VERDICTS).read_bytes(), "verdicts") == judged


def test_without_samples_there_is_no_verdict_and_a_recording_retrodicts(frozen: Path, tmp_path: Path) -> None:
    manifest = read_manifest(frozen / "manifest.json")
    with pytest.raises(RunError, match="not measured"):
        judge_pairs(frozen)
    recording = with_samples(frozen, tmp_path / "recording", measured(manifest, as_predicted))
    judged = judge_pairs(frozen, recording)
    assert judged.counts("CORRECTED")["RIGHT"] == 2
    # the very same predictions were frozen before that recording was taken; where BASELINE has none, none was
    assert {(j.model, j.provenance) for j in judged.judged} == {
        ("CORRECTED", "predicted before"),
        ("BASELINE", "retrodicted"),
    }
    then = read_manifest(recording / "manifest.json")
    older = tuple(
        replace(c, predictions=tuple(replace(p, prediction_id=f"older-{p.model}") for p in c.predictions))
        for c in then.candidates
    )
    records.write(recording / "manifest.json", records.dump(replace(then, candidates=older)))
    assert {j.provenance for j in judge_pairs(frozen, recording).judged} == {"retrodicted"}


def test_pairs_that_are_not_those_frozen_are_drift(frozen: Path, tmp_path: Path) -> None:
    manifest = read_manifest(frozen / "manifest.json")
    run = with_samples(frozen, tmp_path / "run", measured(manifest, as_predicted))
    kept = read_pairs(run, manifest)
    first, second = kept.pairs
    for other in ((first,), (second, first), (replace(first, a=first.b, b=first.a), second)):
        records.write(run / PAIRS, records.dump(replace(kept, pairs=other)))
        with pytest.raises(Drift, match="not what was frozen"):
            judge_pairs(run)
    (run / PAIRS).unlink()
    with pytest.raises(RunError, match=f"no {PAIRS}"):
        judge_pairs(run)
    # a manifest that was changed along with its pairs no longer gives its run_id
    fewer = replace(kept, pairs=(first,))
    records.write(run / PAIRS, records.dump(fewer))
    space = {"pairs": {"digest": records.digest(fewer), "count": 1}}
    records.write(run / "manifest.json", records.dump(replace(manifest, space=space)))
    with pytest.raises(Drift, match="run_id"):
        judge_pairs(run)


# ---- the verb ----------------------------------------------------------------------------------------------------
def test_the_verb_lists_what_the_function_finds() -> None:
    def lines(*more: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(app, ["pairs", "sdpa:A", "--schedule", FLASH, "--json", *more])
        assert done.exit_code == 0, done.output
        return [json.loads(x) for x in done.stdout.splitlines()]

    found = pairs(FLASH, workload("sdpa:A"), H200)
    assert [(x["a"], x["b"], x["gap"]) for x in lines()] == [(str(p.a), str(p.b), p.gap) for p in found]
    assert lines() == lines()
    clear = lines("--gap", "0.05")
    assert [x["b"] for x in clear] == [str(p.b) for p in found if p.gap > 0.05]
    assert clear[2]["decision"] == "split"
    assert clear[2]["moved"]["launches"] == [2, 1]
    assert all(x["gap"] is None and "interleaved" in x["why_not"] for x in lines("--model", "baseline"))
    assert lines("--model", "baseline", "--gap", "0") == []


def test_the_verb_s_table_is_for_people() -> None:
    done = CliRunner().invoke(app, ["pairs", "sdpa:A", "--schedule", FLASH])
    assert done.exit_code == 0
    # a row may go on in further lines, whose first cell is empty
    rows = [line for line in done.stdout.splitlines() if re.match(r"│ \w", line)]
    assert len(rows) == 24
    assert "24 of 24 pairs" in done.stdout
    (row,) = (r for r in rows if "split" in r and "2 to 1 " in r)
    assert [c.strip() for c in row.strip("│").split("│")] == ["split", "2 to 1", "6.4873", "4.9738", "-30.4%", "-"]
    assert sum("tie" in r for r in rows) == sum(p.gap == 0 for p in pairs(FLASH, workload("sdpa:A"), H200))


def test_readme_shows_what_the_verb_prints_and_imports_what_exists() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    words, shown = re.search(r"```console\n\$ theodolite (pairs [^\n]*)\n(.*?)```", text, re.DOTALL).groups()
    done = subprocess.run(
        [sys.executable, "-m", "theodolite.cli", *words.split()],
        env={**os.environ, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown == "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())
    names = re.search(r"from theodolite\.pair_audit import ([\w, ]+)", text)[1].split(", ")
    assert all(callable(getattr(pair_audit, name)) for name in names)
    assert f"at least {Thresholds().minimum_gap:.1%}".replace("%", " %") in text.replace("\n", " ")


def test_one_workload_under_two_names_is_picked_once() -> None:
    spelled = workload("sdpa:A").name
    picked = pick_pairs(["sdpa:A", spelled], gpu("h200"), 2, bases=1)
    assert len(picked) == 2
    assert {p.case for p in picked} == {"sdpa:A"}
