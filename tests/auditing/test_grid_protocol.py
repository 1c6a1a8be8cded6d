"""A grid's whole protocol on a device that is made up: planted faults harm one candidate, and each is accounted for."""

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
from theodolite.auditing.bench.collected import Collected, CollectedTiming, read_collected, summary
from theodolite.auditing.bench.collecting.grid import Grid, Unit, read_grid
from theodolite.auditing.bench.collecting.main import Run
from theodolite.auditing.bench.grid_bundle import (
    GridManifest,
    GridProtocol,
    Lowered,
    freeze_grid,
    unique_kernels,
    write_grid,
)
from theodolite.auditing.bench.harness.device import Batch, Binary
from theodolite.auditing.bench.harness.spec import Candidate
from theodolite.errors import Drift, RunError
from theodolite.gpus import gpu

W, V = "sdpa:b=1,h=8,l=128,s=128,d=64", "sdpa:b=2,h=8,l=128,s=128,d=64"
PROTOCOL = GridProtocol(rounds=8, least_rounds=3, compile_limit_s=0.6, hang_limit_s=5.0, open_limit_s=10.0)
GOOD = {"non_finite": 0, "elementwise": 0.1, "relative_norm": 3e-4, "relative_norm_head": 3e-4, "inputs_changed": 0}
SHARED = "copy"  # a kernel that is compiled once for all candidates


class FakeDevice:
    """A candidate's schedule is a word that says what it does; times are made up and counted by its length."""

    def __init__(self, grid: Grid, folder: Path, gpus: int = 1) -> None:
        self.grid, self.folder, self.count, self.number, self.opened = grid, folder, gpus, 0, -1
        self.captured: set[str] = set()

    def word(self, candidate: Candidate) -> str:
        return self.grid.members[candidate.id].schedule

    def log(self, row: Any) -> None:
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def gpus(self) -> int:
        return self.count

    def choose(self, gpu: int, of: int) -> None:
        self.gpu = gpu

    def compiler(self) -> str:
        return "3.6.0"

    def compile_unit(self, unit: Unit) -> Binary:
        self.log(["compile", unit.kernel.name])
        if "no_compile" in unit.kernel.name:
            raise RuntimeError("PassManager::run failed")
        if "endless" in unit.kernel.name:
            time.sleep(60)
        return Binary("other" if "drifts" in unit.kernel.name else unit.ttir, f"cubin {unit.number}", 1024)

    def write_inputs(self, workload: str, seed: int, folder: Path) -> str:
        return "made up"

    def open(self) -> dict[str, Any]:
        self.log(["open", self.gpu])
        return {"target": ("cuda", 90, 32), "name": "fake"}

    def reserve(self, candidates: Sequence[Candidate]) -> None:
        self.reserved = {c.id for c in candidates}

    def bind(self, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary]) -> dict[str, Any]:
        assert candidate.id in self.reserved
        assert {k: b.ttir for k, b in binaries.items()} == dict(candidate.ttir)
        if self.word(candidate) == "hungry":
            raise MemoryError("OutOfMemoryError: CUDA out of memory")
        return {"n_regs": 82}

    def usable(self) -> bool:
        return getattr(self, "broken", None) is None

    def run_once(self, candidate: Candidate, input_set: str) -> None:
        word = self.word(candidate)
        self.log(["first", self.gpu, word])
        if word == "crashes":
            faulthandler.disable()  # the crash is planted: no traceback is wanted
            os.kill(os.getpid(), signal.SIGSEGV)
        if word == "hangs":
            time.sleep(60)
        if word == "illegal":
            self.broken = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def compare(self, candidate: Candidate, input_set: str) -> dict[str, float]:
        if self.word(candidate) == "nan":
            return {**GOOD, "non_finite": 3, "elementwise": float("nan"), "relative_norm": float("nan")}
        if self.word(candidate) == "wrong":
            return {**GOOD, "relative_norm": 6e-3}
        return dict(GOOD)

    def cold_run(self, candidate: Candidate) -> float:
        return {"hopeless": 1e-2, "slow": 5e-5}.get(self.word(candidate), 1e-5)

    def capture(self, slot: str, candidate: Candidate) -> None:
        if self.word(candidate) == "no-graph":
            os._exit(7)
        self.captured.add(slot)

    def prepare_rounds(self) -> dict[str, Any]:
        return {"tick_samples_s": [n * 32e-9 for n in (40, 41, 57, 203)], "event_pair_s": 1e-6}

    def batch(self, slots: Sequence[str], mark: Callable[[str], object] | None) -> Batch:
        assert set(slots) <= self.captured
        self.number += 1
        words = [self.word(self.grid.candidate(s.removesuffix("#again"))) for s in slots]
        self.log(["batch", self.gpu, mark is not None, list(slots)])
        for slot, word in zip(slots, words, strict=True):
            if mark is not None:
                mark(slot)
                if word == "dies-later":
                    raise RuntimeError("CUDA error: unspecified launch failure")
        if "dies-later" in words and self.number == 3:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if "kills" in words and self.number == 4:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        times = {s: 1e-7 if w == "impossible" else 1e-5 + 1e-6 * self.number for s, w in zip(slots, words, strict=True)}
        dry = (slots[0],) if len(slots) > 1 and self.number == 2 else ()
        return Batch(times, dry)


