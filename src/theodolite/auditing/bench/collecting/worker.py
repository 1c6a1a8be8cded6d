"""One GPU's candidates in one long-lived process: first runs as kernels become ready, then rounds over all survivors.

A first run is numerics against fp32 and two cold times.  Rounds come last, so that all candidates share the same
minutes: each round replays every survivor once, in an order of its own, and is kept whole or not at all.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..harness.device import Binary
from ..harness.isolated import failure, judge_numerics
from ..harness.jobs import MESSAGE_CHARS, Ended
from ..harness.journal import Journal, Tail
from ..harness.rounds import AGAIN, DRY_RETRIES, base, order, plan_counts
from ..harness.spec import Candidate, SpecError, check_candidate
from .device import GridDevice
from .grid import Grid

QUICK_RUNS = 2
PART = 128  # slots between two looks at the clock; each part begins behind a queue that is held
POLL_S = 0.02
BEAT_S = 1.0
CAPTURE_RUNS = 4
CAPTURE_S = 4e-3  # besides those runs
FREEZE_EVERY = 64  # captures: each one may collect garbage, which shall not walk over everything that is here to stay


@dataclass(frozen=True)
class Plan:
    """gpu, gpus: which one of how many.  ready: the parent's rows.  journal: the worker's own rows.

    known: what earlier workers found out: {"status", "quick_s"} by candidate.  counts: rounds by slot, where a worker
    before had begun them, and `first` the next round.  Deadlines are of time.monotonic().
    """

    gpu: int
    gpus: int
    names: Sequence[str]
    ready: Path
    journal: Path
    inputs: Mapping[str, Path]
    known: Mapping[str, Mapping[str, Any]]
    counts: Mapping[str, int]
    first: int
    careful: bool
    first_runs_by: float
    rounds_by: float


def work(device: GridDevice, grid: Grid, plan: Plan) -> None:
    """The child's body.  All that it finds out goes to the journal."""
    _Work(device, grid, plan).whole()


