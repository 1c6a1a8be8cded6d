"""The whole protocol on a device that is made up: planted faults harm one candidate, and every one is accounted for."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.auditing import made_up
from theodolite import records
from theodolite.auditing.bench.bundle import Protocol, check_frozen, read_results, write_bundle
from theodolite.auditing.bench.harness.device import Batch, Binary
from theodolite.auditing.bench.harness.main import Run
from theodolite.auditing.bench.harness.spec import Candidate, Kernel, read_bundle
from theodolite.auditing.judge import judge
from theodolite.auditing.manifest import Manifest, Samples, Timing
from theodolite.errors import Drift

TICK_S = 32e-9
TTIR = hashlib.sha256(b"ttir").hexdigest()
PROTOCOL = Protocol(rounds=30, least_rounds=5, compile_limit_s=0.5, isolated_limit_s=0.6)
GOOD = {"non_finite": 0, "elementwise": 0.1, "relative_norm": 3e-4, "relative_norm_head": 3e-4, "inputs_changed": 0}


class FakeDevice:
    """A candidate's name says what it does; times are multiples of a 32 ns tick of no clock at all."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.replays, self.number = folder, dict[str, int](), 0

    def compiler(self) -> str:
        return "3.6.0"

    def compile(self, candidate: Candidate, kernel: Kernel) -> Binary:
        if candidate.id == "no-compile":
            raise RuntimeError("PassManager::run failed")
        if candidate.id == "endless-compile":
            time.sleep(60)
        return Binary("other" if candidate.id == "drifts" else TTIR, "cubin", 1024)

    def write_inputs(self, workload: str, seed: int, folder: Path) -> str:
        return "made up"

    def open(self) -> dict[str, Any]:
        return {"target": ("cuda", 90, 32), "name": "fake"}

    def reserve(self, candidates: Sequence[Candidate]) -> None:
        self.reserved = {c.id for c in candidates}

    def bind(self, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary]) -> dict[str, Any]:
        assert candidate.id in self.reserved
        if candidate.id == "too-big":
            raise RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448.")
        if candidate.id == "hungry":
            raise MemoryError("OutOfMemoryError: CUDA out of memory")
        return {"n_regs": 82}

    def input_sets(self, candidate: Candidate) -> list[str]:
        return ["random", "uniform"]

    def run_once(self, candidate: Candidate, input_set: str) -> None:
        if candidate.id == "crashes":
            faulthandler.disable()  # the crash is planted: no traceback is wanted
            os.kill(os.getpid(), signal.SIGSEGV)
        if candidate.id == "hangs":
            time.sleep(60)
        if candidate.id == "illegal":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def compare(self, candidate: Candidate, input_set: str) -> dict[str, float]:
        if candidate.id == "nan":
            return {**GOOD, "non_finite": 3, "elementwise": float("nan"), "relative_norm": float("nan")}
        if candidate.id == "drops-keys" and input_set == "uniform":
            return {**GOOD, "relative_norm_head": 0.06}
        if candidate.id == "decays" and self.number:
            return {**GOOD, "elementwise": 1.5}
        return dict(GOOD)

    def cold_run(self, candidate: Candidate) -> float:
        return 0.1 if candidate.id == "slow" else 10e-6

    def capture(self, slot: str, candidate: Candidate) -> None:
        if slot == "no-graph":
            os._exit(7)
        self.replays[slot] = 0

    def prepare_rounds(self) -> dict[str, Any]:
        return {"tick_samples_s": [n * TICK_S for n in (40, 41, 57, 203)], "event_pair_s": 40 * TICK_S}

    def batch(self, slots: Sequence[str], mark: Callable[[str], object] | None) -> Batch:
        self.number += 1
        with (self.folder / "batches.jsonl").open("a") as file:
            file.write(json.dumps([mark is not None, list(slots)]) + "\n")
        samples = {}
        for slot in slots:
            if mark is not None:
                mark(slot)
            self.replays[slot] += 1
            # an error of the GPU shows at the end of a batch, when nobody knows whose it was
            if slot == "dies-later" and mark is not None:
                raise RuntimeError("CUDA error: unspecified launch failure")
            steps = 1 if slot == "impossible" else 300 + len(slot) + self.replays[slot] % 3
            samples[slot] = steps * TICK_S
        if "dies-later" in slots and self.number == 4:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if "kills" in slots and self.number == 3:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        return Batch(samples, (slots[0],) if self.number == 2 else ())

    def replay(self, candidate: Candidate) -> None:
        self.replays[candidate.id] += 1