def lowered(word: str, workload: str = W) -> Lowered:
    """A candidate of two kernels: one of its own, named after its word, and one that all share."""
    own, shared = made_up.program(word.replace("-", "_")), made_up.program(SHARED)
    source = own.source.replace("def copy", f"def {own.kernels[0].name}") + shared.source
    program = replace(
        own,
        workload=workload,
        source=source,
        kernels=(*own.kernels, *shared.kernels),
        launches=(*own.launches, *shared.launches),
    )
    return Lowered(workload, word, program)


def frozen(folder: Path, words: Sequence[str], others: Sequence[str] = ()) -> GridManifest:
    """A bundle of made-up candidates, written to `folder`/bundle."""
    every = [lowered(w) for w in words] + [lowered(w, V) for w in others]
    ttir = {key: f"ttir of {key[0]}" for key in unique_kernels(every)}
    manifest = freeze_grid(every, ttir, gpu("h200"), "3.6.0", 0, PROTOCOL)
    write_grid(manifest, folder / "bundle")
    return manifest


def collected(
    folder: Path, words: Sequence[str], others: Sequence[str] = (), limit_s: float = 60.0, gpus: int = 1
) -> tuple[GridManifest, Collected]:
    manifest = frozen(folder, words, others)
    work = folder / "work"
    work.mkdir()
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        grid = read_grid(folder / "bundle", work)
        out = folder / "collected.json.gz"
        Run(grid, FakeDevice(grid, folder, gpus), out, limit_s, 4, work).whole()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return manifest, read_collected(out, manifest)


def by_word(found: Collected, workload: str = W) -> dict[str, CollectedTiming]:
    return {t.schedule: t for t in found.of(workload)}


def log(folder: Path, kind: str) -> list[Any]:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [r for r in rows if r[0] == kind]


FAULTS = {
    "no-compile": ("compile-failed", "PassManager"),
    "endless": ("compile-timeout", "killed"),
    "drifts": ("drift", "TTIR"),
    "hungry": ("out-of-memory", "CUDA out of memory"),
    "crashes": ("crash", "signal 11"),
    "hangs": ("hang", "nothing happened for 5 s"),
    "illegal": ("illegal-access", "illegal memory access"),
    "nan": ("numerics", "3 elements"),
    "wrong": ("numerics", "0.006"),
    "hopeless": ("slow", "1000 times"),
    "no-graph": ("crash", "exit 7"),
    "dies-later": ("crash", "unspecified launch failure"),
    "impossible": ("impossible", "below"),
}


def test_each_planted_fault_harms_its_own_candidate_alone(tmp_path: Path) -> None:
    _, found = collected(tmp_path, ["good", *FAULTS, "slow", "fine"])
    timings = by_word(found)
    assert {w: timings[w].status for w in FAULTS} == {w: status for w, (status, _) in FAULTS.items()}
    for word, (_, text) in FAULTS.items():
        assert text in timings[word].detail, word
    for word in ("good", "fine", "slow"):
        assert timings[word].status == "ok"
        assert len(timings[word].samples_ns) == 8
    assert len(timings["good"].again_ns) == 8
    assert not timings["fine"].again_ns
    # who fell out in or before the first run was never run again, and everybody else just once
    firsts = [word for _, _, word in log(tmp_path, "first")]
    assert sorted(firsts) == sorted(set(firsts))
    # a worker for the start, and one after each death: crash, hang, broken GPU, exit at a capture, two in the rounds
    assert len(log(tmp_path, "open")) == 7


def test_a_kernel_that_many_share_is_compiled_once(tmp_path: Path) -> None:
    manifest, _ = collected(tmp_path, ["good", "fine", "plain"])
    compiled = [name for _, name in log(tmp_path, "compile")]
    assert sorted(compiled) == [SHARED, "fine", "good", "plain"]
    assert len(manifest.kernels) == 4
    assert {len(c.kernels) for c in manifest.candidates} == {2}


def test_rounds_are_whole_shuffled_and_resume_after_a_death(tmp_path: Path) -> None:
    _, found = collected(tmp_path, ["good", "dies-later", "fine", "more", "most"])
    rows = log(tmp_path, "batch")
    # the second batch had one sample taken again, and that retry was the one that died: its round does not count
    assert [len(slots) for _, _, _, slots in rows[:3]] == [6, 6, 1]
    careful = [n for n, (_, _, is_careful, _) in enumerate(rows) if is_careful]
    dead = next(t.candidate for t in found.timings if t.schedule == "dies-later")
    assert all(dead not in slots for _, _, _, slots in rows[careful[0] + 1 :])
    orders = {tuple(slots) for _, _, _, slots in rows if len(slots) == 5}
    assert len(orders) > 3
    assert found.environment["workers"][0]["rounds_done"] == 8
    for word in ("good", "fine", "more", "most"):
        assert len(by_word(found)[word].samples_ns) == 8


