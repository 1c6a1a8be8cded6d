"""The phases before the rounds: every kernel compiled, inputs drawn, each candidate alone.

Each goes on where the journal says that an earlier process stopped.  What the time limit or a full disk cut short is
nobody's fault, and is not written down: it is tried again.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import environment
from .device import Device
from .isolated import TTIR_GATE, check_ttir, failure, isolated
from .jobs import Child, Ended, run_many, run_seated, wait
from .known import Known, Options, kernel_row
from .spec import Bundle

COMPILERS = 16
DRAWERS = 4
COUNT_LIMIT_S = 120.0
OTHERS_LIMIT_S = 10.0  # for an earlier process of a killed run to be gone
SHARES = {"compile": 0.5, "inputs": 0.6, "isolated": 0.7, "rounds": 0.95, "end": 1.0}
LEAST_FREE_BYTES = 1 << 20
NO_SPACE = ("No space left on device", "Errno 28", "Disk quota exceeded", "Errno 122")


class DiskFull(Exception):
    """No room for a result: no candidate is to blame, and what was found out before stays in the journal."""


class Refused(Exception):
    """This run cannot be made here, and why."""


@dataclass(frozen=True)
class Bench:
    """What the phases share.  `tell` writes a row to the journal and lets `known` hear it.

    `started` is of time.monotonic().  `gpus`: how many there are to share the work.
    """

    device: Device
    bundle: Bundle
    options: Options
    work: Path
    known: Known
    tell: Callable[[Mapping[str, Any]], None]
    started: float
    limit_s: float
    gpus: int = 1

    @property
    def protocol(self) -> Mapping[str, float]:
        return self.bundle.config.protocol

    @property
    def stop(self) -> Path:
        """Where this file is, no further round is made."""
        return self.work / "stop"

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def by(self, phase: str) -> float:
        """time.monotonic() at the phase's end; some seconds of the limit are kept back for the result file."""
        return self.started + SHARES[phase] * (self.limit_s - min(5.0, 0.1 * self.limit_s))

    def inputs(self, case: str) -> Path:
        return self.work / f"inputs-{list(self.bundle.cases).index(case)}"

    def fail(self, name: str, status: str, detail: str) -> None:
        """Write a candidate off; DiskFull where it was the disk."""
        self.check_disk(detail)
        self.tell({"failed": name, "status": status, "detail": detail})
        self.say(f"{name}: {status}: {detail}")

    def passed(self, name: str, row: Mapping[str, Any]) -> None:
        """Write down what gates found; one that did not pass writes the candidate off."""
        self.tell(row)
        outcome = self.known.outcomes[name]
        if outcome.status != "ok":
            self.say(f"{name}: {outcome.status}: {outcome.detail}")

    def check_disk(self, detail: str) -> None:
        """DiskFull where a failure's text says so, or the disk itself."""
        if any(t in detail for t in NO_SPACE) or shutil.disk_usage(self.work).free < LEAST_FREE_BYTES:
            raise DiskFull(detail)


def count_gpus(device: Device) -> int:
    """How many GPUs there are for this run alone; Refused where there is none, or others use one of them."""
    ended = wait(Child(device.gpus, COUNT_LIMIT_S))
    if ended.kind != "returned" or not ended.value:
        raise Refused(f"torch sees no GPU here ({ended.detail or 'none at all'})")
    for gpu in range(ended.value):
        if others := environment.wait_for_others(gpu, OTHERS_LIMIT_S):
            raise Refused(f"{others} other processes use GPU {gpu}: measure when it is free, or hide it from this run")
    return int(ended.value)