class _Work:
    def __init__(self, device: GridDevice, grid: Grid, plan: Plan) -> None:
        self.device, self.grid, self.plan = device, grid, plan
        self.protocol = grid.bundle.config.protocol
        self.journal = Journal(plan.journal)
        self.binaries: dict[str, dict[str, Binary]] = {}
        self.bound: set[str] = set()
        self.quick_s = {n: min(k["quick_s"]) for n, k in plan.known.items() if k["status"] == "ok"}
        self.captured: set[str] = set()

    def whole(self) -> None:
        device, config = self.device, self.grid.bundle.config
        device.choose(self.plan.gpu, self.plan.gpus)
        opened = device.open()
        if tuple(opened["target"]) != config.target:
            raise SpecError(f"this GPU is {opened['target']}; the bundle was made for {config.target}")
        device.reserve([self.grid.candidate(n) for n in self.plan.names])
        self.journal.add({"at": "", "device": opened})
        self.first_runs()
        counts = dict(self.plan.counts) or self.counts()
        self.journal.add({"counts": counts})
        self.capture(counts)
        self.journal.add({"at": "", "prepared": device.prepare_rounds()})
        self.rounds(counts)
        self.journal.add({"at": "", "finished": True})

    # ---- first runs ----
    def first_runs(self) -> None:
        """Each candidate once its kernels are compiled, until there will be no more or time is up."""
        tail, wanted = Tail(self.plan.ready), set(self.plan.names) - set(self.plan.known)
        closed, told = False, time.monotonic()
        while True:
            rows = tail.rows()
            for row in rows:
                closed = closed or "closed" in row
                if "candidate" in row:
                    self.binaries[row["candidate"]] = {k: Binary(*v) for k, v in row["binaries"].items()}
            for name in (row["candidate"] for row in rows if row.get("candidate") in wanted):
                if time.monotonic() < self.plan.first_runs_by:
                    self.first_run(name)
            if closed or time.monotonic() > self.plan.first_runs_by:
                return
            if rows or time.monotonic() - told > BEAT_S:
                told = time.monotonic()
                self.journal.add({"at": ""})  # alive, and with nothing on the GPU
            time.sleep(POLL_S)

    def first_run(self, name: str) -> None:
        candidate = self.grid.candidate(name)
        self.journal.add({"at": name})
        row: dict[str, Any] = {"candidate": name, "status": "ok"}
        try:
            check_candidate(candidate)
            row["resources"] = self.bind(candidate)
            self.device.run_once(candidate, "random")
            row["figures"] = _finite(self.device.compare(candidate, "random"))
            if reason := judge_numerics(_numbers(row["figures"]), self.protocol):
                row |= {"status": "numerics", "detail": reason}
            else:
                row["quick_s"] = [self.device.cold_run(candidate) for _ in range(QUICK_RUNS)]
                self.quick_s[name] = min(row["quick_s"])
        except Exception as error:  # a kernel may fail in any way; whether the GPU survived it is asked for below
            row |= dict(zip(("status", "detail"), failure(_raised(error)), strict=True))
            self.journal.add(row)
            if not self.device.usable():
                raise
        else:
            self.journal.add(row)

    def bind(self, candidate: Candidate) -> dict[str, Any]:
        binaries = self.binaries[candidate.id]
        figures = self.device.bind(candidate, candidate.case, self.plan.inputs[candidate.case], binaries)
        self.bound.add(candidate.id)
        return figures

    # ---- rounds ----
    def counts(self) -> dict[str, int]:
        """Rounds by slot; the hopeless are left out, and each case's first candidate gets a second slot."""
        best: dict[str, float] = {}
        for name, seconds in self.quick_s.items():
            case = self.grid.candidate(name).case
            best[case] = min(seconds, best.get(case, math.inf))
        slots: dict[str, float] = {}
        doubled: set[str] = set()
        for name, seconds in self.quick_s.items():
            case = self.grid.candidate(name).case
            if seconds > self.protocol["hopeless"] * best[case]:
                detail = f"{seconds / best[case]:.0f} times the best of its workload: dropped after {QUICK_RUNS} times"
                self.journal.add({"candidate": name, "status": "slow", "detail": detail})
                continue
            slots[name] = seconds
            if case not in doubled:
                doubled.add(case)
                slots[name + AGAIN] = seconds
        captures_s = sum(CAPTURE_RUNS * seconds + CAPTURE_S for seconds in slots.values())
        left_s = self.plan.rounds_by - time.monotonic() - captures_s
        return plan_counts(slots, self.protocol, 0.85 * left_s)

    def capture(self, counts: Mapping[str, int]) -> None:
        for number, slot in enumerate(counts):
            candidate = self.grid.candidate(base(slot))
            self.journal.add({"at": candidate.id})
            if number % FREEZE_EVERY == 0:
                gc.freeze()
            try:
                if candidate.id not in self.bound:
                    self.bind(candidate)
                self.device.capture(slot, candidate)
                self.captured.add(slot)
            except Exception as error:
                status, detail = failure(_raised(error))
                self.journal.add({"candidate": candidate.id, "status": status, "detail": f"at its capture: {detail}"})
                if not self.device.usable():
                    raise

    def rounds(self, counts: Mapping[str, int]) -> None:
        """Whole rounds until they are done or another one would end too late."""
        gc.collect()
        gc.disable()
        slots, last_s = [s for s in counts if s in self.captured], 0.0
        for number in range(self.plan.first, max(counts.values(), default=0)):
            began = time.monotonic()
            if began + 1.2 * last_s > self.plan.rounds_by:
                return
            careful = self.plan.careful and number == self.plan.first
            row = self.round(
                order(self.grid.bundle.config.seed, number, [s for s in slots if number < counts[s]]), careful
            )
            if row is None:
                return
            self.journal.add({"at": "", "round": number, "ns": row})
            last_s = time.monotonic() - began

    def round(self, slots: Sequence[str], careful: bool) -> dict[str, int] | None:
        """Nanoseconds by slot; a sample whose queue ran dry is taken again, and left out where it does so again."""
        row: dict[str, int] = {}
        mark = (lambda slot: self.journal.add({"at": base(slot)})) if careful else None
        for first in range(0, len(slots), PART):
            wanted = list(slots[first : first + PART])
            for _ in range(1 + DRY_RETRIES):
                if not wanted:
                    break
                batch = self.device.batch(wanted, mark)
                row |= {s: round(t * 1e9) for s, t in batch.samples_s.items() if s not in batch.dry}
                wanted = list(batch.dry)
            self.journal.add({"at": "", "dry": len(wanted)})
            if time.monotonic() > self.plan.rounds_by:
                return None
        return row


def _raised(error: BaseException) -> Ended:
    text = " ".join(str(error).split())
    return Ended("raised", detail=f"{type(error).__name__}: {text[:MESSAGE_CHARS]}")


def _finite(figures: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no word for what is not finite."""
    return {k: v if math.isfinite(v) else str(v) for k, v in figures.items()}


def _numbers(figures: Mapping[str, float | str]) -> dict[str, float]:
    return {k: float(v) for k, v in figures.items()}
