"""A device that is made up, and whole runs on it: nothing here needs torch, triton or a GPU."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.auditing import made_up
from theodolite.auditing.bench.bundle import Protocol, check_frozen, read_results, write_bundle
from theodolite.auditing.bench.harness.device import Batch, Binary
from theodolite.auditing.bench.harness.known import Options
from theodolite.auditing.bench.harness.main import run
from theodolite.auditing.bench.harness.spec import Candidate, Kernel, read_bundle
from theodolite.auditing.manifest import Manifest, Samples, Timing
from theodolite.lowering.plan import Buffer, Program

TICK_S = 32e-9
OUT = "results.json.gz"
TTIR = hashlib.sha256(b"ttir").hexdigest()
PROTOCOL = Protocol(
    rounds=30, least_rounds=5, compile_limit_s=1.0, isolated_limit_s=1.2, hang_limit_s=2.0, stop_grace_s=0.3
)
GOOD = {"non_finite": 0, "elementwise": 0.1, "relative_norm": 3e-4, "relative_norm_head": 3e-4, "inputs_changed": 0}


class FakeDevice:
    """A candidate's name says what it does; times are multiples of a 32 ns tick of no clock at all."""

    def __init__(self, folder: Path, gpus: int = 1, pace_s: float = 0.0) -> None:
        self.folder, self.replays, self.number = folder, dict[str, int](), 0
        self.count, self.pace_s, self.gpu = gpus, pace_s, 0
        self.renewed: dict[str, int] = {}

    def gpus(self) -> int:
        return self.count

    def choose(self, gpu: int, of: int) -> None:
        assert 0 <= gpu < of == self.count
        self.gpu = gpu

    def prepare_compiles(self) -> None:
        pass

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
        return {"target": ("cuda", 90, 32), "name": "fake", "uuid": f"gpu-{self.gpu}"}

    def reserve(self, candidates: Sequence[Candidate]) -> None:
        self.reserved = {c.id for c in candidates}
        if len(candidates) > 1 and "huge" in self.reserved:
            raise MemoryError("OutOfMemoryError: CUDA out of memory")

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
        if slot in ("no-graph", "b.no-graph"):
            os._exit(7)
        self.replays[slot] = 0

    def prepare_rounds(self) -> dict[str, Any]:
        return {"tick_samples_s": [n * TICK_S for n in (40, 41, 57, 203)], "event_pair_s": 40 * TICK_S}

    def renew(self, slots: Sequence[str]) -> None:
        self.renewed |= {s: self.renewed.get(s, 0) + 1 for s in slots}

    def batch(self, slots: Sequence[str], mark: Callable[[str], object] | None, warm: bool = False) -> Batch:
        self.number += 1
        time.sleep(self.pace_s)
        with (self.folder / "batches.jsonl").open("a") as file:
            file.write(json.dumps([mark is not None, list(slots)]) + "\n")
        samples = {}
        for slot in slots:
            if mark is not None:
                mark(slot)
            self.replays[slot] += 1
            if slot == "hangs-later" and mark is not None:
                time.sleep(60)
            # an error of the GPU shows at the end of a batch, when nobody knows whose it was
            if slot == "dies-later" and mark is not None:
                raise RuntimeError("CUDA error: unspecified launch failure")
            steps = 1 if slot == "impossible" else 300 + len(slot) + self.replays[slot] % 3
            samples[slot] = steps * TICK_S
        if "dies-later" in slots and self.number == 4:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if "hangs-later" in slots and self.number == 4:
            time.sleep(60)
        if "kills" in slots and self.number == 3:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        return Batch(samples, (slots[0],) if self.number == 2 else ())

    def replay(self, candidate: Candidate) -> None:
        self.replays[candidate.id] += 1

    def energy(self, slot: str, seconds: float) -> dict[str, float]:
        return {"joules": 1e-3 * len(slot), "gross_w": 500.0, "idle_w": 120.0, "replays": 100, "seconds": seconds}


def with_workspace(program: Program) -> Program:
    return replace(program, buffers=(*program.buffers, Buffer("W", "fp32", (1 << 20,), "workspace")))


def frozen(folder: Path, names: Sequence[str], protocol: Protocol = PROTOCOL) -> Manifest:
    """A bundle of made-up candidates, written to folder/bundle; a name that begins with "b." belongs to case B."""
    candidates = [made_up.candidate(n, {}, case="sdpa:B" if n.startswith("b.") else "sdpa:A") for n in names]
    candidates = [replace(c, program=with_workspace(c.program)) if c.id == "huge" else c for c in candidates]
    manifest = made_up.manifest(candidates)
    gated = tuple(replace(c, gates=made_up.FAILED) if c.id == "ungated" else c for c in manifest.candidates)
    manifest = replace(manifest, candidates=gated)
    write_bundle(manifest, folder / "bundle", ttir={n: {"copy": TTIR} for n in names}, protocol=protocol)
    return manifest


def measured(
    folder: Path, names: Sequence[str], limit_s: float = 60.0, options: Options = Options(), gpus: int = 1
) -> Samples:
    """A bundle of made-up candidates, run on the fake."""
    manifest = frozen(folder, names)
    run_here(folder, FakeDevice(folder, gpus), limit_s, options)
    check_frozen(manifest, folder)
    return read_results(folder / OUT, manifest)


def run_here(folder: Path, device: FakeDevice, limit_s: float = 60.0, options: Options | None = None) -> int:
    """Run folder's bundle, or resume the run where there are no options; the exit code."""
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        return run(read_bundle(folder / "bundle"), lambda work: device, folder / OUT, limit_s, options)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def by_name(samples: Samples) -> dict[str, Timing]:
    return {t.candidate: t for t in samples.timings}