def frozen(folder: Path, names: Sequence[str], protocol: Protocol = PROTOCOL) -> Manifest:
    """A bundle of made-up candidates, written to folder/bundle."""
    manifest = made_up.manifest([made_up.candidate(n, {}) for n in names])
    gated = tuple(replace(c, gates=made_up.FAILED) if c.id == "ungated" else c for c in manifest.candidates)
    manifest = replace(manifest, candidates=gated)
    write_bundle(manifest, folder / "bundle", ttir={n: {"copy": TTIR} for n in names}, protocol=protocol)
    return manifest


def measured(
    folder: Path, names: Sequence[str], limit_s: float = 60.0, only: Sequence[str] = ()
) -> tuple[Run, Samples]:
    manifest = frozen(folder, names)
    work = folder / "work"
    work.mkdir()
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        out = folder / "results.json.gz"
        run = Run(read_bundle(folder / "bundle"), FakeDevice(folder), out, limit_s, list(only), None, work)
        run.whole()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    check_frozen(manifest, folder)
    return run, read_results(out, manifest)


def by_name(samples: Samples) -> dict[str, Timing]:
    return {t.candidate: t for t in samples.timings}


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
    "impossible": ("impossible", "below"),
    "ungated": ("gate-failed", "before the freeze"),
}


def test_each_planted_fault_harms_its_own_candidate_alone(tmp_path: Path) -> None:
    names = ["good", *FAULTS, "fine", "slow"]
    _, samples = measured(tmp_path, names)
    timings = by_name(samples)
    assert {n: timings[n].status for n in FAULTS} == {n: status for n, (status, _) in FAULTS.items()}
    for name, (_, text) in FAULTS.items():
        assert text in timings[name].detail, name
    for name in ("good", "fine", "good#again"):
        assert timings[name].status == "ok"
        assert len(timings[name].samples_s) == 30
    # a slow one gets fewer rounds, its first ones, so that samples still pair up by position
    assert len(timings["slow"].samples_s) == 5
    assert samples.environment["rounds"] == {"slow": 5}
    assert samples.environment["event_tick_s"] == pytest.approx(TICK_S, rel=1e-3)
    assert set(timings) == {*names, "good#again"}


def test_rounds_are_whole_and_resume_after_a_death(tmp_path: Path) -> None:
    _, samples = measured(tmp_path, ["good", "dies-later", "fine"])
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
    _, samples = measured(tmp_path, ["good", "kills"])
    assert time.monotonic() - started < 20
    assert samples.environment["stopped"] == "by a signal"
    timing = by_name(samples)["good"]
    assert timing.status == "ok"
    assert len(timing.samples_s) == 1, "of three batches one was repeated and one never ended"
    assert samples.environment["event_tick_s"] == pytest.approx(TICK_S, rel=1e-3)


def test_the_limit_ends_the_run_with_a_status_for_all(tmp_path: Path) -> None:
    started = time.monotonic()
    _, samples = measured(tmp_path, ["hangs", "good"], limit_s=0.8)
    assert time.monotonic() - started < 5
    assert {t.candidate: t.status for t in samples.timings} == {"hangs": "timeout", "good": "not-reached"}


def test_only_measures_what_is_asked_for(tmp_path: Path) -> None:
    run, samples = measured(tmp_path, ["good", "fine"], only=["fine"])
    assert by_name(samples)["good"].status == "not-asked-for"
    assert len(by_name(samples)["fine"].samples_s) == 30
    assert run.alive() == ["fine"]


def test_the_judge_reads_what_comes_back(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "other", ["good", "crashes"])
    _, samples = measured(tmp_path, ["good", "crashes"])
    said = judge(manifest, samples, recorded=False)
    assert said.of("good").status == "MEASURED"
    assert said.of("crashes").status == "UNMEASURED"
    assert said.tick_s == pytest.approx(TICK_S, rel=1e-3)
    assert [s.candidate for s in said.same] == ["good"]


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.auditing.test_bench_protocol import measured
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