def compile_all(bench: Bench) -> None:
    """Every kernel, in processes that die alone; then the TTIR against the frozen one."""
    known, device = bench.known, bench.device
    wanted = [bench.bundle.candidate(n) for n in known.alive()]
    jobs = [(c, k) for c in wanted for k in c.kernels if k.name not in known.binaries.get(c.id, {})]
    bench.say(f"compile {len(jobs)} kernels of {len(wanted)} candidates")
    device.prepare_compiles()
    functions = [functools.partial(device.compile, c, k) for c, k in jobs]
    workers, deadline = min(COMPILERS, os.cpu_count() or 1), bench.by("compile")
    for position, ended in run_many(functions, workers, bench.protocol["compile_limit_s"], deadline):
        candidate, kernel = jobs[position]
        if ended.kind == "returned":
            bench.tell(kernel_row(candidate.id, kernel.name, ended.value))
        elif out_of_time(ended, deadline):
            continue
        elif known.outcomes[candidate.id].status == "ok":
            status = "compile-timeout" if ended.kind == "timeout" else "compile-failed"
            bench.fail(candidate.id, status, f"{kernel.name}: {ended.detail}")
    compiler = device.compiler()
    for name in compiled(bench):
        if any(g["gate"] == TTIR_GATE for g in known.outcomes[name].gates):
            continue
        same = check_ttir(bench.bundle.candidate(name), known.binaries[name], bench.bundle.config, compiler)
        bench.passed(name, {"gates": name, "found": [same]})


def compiled(bench: Bench) -> list[str]:
    """The candidates that are alive and have all their kernels."""
    known = bench.known
    return [n for n in known.alive() if len(known.binaries.get(n, {})) == len(bench.bundle.candidate(n).kernels)]


def out_of_time(ended: Ended, deadline: float) -> bool:
    """Whether it was the run's limit that stopped a child, and not its own."""
    return ended.kind == "timeout" and time.monotonic() >= deadline - 0.1


def draw_inputs(bench: Bench) -> None:
    """Each case's inputs once, into files that every later process reads."""
    known, seed = bench.known, bench.bundle.config.seed
    needed = dict.fromkeys(bench.bundle.candidate(n).case for n in known.alive())
    cases = [c for c in needed if c not in known.inputs or not bench.inputs(c).exists()]
    for case in cases:
        bench.inputs(case).mkdir(exist_ok=True)
    functions = [
        functools.partial(bench.device.write_inputs, bench.bundle.cases[c], seed, bench.inputs(c)) for c in cases
    ]
    deadline = bench.by("inputs")
    for position, ended in run_many(functions, DRAWERS, bench.protocol["isolated_limit_s"], deadline):
        case = cases[position]
        if ended.kind == "returned":
            bench.tell({"inputs": case, "generator": ended.value})
        elif not out_of_time(ended, deadline):
            for name in (n for n in known.alive() if bench.bundle.candidate(n).case == case):
                bench.fail(name, "no-inputs", ended.detail)


def isolate_all(bench: Bench) -> None:
    """Each candidate in its own process, one at a time on each GPU."""
    known = bench.known
    names = [n for n in compiled(bench) if n not in known.isolated and bench.bundle.candidate(n).case in known.inputs]
    bench.say(f"isolated runs of {len(names)} candidates")
    functions = [functools.partial(_isolated, bench, n) for n in names]
    deadline = bench.by("isolated")
    for position, ended in run_seated(functions, bench.gpus, bench.protocol["isolated_limit_s"], deadline):
        name = names[position]
        if out_of_time(ended, deadline):
            continue
        if ended.kind != "returned":
            bench.fail(name, *failure(ended))
            continue
        bench.passed(name, {"gates": name, "found": ended.value["gates"], "estimate_s": ended.value["estimate_s"]})


def _isolated(bench: Bench, name: str, gpu: int) -> dict[str, Any]:
    candidate = bench.bundle.candidate(name)
    workload = bench.bundle.cases[candidate.case]
    bench.device.choose(gpu, bench.gpus)
    binaries = bench.known.binaries[name]
    return isolated(bench.device, candidate, workload, bench.inputs(candidate.case), binaries, bench.bundle.config)
