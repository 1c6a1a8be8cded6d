"""The whole protocol on a device that is made up: planted faults harm one candidate, and every one is accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.auditing.fake_device import TICK_S, by_name, frozen, measured
from theodolite import records
from theodolite.auditing.bench.bundle import check_frozen
from theodolite.auditing.bench.harness.known import Options
from theodolite.auditing.judge import judge
from theodolite.errors import Drift

FAULTS = {
    "no-compile": ("compile-failed", "PassManager"),
    "endless-compile": ("compile-timeout", "killed"),
    "drifts": ("drift", "TTIR"),
    "too-big": ("shared-memory", "300000"),
    "hungry": ("out-of-memory", "CUDA out of memory"),
    "crashes": ("crash", "signal 11"),
    "hangs": ("timeout", "killed"),
    "illegal": ("illegal-access", "illegal memory access"),
    "nan": ("numerics", "3 elements"),
    "drops-keys": ("numerics", "uniform"),
    "decays": ("numerics", "after the rounds"),
    "no-graph": ("died", "exit 7"),
    "dies-later": ("died", "unspecified launch failure"),
    "hangs-later": ("died", "nothing happened"),
    "impossible": ("impossible", "below"),
    "ungated": ("gate-failed", "before the freeze"),
}


def test_each_planted_fault_harms_its_own_candidate_alone(tmp_path: Path) -> None:
    names = ["good", *FAULTS, "fine", "slow"]
    samples = measured(tmp_path, names)
    timings = by_name(samples)
    assert {n: timings[n].status for n in FAULTS} == {n: status for n, (status, _) in FAULTS.items()}
    for name, (_, text) in FAULTS.items():
        assert text in timings[name].detail, name
    for name in ("good", "fine", "good#again"):
        assert timings[name].status == "ok"
        assert len(timings[name].samples_s) == 30
    # a slow one gets fewer rounds, its first ones, so that samples still pair up by position
    assert len(timings["slow"].samples_s) == 5
    assert samples.environment["rounds"] == {"slow": 5, "slow#again": 5}
    assert samples.environment["event_tick_s"] == pytest.approx(TICK_S, rel=1e-3)
    assert set(timings) == {*names, "good#again", "slow#again"}, "the first and the last are timed twice"


def test_rounds_are_whole_and_resume_after_a_death(tmp_path: Path) -> None:
    samples = measured(tmp_path, ["good", "dies-later", "fine"])
    rows = [json.loads(line) for line in (tmp_path / "batches.jsonl").read_text().splitlines()]
    assert samples.environment["rounds_done"] == 30
    first_careful = next(i for i, (careful, _) in enumerate(rows) if careful)
    # batches 1 and 2, the second of them repeated for an empty queue, then the death in the fourth
    assert first_careful == 4
    assert all("dies-later" not in slots for _, slots in rows[first_careful + 1 :])
    orders = [tuple(slots) for _, slots in rows[first_careful + 1 :]]
    assert len(set(orders)) > 1, "rounds have one order each"
    assert len(by_name(samples)["good"].samples_s) == 30


def test_sigterm_leaves_the_rounds_so_far(tmp_path: Path) -> None:
    started = time.monotonic()
    samples = measured(tmp_path, ["good", "kills"])
    assert time.monotonic() - started < 20
    assert samples.environment["stopped"] == "by a signal"
    timing = by_name(samples)["good"]
    assert timing.status == "unchecked", "its process hung when it should have looked at the outputs"
    assert len(timing.samples_s) == 1, "of three batches one was repeated and one never ended"
    assert samples.environment["event_tick_s"] == pytest.approx(TICK_S, rel=1e-3)


def test_the_limit_ends_the_run_with_a_status_for_all(tmp_path: Path) -> None:
    started = time.monotonic()
    samples = measured(tmp_path, ["hangs", "good"], limit_s=0.8)
    assert time.monotonic() - started < 5
    assert {t.candidate: t.status for t in samples.timings} == {"hangs": "not-reached", "good": "not-reached"}
    assert (tmp_path / "results.json.gz.partial").exists(), "there is something left to do"


def test_only_measures_what_is_asked_for(tmp_path: Path) -> None:
    samples = measured(tmp_path, ["good", "fine"], options=Options(only=("fine",)))
    assert by_name(samples)["good"].status == "not-asked-for"
    assert len(by_name(samples)["fine"].samples_s) == 30


def test_the_judge_reads_what_comes_back(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "other", ["good", "crashes"])
    samples = measured(tmp_path, ["good", "crashes"])
    said = judge(manifest, samples, recorded=False)
    assert said.of("good").status == "MEASURED"
    assert said.of("crashes").status == "UNMEASURED"
    assert said.tick_s == pytest.approx(TICK_S, rel=1e-3)
    assert [s.candidate for s in said.same] == ["good"]


def test_a_case_keeps_an_a_a_pair_when_its_first_candidate_dies(tmp_path: Path) -> None:
    samples = measured(tmp_path, ["no-graph", "good", "fine"])
    assert by_name(samples)["no-graph"].status == "died"
    assert len(by_name(samples)["fine#again"].samples_s) == 30


def test_where_the_arena_has_no_room_the_largest_is_to_blame(tmp_path: Path) -> None:
    samples = measured(tmp_path, ["good", "huge", "fine"])
    assert by_name(samples)["huge"].status == "died"
    assert "out-of-memory" in by_name(samples)["huge"].detail
    assert by_name(samples)["fine"].status == "ok"


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.auditing.fake_device import measured
measured(Path({folder!r}), ["good", "fine"])
print(sorted(m for m in ("torch", "triton") if m in sys.modules))
"""


def test_the_fake_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    text = SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def changed(folder: Path, name: str) -> None:
    path = folder / "bundle" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["kernels/good.py", "harness/rounds.py", "manifest.json", "config.json", "run.py"])
def test_one_changed_bit_is_refused_here_and_there(tmp_path: Path, name: str) -> None:
    manifest = frozen(tmp_path, ["good"])
    script = (tmp_path / "bundle" / "run.py").read_text()
    changed(tmp_path, name)
    with pytest.raises(Drift, match=name.replace(".", r"\.")):
        check_frozen(manifest, tmp_path)
    (tmp_path / "untouched.py").write_text(script.replace("Path(__file__).resolve().parent", "Path(sys.argv[-1])"))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "untouched.py"), str(tmp_path / "bundle")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"{name} is not what was frozen" in done.stderr


def test_a_file_that_was_never_frozen_is_refused(tmp_path: Path) -> None:
    manifest = frozen(tmp_path, ["good"])
    records.write(tmp_path / "bundle" / "harness" / "json.py", "raise SystemExit")
    with pytest.raises(Drift, match="never frozen"):
        check_frozen(manifest, tmp_path)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bundle" / "run.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "never frozen" in done.stderr) == (2, True)


def test_a_file_beside_run_py_is_not_taken_for_pythons_own(tmp_path: Path) -> None:
    frozen(tmp_path, ["good"])
    records.write(tmp_path / "bundle" / "json.py", "raise SystemExit('taken')")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bundle" / "run.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "taken" in done.stderr) == (2, False)
    assert "json.py was never frozen" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}'])
def test_a_bundle_without_a_list_of_its_files_is_refused(tmp_path: Path, text: str) -> None:
    frozen(tmp_path, ["good"])
    (tmp_path / "bundle" / "frozen.json").write_text(text)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bundle" / "run.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "refused: frozen.json is missing or is none: write the bundle again\n"