def test_the_slow_get_fewer_rounds_than_the_fast(tmp_path: Path) -> None:
    _, found = collected(tmp_path, ["slow", "hopeless"])
    assert {w: t.status for w, t in by_word(found).items()} == {"slow": "ok", "hopeless": "slow"}
    _, found = collected(tmp_path / "other", ["hopeless", "no-compile"])
    assert by_word(found)["hopeless"].status == "ok"
    assert len(by_word(found)["hopeless"].samples_ns) == 4, "8 rounds x 5 ms over 10 ms"


def test_candidates_of_a_workload_stay_on_one_gpu(tmp_path: Path) -> None:
    _, found = collected(tmp_path, ["good", "crashes"], ["fine", "plain"], gpus=2)
    where = {word: number for _, number, word in log(tmp_path, "first")}
    assert where["good"] == where["crashes"] != where["fine"] == where["plain"]
    assert {w: t.status for w, t in (by_word(found) | by_word(found, V)).items()} == {
        "good": "ok",
        "crashes": "crash",
        "fine": "ok",
        "plain": "ok",
    }
    assert [w["rounds_done"] for w in found.environment["workers"]] == [8, 8]


def test_sigterm_leaves_the_rounds_so_far(tmp_path: Path) -> None:
    started = time.monotonic()
    _, found = collected(tmp_path, ["good", "kills"])
    assert time.monotonic() - started < 20
    assert found.environment["stopped"] == "by a signal"
    assert by_word(found)["good"].status == "ok"
    # four batches: a round, a round and its dry sample again, and the one that never ended
    assert len(by_word(found)["good"].samples_ns) == 2


def test_the_limit_ends_the_run_with_a_status_for_all(tmp_path: Path) -> None:
    started = time.monotonic()
    _, found = collected(tmp_path, ["hangs", "good"], limit_s=1.5)
    assert time.monotonic() - started < 12
    assert {t.status for t in found.timings} <= {"hang", "not-reached"}


def test_the_summary_counts_and_names_the_best(tmp_path: Path) -> None:
    _, found = collected(tmp_path, ["good", "nan", "impossible", "fine"])
    (one,) = summary(found)
    assert one.statuses == {"impossible": 1, "numerics": 1, "ok": 2}
    seconds = {t.schedule: t.seconds for t in found.timings if t.status == "ok"}
    assert one.best_s == min(seconds.values())
    assert one.best in ("good", "fine")
    assert one.again_relative == pytest.approx(0, abs=0.5)
    assert one.floor_ratio == one.best_s / found.floors_s[W]


def test_a_result_is_held_against_its_manifest(tmp_path: Path) -> None:
    manifest, found = collected(tmp_path, ["good", "fine"])
    path = tmp_path / "collected.json.gz"
    other = frozen(tmp_path / "other", ["good", "plain"])
    with pytest.raises(RunError, match="is of run"):
        read_collected(path, other)
    with pytest.raises(RunError, match="leaves out 1"):
        read_collected(
            path, replace(other, run_id=manifest.run_id, candidates=(*manifest.candidates, other.candidates[1]))
        )
    changed = replace(manifest.candidates[0], kernel_id="0" * 64)
    with pytest.raises(Drift, match="not what was frozen"):
        read_collected(path, replace(manifest, candidates=(changed, *manifest.candidates[1:])))
    assert {t.kernel_id for t in found.timings} == {c.kernel_id for c in manifest.candidates}


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.auditing.test_grid_protocol import collected
collected(Path({folder!r}), ["good", "fine"])
print(sorted(m for m in ("torch", "triton") if m in sys.modules))
"""


def test_the_fake_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    text = SCRIPT.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["bench/collecting/worker.py", "bench/harness/rounds.py", "candidates.json.gz"])
def test_one_changed_bit_is_refused(tmp_path: Path, name: str) -> None:
    frozen(tmp_path, ["good"])
    path = tmp_path / "bundle" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "bundle" / "run.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{name} is not what was frozen" in done.stderr


def test_the_bundle_loads_as_it_was_written(tmp_path: Path) -> None:
    """From its own folder, where no theodolite is: help is all that a machine without a GPU can ask for."""
    frozen(tmp_path, ["good"])
    run = [sys.executable, "-I", str(tmp_path / "bundle" / "run.py"), "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, "--limit-s" in done.stdout) == (0, True)
    digests = json.loads((tmp_path / "bundle" / "frozen.json").read_text())["files"]
    for name, digest in digests.items():
        assert hashlib.sha256((tmp_path / "bundle" / name).read_bytes()).hexdigest() == digest
