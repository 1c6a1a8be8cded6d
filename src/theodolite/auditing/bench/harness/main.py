"""The phases, in order: compile all, each candidate alone, survivors interleaved, one result file.

Whatever happens, the run ends within its limit and writes what it has: every candidate with a status.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import environment
from .device import Binary, Device
from .isolated import Outcome, check_ttir, failure, gate, isolated
from .jobs import Child, run_many, wait
from .record import result, write_result
from .rounds import AGAIN, Plan, interleave, plan_counts, read_samples, slots_of
from .spec import Bundle, Config, read_bundle

READING_EVERY_S = 5.0


class Stop(BaseException):
    """SIGTERM or SIGINT: write what there is and go."""


def main(folder: Path, arguments: list[str]) -> int:
    """The command line; 0 where every candidate asked for has samples, 1 where some have none, 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="run.py", description="Measure every candidate of this bundle.")
    parser.add_argument("--out", type=Path, default=Path("results.json.gz"))
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each candidate (default: as frozen)")
    parser.add_argument("--limit-s", type=float, default=3000.0, help="end by itself within so many seconds")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="measure this candidate alone")
    given = parser.parse_args(arguments)
    try:
        bundle = read_bundle(folder)
    except (OSError, KeyError, ValueError, TypeError) as error:
        print(f"refused: the bundle cannot be read ({error!r}): write it again", file=sys.stderr)
        return 2
    unknown = set(given.only) - {c.id for c in bundle.candidates}
    if unknown:
        print(f"refused: no candidate {', '.join(sorted(unknown))}: manifest.json names them", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="bench-"))
    os.environ["TRITON_CACHE_DIR"] = str(work / "cache")  # before triton is imported, so that nothing is reused
    try:
        from .torch_device import TorchDevice

        return Run(bundle, TorchDevice(bundle), given.out, given.limit_s, given.only, given.rounds, work).whole()
    finally:
        shutil.rmtree(work, ignore_errors=True)


