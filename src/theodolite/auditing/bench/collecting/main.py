"""The phases of a grid: inputs, then compiling and first runs side by side, then rounds; one result file.

The parent touches no GPU.  It compiles in a pool, tells the workers what is ready, and restarts a worker that died or
fell silent, without the candidate that it was at.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..harness import environment
from ..harness.jobs import run_many
from ..harness.journal import Journal
from ..harness.phases import Refused, count_gpus
from ..harness.record import write_result
from .compiles import Compiles, pause
from .device import GridDevice
from .grid import Grid, read_grid
from .record import result
from .supervisor import Deadlines, Supervisor

READING_EVERY_S = 15.0
SAY_EVERY_S = 10.0
KEEP_BACK_S = 8.0  # for the result file
SHARES = {"compile": 0.60, "first": 0.67, "rounds": 0.97}
CORES_A_GPU = 16  # a container may show all of its host's cores and own few of them
SPARE_CORES = 2  # for this process and a worker
POLL_S = 0.05


class Stop(BaseException):
    """SIGTERM or SIGINT: write what there is and go."""


def main(folder: Path, arguments: list[str]) -> int:
    """The command line; 0 where anything was measured, 1 where nothing was, 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="run.py", description="Measure the candidates of this grid.")
    parser.add_argument("--out", type=Path, default=Path("collected.json.gz"))
    parser.add_argument("--limit-s", type=float, default=300.0, help="end by itself within so many seconds")
    parser.add_argument("--workers", type=int, default=None, help="compilers at a time (default: the cores but two)")
    given = parser.parse_args(arguments)
    work = Path(tempfile.mkdtemp(prefix="grid-"))
    os.environ["TRITON_CACHE_DIR"] = str(work / "cache")  # before triton is imported, so that nothing is reused
    try:
        try:
            grid = read_grid(folder, work)
        except (OSError, EOFError, KeyError, ValueError, TypeError) as error:
            print(f"refused: the bundle cannot be read ({error!r}): write it again", file=sys.stderr)
            return 2
        from .torch_grid import TorchGrid

        return Run(grid, TorchGrid(grid), given.out, given.limit_s, given.workers, work).whole()
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Run:
    """One run of a grid on the GPUs of one machine."""

    def __init__(
        self, grid: Grid, device: GridDevice, out: Path, limit_s: float, workers: int | None, work: Path
    ) -> None:
        self.grid, self.device, self.out, self.work, self.asked = grid, device, out, work, workers
        self.protocol = grid.bundle.config.protocol
        self.started, self.limit_s = time.monotonic(), limit_s
        self.faults: dict[str, tuple[str, str]] = {}
        self.binaries: dict[int, list[Any]] = {}
        self.inputs: dict[str, Path] = {}
        self.supervisors: list[Supervisor] = []
        self.readings: list[dict[str, Any]] = []
        self.environment: dict[str, Any] = {"started_unix_s": time.time(), "protocol": dict(self.protocol)}
        self.said = self.started

    def whole(self) -> int:
        """All phases and the result file."""
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        compiles: Compiles | None = None
        try:
            self.environment["before"] = environment.reading()
            gpus = self.environment["gpus"] = count_gpus(self.device)
            cores = min(len(os.sched_getaffinity(0)), CORES_A_GPU * gpus)
            self.workers = self.asked or max(1, cores - SPARE_CORES)
            self.draw_inputs()
            limit_s = self.protocol["compile_limit_s"]
            compiles = Compiles(self.device, self.units(), self.workers, limit_s, self.by("compile"))
            self.start_workers(gpus)
            self.loop(compiles)
        except Stop:
            self.environment["stopped"] = "by a signal"
            self.say("stopped by a signal; writing what there is")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if compiles is not None:
            compiles.close()
        for supervisor in self.supervisors:
            supervisor.close()
        self.environment["limit_s"], self.environment["compiler"] = self.limit_s, self.device.compiler()
        self.environment["during"] = environment.summary(self.readings)
        self.environment["after"] = environment.reading()
        looks = [self.environment.get("before", {}), *self.readings, self.environment["after"]]
        self.environment["exclusive"] = environment.exclusive(looks)
        self.environment["duration_s"] = time.monotonic() - self.started
        record = result(self.grid, self.faults, [s.told for s in self.supervisors], self.environment)
        write_result(self.out, record)
        good = sum(t["status"] == "ok" for t in record["timings"])
        self.say(f"{good} of {len(record['timings'])} candidates measured; {self.out}")
        return 0 if good else 1

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def by(self, phase: str) -> float:
        """time.monotonic() at the phase's end."""
        return self.started + SHARES[phase] * (self.limit_s - min(KEEP_BACK_S, 0.1 * self.limit_s))

    def units(self) -> list[Any]:
        """Unique kernels in the order of the candidates that need them."""
        numbers = dict.fromkeys(n for m in self.grid.members.values() for n in m.unit_of.values())
        return [self.grid.units[n] for n in numbers]

    def draw_inputs(self) -> None:
        """Each workload's inputs once, into files that every worker reads."""
        names = list(self.grid.bundle.cases)
        for name in names:
            self.inputs[name] = self.work / f"inputs-{len(self.inputs)}"
            self.inputs[name].mkdir()
        seed = self.grid.bundle.config.seed
        jobs = [functools.partial(self.device.write_inputs, n, seed, self.inputs[n]) for n in names]
        generators = set()
        for position, ended in run_many(jobs, self.workers, 60.0, self.by("compile")):
            if ended.kind == "returned":
                generators.add(ended.value)
                continue
            for member in self.grid.members.values():
                if member.candidate.case == names[position]:
                    self.faults[member.candidate.id] = ("no-inputs", ended.detail)
        self.environment["inputs"] = ", ".join(sorted(generators))

    def start_workers(self, gpus: int) -> None:
        """The candidates of one workload stay on one GPU: times of two GPUs are no pair."""
        cases = list(self.grid.bundle.cases)
        count = min(gpus, len(cases))
        deadlines = Deadlines(self.by("first"), self.by("rounds"))
        for gpu in range(count):
            mine = [n for n, m in self.grid.members.items() if cases.index(m.candidate.case) % count == gpu]
            self.supervisors.append(
                Supervisor(self.device, self.grid, gpu, gpus, mine, self.inputs, self.work, deadlines, self.say)
            )
        journals = [(s, Journal(s.ready)) for s in self.supervisors]
        self.ready = {n: journal for s, journal in journals for n in s.names}

    def loop(self, compiles: Compiles) -> None:
        """Compile and supervise until all is done; past the limit the workers are killed."""
        missing = {n: set(m.unit_of.values()) for n, m in self.grid.members.items()}
        users: dict[int, list[str]] = {}
        for name, numbers in missing.items():
            for number in numbers:
                users.setdefault(number, []).append(name)
        self.say(f"{len(self.grid.members)} candidates, {len(users)} kernels to compile, {self.workers} at a time")
        closed = False
        while not all(s.finished for s in self.supervisors):
            for number, ended in compiles.step():
                self.compiled(number, ended, users[number], missing)
            if compiles.done and not closed:
                closed = True
                self.environment["compiled_after_s"] = time.monotonic() - self.started
                self.say(f"{len(self.binaries)} of {len(users)} kernels compiled")
                for supervisor in self.supervisors:
                    Journal(supervisor.ready).add({"closed": True})
            for supervisor in self.supervisors:
                supervisor.step()
            self.look(len(users))
            pause([*compiles.filenos, *(s.fileno for s in self.supervisors if s.fileno >= 0)], POLL_S)

    def compiled(self, number: int, ended: Any, users: list[str], missing: Mapping[str, set[int]]) -> None:
        """Note how a kernel's compile ended, and hand on the candidates that are complete with it."""
        unit = self.grid.units[number]
        fault: tuple[str, str] | None = None
        if ended.kind != "returned":
            status = "compile-timeout" if ended.kind == "timeout" else "compile-failed"
            fault = (status, f"{unit.kernel.name}: {ended.detail}")
        elif ended.value.ttir != unit.ttir:
            fault = ("drift", f"{unit.kernel.name}: other TTIR than frozen")
        else:
            self.binaries[number] = [ended.value.ttir, ended.value.cubin, ended.value.shared_bytes]
        for name in users:
            if fault is not None:
                self.faults.setdefault(name, fault)
                continue
            missing[name].discard(number)
            if not missing[name] and name not in self.faults:
                needs = {k: self.binaries[n] for k, n in self.grid.members[name].unit_of.items()}
                self.ready[name].add({"candidate": name, "binaries": needs})

    def look(self, kernels: int) -> None:
        """Now and then: what the machine is doing, and a line for whoever watches."""
        now = time.monotonic()
        if not self.readings or now - self.readings[-1]["at_s"] - self.started >= READING_EVERY_S:
            own = sum(s.child is not None for s in self.supervisors[:1])
            self.readings.append({"at_s": now - self.started, **environment.reading(own=own)})
        if now - self.said >= SAY_EVERY_S:
            self.said = now
            ran = sum(len(s.told.known) for s in self.supervisors)
            rounds = [s.told.next_round for s in self.supervisors]
            self.say(f"{len(self.binaries)} of {kernels} kernels, {ran} first runs, rounds {rounds}")


def _stop(number: int, frame: object) -> None:
    raise Stop
