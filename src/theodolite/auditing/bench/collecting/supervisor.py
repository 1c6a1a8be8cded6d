"""One GPU's worker, from the outside: what it told, whether it lives, and who is to blame when it does not."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..harness.isolated import failure
from ..harness.jobs import Child, Ended
from ..harness.journal import Tail
from ..harness.rounds import base
from .device import GridDevice
from .grid import Grid
from .worker import Plan, work

OVERTIME_S = 5.0  # for the part of a round that the last deadline falls into


@dataclass(frozen=True)
class Deadlines:
    """Of time.monotonic(): no first run after the one, no round after the other."""

    first_runs_by: float
    rounds_by: float


@dataclass
class Told:
    """What a GPU's workers have said so far.

    known: {"status", "detail", "quick_s", "figures", "resources"} by candidate.  rounds: nanoseconds by round and slot.
    """

    at: str = ""
    opened: bool = False
    finished: bool = False
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    rounds: dict[int, dict[str, int]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def next_round(self) -> int:
        return max(self.rounds, default=-1) + 1

    def hear(self, row: Mapping[str, Any]) -> None:
        self.at = row.get("at", self.at)
        self.finished = self.finished or "finished" in row
        if "candidate" in row:
            self.known[row["candidate"]] = {**self.known.get(row["candidate"], {}), **row}
        if "counts" in row:
            self.counts = row["counts"]
        if "round" in row:
            self.rounds[row["round"]] = row["ns"]
        if "device" in row:
            self.opened = True
            self.environment["device"] = row["device"]
        if "prepared" in row:
            self.environment |= row["prepared"]
        self.environment["dry_samples"] = self.environment.get("dry_samples", 0) + row.get("dry", 0)

    def blame(self, name: str, status: str, detail: str) -> None:
        """The first thing that went wrong with a candidate is kept."""
        if self.known.get(name, {}).get("status", "ok") == "ok":
            self.known[name] = {**self.known.get(name, {}), "status": status, "detail": detail}


class Supervisor:
    """Starts the worker and starts another one when it dies; every death takes a candidate out, or is counted."""

    def __init__(
        self,
        device: GridDevice,
        grid: Grid,
        gpu: int,
        gpus: int,
        names: Sequence[str],
        inputs: Mapping[str, Path],
        work_folder: Path,
        deadlines: Deadlines,
        say: Callable[[str], None],
    ) -> None:
        self.device, self.grid, self.gpu, self.gpus, self.names = device, grid, gpu, gpus, names
        self.inputs, self.deadlines, self.say = inputs, deadlines, say
        self.protocol = grid.bundle.config.protocol
        self.ready = work_folder / f"ready-{gpu}.jsonl"
        self.journal = work_folder / f"journal-{gpu}.jsonl"
        self.tail, self.told = Tail(self.journal), Told()
        self.unexplained, self.finished = 0, False
        self.child: Child | None = None
        self.start()

    @property
    def fileno(self) -> int:
        return -1 if self.child is None else self.child.fileno

    def start(self) -> None:
        told = self.told
        told.at, told.opened, self.heard = "", False, time.monotonic()
        counts = {s: n for s, n in told.counts.items() if told.known[base(s)]["status"] == "ok"}
        plan = Plan(
            gpu=self.gpu,
            gpus=self.gpus,
            names=self.names,
            ready=self.ready,
            journal=self.journal,
            inputs=self.inputs,
            known=told.known,
            counts=counts,
            first=told.next_round,
            careful=self.unexplained > 0,
            first_runs_by=self.deadlines.first_runs_by,
            rounds_by=self.deadlines.rounds_by,
        )
        limit_s = max(0.0, self.deadlines.rounds_by - time.monotonic()) + OVERTIME_S
        self.child = Child(functools.partial(work, self.device, self.grid, plan), limit_s)

    def step(self) -> None:
        """Hear what there is to hear; a worker that is silent for too long is killed."""
        if self.child is None:
            return
        if self._hear():
            self.heard = time.monotonic()
        ended = self.child.poll()
        limit_s = self.protocol["hang_limit_s"] if self.told.opened else self.protocol["open_limit_s"]
        if ended is None and time.monotonic() - self.heard > limit_s:
            self.child.kill()
            ended = Ended("timeout", detail=f"killed: nothing happened for {limit_s:g} s")
        if ended is not None:
            self.child = None
            self._hear()
            self.ended(ended)

    def _hear(self) -> bool:
        rows = self.tail.rows()
        for row in rows:
            self.told.hear(row)
        return bool(rows)

    def ended(self, how: Ended) -> None:
        """Finished, or out of time, or another worker without the one that did it."""
        late = time.monotonic() > self.deadlines.rounds_by
        if self.told.finished or late:
            self.finished = True
            return
        status, detail = failure(how)
        self.say(f"worker {self.gpu}: {how.kind}: {how.detail}; at {self.told.at or 'no candidate in particular'}")
        if self.told.at:
            self.told.blame(self.told.at, "hang" if how.kind == "timeout" else status, detail)
        else:
            self.unexplained += 1
            self.told.environment["unexplained_deaths"] = self.unexplained
            if self.unexplained > int(self.protocol["unexplained_deaths"]):
                self.told.environment["given_up"] = f"{status}: {detail}"
                self.finished = True
                return
        self.start()

    def close(self) -> None:
        """Kill the worker and keep what it said."""
        if self.child is not None:
            self.child.kill()
            self.child = None
        self._hear()