class Run:
    """One run of a bundle on one device."""

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        out: Path,
        limit_s: float,
        only: list[str],
        rounds: int | None,
        work: Path,
    ) -> None:
        if rounds is not None:
            protocol = {**bundle.config.protocol, "rounds": rounds}
            least = min(rounds, int(protocol["least_rounds"]))
            config = Config(**{**vars(bundle.config), "protocol": {**protocol, "least_rounds": least}})
            bundle = Bundle(**{**vars(bundle), "config": config})
        self.bundle, self.device, self.out, self.work = bundle, device, out, work
        self.protocol = bundle.config.protocol
        self.started, self.limit_s = time.monotonic(), limit_s
        self.outcomes = {c.id: Outcome() for c in bundle.candidates}
        self.binaries: dict[str, dict[str, Binary]] = {}
        self.inputs: dict[str, Path] = {}
        self.samples = work / "samples.jsonl"
        self.readings: list[dict[str, Any]] = []
        self.environment: dict[str, Any] = {"started_unix_s": time.time(), "protocol": dict(self.protocol)}
        for candidate in bundle.candidates:
            if not candidate.passed:
                self.outcomes[candidate.id].fail("gate-failed", "a gate before the freeze did not pass: not run")
            elif only and candidate.id not in only:
                self.outcomes[candidate.id].fail("not-asked-for", "left out by --only")

    def whole(self) -> int:
        """All phases and the result file; 0 where all that was asked for is "ok"."""
        asked = self.alive()
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, _stop)
        try:
            self.environment["before"] = environment.reading()
            self.compile_all()
            self.draw_inputs()
            self.isolate_all()
            self.interleave_all()
        except Stop:
            self.environment["stopped"] = "by a signal"
            self.say("stopped by a signal; writing what there is")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        record = self.record()
        write_result(self.out, record)
        status = {t["candidate"]: t["status"] for t in record["timings"]}
        good = [name for name in asked if status[name] == "ok"]
        self.say(f"{len(good)} of {len(asked)} candidates measured in {time.monotonic() - self.started:.0f} s")
        return 0 if len(good) == len(asked) else 1

    def alive(self) -> list[str]:
        return [c.id for c in self.bundle.candidates if self.outcomes[c.id].status == "ok"]

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def by(self, share: float) -> float:
        """time.monotonic() at that share of the limit, some seconds for the result file kept back."""
        return self.started + share * (self.limit_s - min(5.0, 0.1 * self.limit_s))

    def fail(self, name: str, status: str, detail: str) -> None:
        self.outcomes[name].fail(status, detail)
        self.say(f"{name}: {status}: {detail}")

    def compile_all(self) -> None:
        """Every kernel, in processes that die alone; then the TTIR against the frozen one."""
        compiler = self.device.compiler()
        jobs = [(self.bundle.candidate(n), k) for n in self.alive() for k in self.bundle.candidate(n).kernels]
        self.say(f"compile {len(jobs)} kernels of {len(self.alive())} candidates")
        functions = [functools.partial(self.device.compile, c, k) for c, k in jobs]
        workers = min(16, os.cpu_count() or 1)
        for position, ended in run_many(functions, workers, self.protocol["compile_limit_s"], self.by(0.5)):
            candidate, kernel = jobs[position]
            if ended.kind == "returned":
                self.binaries.setdefault(candidate.id, {})[kernel.name] = ended.value
            elif self.outcomes[candidate.id].status == "ok":
                status = "compile-timeout" if ended.kind == "timeout" else "compile-failed"
                self.fail(candidate.id, status, f"{kernel.name}: {ended.detail}")
        for name in self.alive():
            same = check_ttir(self.bundle.candidate(name), self.binaries[name], self.bundle.config, compiler)
            self.outcomes[name].gates.append(same)
            if not same["passed"]:
                self.fail(name, "drift", same["reason"])

    def draw_inputs(self) -> None:
        """Each case's inputs once, into files that every later process reads."""
        cases = list(dict.fromkeys(self.bundle.candidate(n).case for n in self.alive()))
        for case in cases:
            self.inputs[case] = self.work / f"inputs-{len(self.inputs)}"
            self.inputs[case].mkdir()
        functions = [
            functools.partial(self.device.write_inputs, self.bundle.cases[c], self.bundle.config.seed, self.inputs[c])
            for c in cases
        ]
        generators = set()
        for position, ended in run_many(functions, 4, self.protocol["isolated_limit_s"], self.by(0.6)):
            if ended.kind == "returned":
                generators.add(ended.value)
                continue
            for name in self.alive():
                if self.bundle.candidate(name).case == cases[position]:
                    self.fail(name, "no-inputs", ended.detail)
        self.environment["inputs"] = ", ".join(sorted(generators))

    def isolate_all(self) -> None:
        """One candidate after the other, each in its own process."""
        names = self.alive()
        self.say(f"isolated runs of {len(names)} candidates")
        for name in names:
            left_s = self.by(0.7) - time.monotonic()
            if left_s <= 0:
                self.fail(name, "not-reached", "the time limit came before its isolated run")
                continue
            body = functools.partial(self._isolated, name)
            ended = wait(Child(body, min(self.protocol["isolated_limit_s"], left_s)))
            outcome = self.outcomes[name]
            if ended.kind != "returned":
                self.fail(name, *failure(ended))
                continue
            outcome.gates += ended.value["gates"]
            outcome.estimate_s = ended.value["estimate_s"]
            for failed in (g for g in outcome.gates if not g["passed"]):
                self.fail(name, "numerics", f"{failed['gate']}: {failed['reason']}")

    def _isolated(self, name: str) -> dict[str, Any]:
        candidate = self.bundle.candidate(name)
        workload = self.bundle.cases[candidate.case]
        inputs = self.inputs[candidate.case]
        return isolated(self.device, candidate, workload, inputs, self.binaries[name], self.bundle.config)

    def interleave_all(self) -> None:
        """Rounds in one process after another, until they are done or time is up."""
        unexplained, counts = 0, dict[str, int]()
        survivors = self.alive()
        while survivors and unexplained <= int(self.protocol["unexplained_deaths"]):
            slots = slots_of(self.bundle, survivors) if not counts else [s for s in counts if _base(s) in survivors]
            if not counts:
                estimates = {s: self.outcomes[_base(s)].estimate_s or 0.0 for s in slots}
                counts = plan_counts(estimates, self.protocol, 0.8 * (self.by(1.0) - time.monotonic()))
                self.say(f"interleave {len(slots)} slots over {max(counts.values())} rounds")
            first = max(read_samples(self.samples), default=-1) + 1
            careful, mine = unexplained > 0, {s: counts[s] for s in slots}
            marker = self.work / "marker"
            plan = Plan(mine, first, careful, self.by(0.95), self.samples, marker, self.work / "device.json")
            ended = wait(Child(functools.partial(self._interleave, plan), self.by(1.0) - time.monotonic()), self._read)
            if ended.kind == "returned":
                self._finished(ended.value)
                break
            offender = _base(marker.read_text()) if marker.exists() else ""
            self.say(f"interleaved process: {ended.kind}: {ended.detail}; offender: {offender or 'unknown'}")
            if ended.kind == "timeout":
                self.environment["unfinished"] = ended.detail
                break
            if offender in survivors:
                self.fail(offender, "died", f"in the interleaved phase: {failure(ended)[0]}: {ended.detail}")
            else:
                unexplained += 1
                self.environment["unexplained_deaths"] = unexplained
            survivors = [s for s in survivors if self.outcomes[s].status == "ok"]
        self.environment["rounds"] = {s: n for s, n in counts.items() if n != int(self.protocol["rounds"])}
        self.environment["slots"] = list(counts)

    def _interleave(self, plan: Plan) -> dict[str, Any]:
        return interleave(self.device, self.bundle, plan, self.inputs, self.binaries)

    def _read(self) -> None:
        now = time.monotonic()
        if not self.readings or now - self.readings[-1]["at_s"] - self.started >= READING_EVERY_S:
            self.readings.append({"at_s": now - self.started, **environment.reading()})

    def _finished(self, value: Mapping[str, Any]) -> None:
        self.environment |= value["rounds"]
        for name, late in value["late"].items():
            reason = late["reason"]
            self.outcomes[name].gates.append(gate("numerics after", reason, late["figures"]))
            if reason is not None:
                self.fail(name, "numerics", f"after the rounds: {reason}")

    def record(self) -> dict[str, Any]:
        """The Samples record of what is known now."""
        again: dict[str, dict[int, float]] = {}
        for number, row in read_samples(self.samples).items():
            for slot, seconds in row.items():
                own = self.outcomes[_base(slot)].samples
                (again.setdefault(_base(slot), {}) if slot.endswith(AGAIN) else own)[number] = seconds
        after = environment.reading()
        device = json.loads(path.read_text()) if (path := self.work / "device.json").exists() else {}
        elapsed_s = device.pop("tick_samples_s", [])
        found = self.environment | {
            "device": device,
            "event_tick_s": environment.event_tick_s(elapsed_s),
            "during": environment.summary(self.readings),
            "after": after,
            "exclusive": self.environment.get("before", {}).get("processes") == 0 and after.get("processes") == 0,
            "duration_s": time.monotonic() - self.started,
            "limit_s": self.limit_s,
            "compiler": self.device.compiler(),
            "bundle": hashlib.sha256((self.bundle.folder / "frozen.json").read_bytes()).hexdigest(),
        }
        return result(self.bundle, self.outcomes, again, found)


def _base(slot: str) -> str:
    return slot.removesuffix(AGAIN)


def _stop(number: int, frame: object) -> None:
    raise Stop
