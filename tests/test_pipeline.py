"""The steps in a row on a tiny workload: what a run directory holds, what moves an id, what drift is refused."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.auditing.made_up import ON_GPU
from tests.ir.drawn import FLASH, H200, PIPELINE
from theodolite import pipeline, records
from theodolite.auditing.bench import measure as bench
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.manifest import Candidate, GateResult, Manifest, Samples, Timing
from theodolite.errors import Drift, RunError, TheodoliteError
from theodolite.gpus import gpu
from theodolite.gpus.gpu import Gpu
from theodolite.ir.text import parse, show
from theodolite.mapper.skeletons import mapping_of
from theodolite.workloads import workload

CASE = "sdpa:b=1,h=2,l=32,s=32,d=16"
PASSED = (GateResult("by hand", True, "", {}),)


def asked(text: str) -> pipeline.Asked:
    load = workload(CASE)
    return pipeline.Asked(CASE, load, mapping_of(text, load, H200), ("by hand",))


def candidates(machine: Gpu = H200) -> list[Candidate]:
    """Both worked mappings on the tiny case, with gates that count as passed."""
    return [replace(pipeline.lower_one(asked(t), machine), gates=PASSED) for t in (FLASH, PIPELINE)]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return pipeline.freeze(candidates(), H200, 0, {})


@pytest.fixture
def run(manifest: Manifest, tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    pipeline.write_run(manifest, directory)
    return directory


# ---- the whole ---------------------------------------------------------------------------------------------------
def test_audit_from_one_end_to_the_other(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    directory = pipeline.audit(
        [CASE], "h200", tmp_path / "runs", top=1, random=1, jobs=2, progress=lambda *step: steps.append(step)
    )
    manifest = read_manifest(directory / "manifest.json")
    assert directory == tmp_path / "runs" / manifest.run_id
    origins = {o for c in manifest.candidates for o in c.origin}
    assert origins == {"BASELINE 1", "CORRECTED 1", "random 1"}
    for candidate in manifest.candidates:
        assert candidate.passed, candidate.gates
        assert [g.gate for g in candidate.gates] == ["compiles", "launches", "fidelity", "numerics"]
        assert set(candidate.resources) == {k.name for k in candidate.program.kernels}
        assert (directory / "bundle" / "kernels" / f"{candidate.id}.py").read_text() == candidate.program.source
    assert {p.name for p in directory.iterdir()} == {"manifest.json", "bundle", "report.html"}
    page = (directory / "report.html").read_text()
    assert all(c.id in page for c in manifest.candidates)
    assert pipeline.verify(directory) == []
    assert pipeline.judge(directory) is None  # nothing was measured, so nothing is said
    for name in ("map", "lower", "gate", "freeze"):
        of = [s for s in steps if s[0] == name]
        assert of[0][1] == 0
        assert of[-1][1] == of[-1][2]
    again = pipeline.freeze(manifest.candidates, H200, 0, manifest.space)
    assert again.run_id == manifest.run_id
    pipeline.write_run(again, directory)  # the very same run is left alone


# ---- ids ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("change", [{"hbm_bytes_per_s": 3.9e12}, {"prologue_clk": 571}, {"registers_per_sm": 65535}])
def test_a_constant_moves_the_prediction_and_not_the_kernel(manifest: Manifest, change: dict[str, Any]) -> None:
    """Whether it moves the value or not: the constants are part of what was said."""
    other = pipeline.freeze(candidates(replace(H200, **change)), replace(H200, **change), 0, {})
    for before, after in zip(manifest.candidates, other.candidates, strict=True):
        assert after.kernel_id == before.kernel_id
        for old, new in zip(before.predictions, after.predictions, strict=True):
            assert (old.prediction_id is None) == (old.seconds is None)
            if old.prediction_id is not None:
                assert new.prediction_id != old.prediction_id
    assert other.run_id != manifest.run_id


def test_another_seed_moves_the_kernel_s_id_too(manifest: Manifest) -> None:
    other = pipeline.freeze(candidates(), H200, 1, {})
    before, after = ({c.kernel_id for c in m.candidates} for m in (manifest, other))
    assert not before & after
    assert len(before) == len(after) == 2


def test_a_mapping_that_a_model_cannot_say_has_no_prediction_id(manifest: Manifest) -> None:
    flash = manifest.candidates[0].prediction("BASELINE")
    assert (flash.seconds, flash.prediction_id) == (None, None)
    assert str(flash.why_not).startswith("inexpressible: interleaved over s")
    assert manifest.candidates[0].prediction("CORRECTED").prediction_id


def test_what_a_candidate_says_of_itself(manifest: Manifest) -> None:
    for candidate, text in zip(manifest.candidates, (FLASH, PIPELINE), strict=True):
        assert candidate.schedule == text
        assert show(parse(candidate.mapping)) == candidate.mapping
        assert show(parse(candidate.realised)) == candidate.realised
        rules = [r for r, _ in candidate.refinements]
        assert rules == [r.rule for r in parse(candidate.realised).refinements]
    assert [c.fusion for c in manifest.candidates] == ["single-kernel", "split"]


def test_the_same_mapping_asked_for_twice_is_one_candidate() -> None:
    one, two = asked(FLASH), replace(asked(FLASH), origin=("random 3",))
    (both, other) = pipeline.merged([one, asked(PIPELINE), two])
    assert both.origin == ("by hand", "random 3")
    assert other.origin == ("by hand",)


# ---- records -----------------------------------------------------------------------------------------------------
def test_a_manifest_reads_back_equal(manifest: Manifest, run: Path) -> None:
    assert records.load(Manifest, records.dump(manifest), "here") == manifest
    assert read_manifest(run / "manifest.json") == manifest
    assert records.dump(read_manifest(run / "manifest.json")) == (run / "manifest.json").read_text()


@pytest.mark.parametrize("text", ["", "{}", "[]", "nothing", '{"format": "one"}'])
def test_what_is_no_manifest_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match="is not a Manifest"):
        read_manifest(tmp_path / "manifest.json")
    with pytest.raises(RunError, match="no manifest at"):
        read_manifest(tmp_path / "elsewhere.json")


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file.json"
    records.write(path, "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("replace", "chmod", "fdopen"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                records.write(path, "new and longer")
        assert path.read_text() == "old"
        assert [p.name for p in path.parent.iterdir()] == ["file.json"]
    records.write(path, "new")
    assert path.read_text() == "new"


def test_an_interrupted_freeze_leaves_no_manifest(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is written last: a run without one was never frozen."""
    real, count = records.write, iter(range(100))

    def third_time(path: Path, data: str | bytes) -> None:
        if next(count) == 3:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(records, "write", third_time)
    with pytest.raises(KeyboardInterrupt):
        pipeline.write_run(manifest, tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()
    with pytest.raises(RunError, match="no manifest"):
        pipeline.check_unchanged(tmp_path / "run")


def test_another_run_does_not_overwrite_one(manifest: Manifest, run: Path) -> None:
    pipeline.write_run(manifest, run)
    with pytest.raises(RunError, match="holds another run"):
        pipeline.write_run(replace(manifest, run_id="000000000000"), run)


# ---- verify and drift --------------------------------------------------------------------------------------------
def edited(run: Path, change: Any) -> None:
    path = run / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_verify_finds_nothing_in_what_was_frozen(run: Path) -> None:
    assert pipeline.verify(run) == []


EDITS = {
    "a faster prediction": (
        lambda d: d["candidates"][1]["predictions"][1].update(seconds=1e-6),
        "prediction_id of CORRECTED does not follow",
    ),
    "a source": (
        lambda d: d["candidates"][0]["program"].update(
            source=d["candidates"][0]["program"]["source"].replace("tl.exp2(m - m_new)", "tl.exp2(m_new - m)")
        ),
        "kernel_id is",
    ),
    "a source that does not compile": (
        lambda d: d["candidates"][0]["program"].update(source="x = ("),
        "does not load",
    ),
    "a constant": (lambda d: d["models"][1]["constants"].update(sms=133.0), "prediction_id of CORRECTED"),
    "a term": (lambda d: d["models"][1]["terms"].pop(), "prediction_id of CORRECTED"),
    "a launch": (lambda d: d["candidates"][0]["program"]["launches"][0].update(grid=[3, 1, 1]), "kernel_id is"),
    "a seed": (lambda d: d.update(seed=9), "kernel_id is"),
    "a mapping that does not read": (lambda d: d["candidates"][0].update(mapping="a tree"), "a tree begins with"),
    "an origin": (lambda d: d["candidates"][0].update(origin=["CORRECTED 1"]), "run_id"),
    "a gate": (lambda d: d["candidates"][0]["gates"][0].update(passed=False), "run_id"),
}


@pytest.mark.parametrize("what", EDITS)
def test_verify_finds_an_edit(run: Path, what: str) -> None:
    change, message = EDITS[what]
    edited(run, change)
    faults = pipeline.verify(run)
    assert any(message in f for f in faults), faults
    assert any(f.startswith("run_id") for f in faults)
    assert not any("\n" in f for f in faults)
    with pytest.raises(TheodoliteError):
        pipeline.check_unchanged(run)


def test_one_byte_in_a_frozen_kernel_is_drift(run: Path, manifest: Manifest) -> None:
    pipeline.check_unchanged(run)
    for name in (f"kernels/{manifest.candidates[0].id}.py", "run.py", "harness/rounds.py", "config.json"):
        path = run / "bundle" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        for step in (pipeline.check_unchanged, pipeline.measure, pipeline.judge):
            with pytest.raises(Drift, match="is not what was frozen"):
                step(run)
        path.write_bytes(whole)
    pipeline.check_unchanged(run)


def test_verify_looks_into_the_bundle_where_there_is_one(run: Path, manifest: Manifest) -> None:
    name = f"kernels/{manifest.candidates[0].id}.py"
    for path in (run / "bundle" / name, run / "bundle" / "harness" / "rounds.py", run / "bundle" / "frozen.json"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-2])
        faults = pipeline.verify(run)
        assert len(faults) == 1
        assert path.name in faults[0] or path.name == "frozen.json"
        path.unlink()
        assert len(pipeline.verify(run)) == 1
        path.write_bytes(whole)
    assert pipeline.verify(run) == pipeline.verify(run / "bundle") == []
    shutil.rmtree(run / "bundle")  # a recording
    assert pipeline.verify(run) == []


@pytest.mark.parametrize("missing", ["torch", "triton"])
def test_a_bundle_says_what_it_needs(run: Path, missing: str) -> None:
    """With finders that know no such package, wherever the tests run."""
    script = (
        f"import runpy, sys, types; sys.modules['torch'] = types.ModuleType('torch'); sys.modules[{missing!r}] = None; "
        f"sys.argv = ['run.py']; runpy.run_path({str(run / 'bundle' / 'run.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    version = pipeline.toolchain()["triton"]
    expected = f"refused: needs torch and triton {version}; {missing} is not installed here\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def no_gpu() -> None:
    raise RunError("no GPU here")


def test_without_a_gpu_nothing_is_measured(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_need_gpu", no_gpu)
    with pytest.raises(RunError, match="no GPU here"):
        pipeline.measure(run)
    assert not (run / "samples.json.gz").exists()


# ---- samples -----------------------------------------------------------------------------------------------------
def measured(run: Path, manifest: Manifest) -> None:
    """Made-up samples beside a run: flash takes 10 us and pipeline 20."""
    timings = tuple(
        Timing(c.id, c.kernel_id, "ok", "", ON_GPU, tuple([(n + 1) * 1e-5] * 50))
        for n, c in enumerate(manifest.candidates)
    )
    samples = Samples(1, manifest.run_id, {"tick_s": 3.2e-8}, timings)
    (run / "samples.json.gz").write_bytes(gzip.compress(records.dump(samples).encode()))


def test_samples_of_the_run_itself_were_predicted_before(run: Path, manifest: Manifest) -> None:
    assert pipeline.judge(run) is None
    measured(run, manifest)
    judged = pipeline.judge(run)
    assert judged is not None
    judgement, samples = judged
    assert judgement.provenance == "predicted before"
    assert [t.candidate for t in samples.timings] == [c.id for c in manifest.candidates]
    assert (run / "verdicts.json").read_text() == records.dump(judgement)


def test_a_recording_is_retrodicted_where_the_predictions_changed(
    run: Path, manifest: Manifest, tmp_path: Path
) -> None:
    """Another constant makes another prediction, whatever its value; the kernels and their samples stay."""
    measured(run, manifest)
    other_gpu = replace(H200, prologue_clk=571)
    for machine, expected in ((H200, "predicted before"), (other_gpu, "retrodicted")):
        again = tmp_path / expected
        pipeline.write_run(pipeline.freeze(candidates(machine), machine, 0, {"note": "later"}), again)
        judged = pipeline.judge(again, run)
        assert judged is not None
        assert judged[0].provenance == expected
        assert [t.samples_s[0] for t in judged[1].timings] == [1e-5, 2e-5]


def test_a_judged_report_is_not_lost_for_want_of_the_recording(run: Path, manifest: Manifest, tmp_path: Path) -> None:
    measured(run, manifest)
    again = tmp_path / "again"
    pipeline.write_run(pipeline.freeze(candidates(), H200, 0, {"note": "later"}), again)
    unjudged = pipeline.report(again).read_text()
    judged = pipeline.report(again, run).read_text()
    assert judged != unjudged
    with pytest.raises(RunError, match="--recording"):
        pipeline.report(again)
    assert (again / "report.html").read_text() == judged
    assert pipeline.report(again, run).read_text() == judged


def test_the_mappings_of_a_recording_are_audited_again(run: Path) -> None:
    found = pipeline.recorded_mappings(run, [CASE])
    assert [show(a.tree) for a in found] == [c.mapping for c in read_manifest(run / "manifest.json").candidates]
    assert pipeline.recorded_mappings(run, ["sdpa:A"]) == []


def test_the_newest_recording_of_the_gpu_is_taken(run: Path, manifest: Manifest, tmp_path: Path) -> None:
    data = run.parent
    assert pipeline.recording_for("h200", data) is None
    measured(run, manifest)
    assert pipeline.recording_for("h200", data) == run
    assert pipeline.recording_for("rtx4090", data) is None
    assert gpu("h200").name == manifest.gpu
