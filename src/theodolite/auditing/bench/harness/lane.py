"""One GPU's rounds, from the outside: one process after another until they are done, each without an offender."""

from __future__ import annotations

import functools
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import environment
from .isolated import Outcome, failure, gate
from .jobs import Child, Ended
from .journal import whole_rows
from .phases import Bench, Refused
from .rounds import AGAIN, Plan, base, interleave, plan_counts, slots_of

WAIT_S = 0.25
READING_EVERY_S = 5.0


@dataclass
class Said:
    """A lane's rows.  devices: what each process found.  rounds: seconds by round and slot."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    rounds: dict[int, dict[str, float]] = field(default_factory=dict)
    late: dict[str, dict[str, Any]] = field(default_factory=dict)
    joules: dict[str, dict[str, float]] = field(default_factory=dict)
    repeated: int = 0
    dry: int = 0

    @property
    def next_round(self) -> int:
        return max(self.rounds, default=-1) + 1

    @property
    def judged(self) -> frozenset[str]:
        """The candidates whose outputs were looked at since the last round."""
        return frozenset(n for n, late in self.late.items() if late["after"] >= self.next_round)

    def hear(self, row: Mapping[str, Any]) -> None:
        if "device" in row:
            self.devices.append(row["device"])
        elif "late" in row:
            self.late[row["late"]] = {k: row[k] for k in ("after", "reason", "figures")}
        elif "joules" in row:
            self.joules[row["joules"]] = row["figures"]
        else:
            self.rounds[row["round"]] = row["samples_s"]
            self.repeated += row["repeated"]
            self.dry += row["dry"]


class Lane:
    """One GPU, the slots of some cases, and the process that runs them."""

    def __init__(self, bench: Bench, number: int, counts: Mapping[str, int]) -> None:
        self.bench, self.number, self.counts = bench, number, counts
        self.rows = bench.work / f"lane-{number}.jsonl"
        self.marker = bench.work / f"lane-{number}.marker"
        self.finished = False
        self.unfinished = ""
        self.child: Child | None = None
        self.seen, self.seen_at = (0, ""), 0.0

    def said(self) -> Said:
        said = Said()
        for row in whole_rows(self.rows):
            said.hear(row)
        return said

    def mine(self) -> dict[str, int]:
        """Rounds by slot, of the candidates that live."""
        return {s: n for s, n in self.counts.items() if self.bench.known.outcomes[base(s)].status == "ok"}

    def rounds_done(self) -> bool:
        """Whether every round was made and every output looked at since."""
        mine, said = self.mine(), self.said()
        return said.next_round >= max(mine.values(), default=0) and {base(s) for s in mine} <= said.judged

    def nothing_left(self) -> bool:
        """Whether every round was made, every output looked at and every energy read."""
        if not self.rounds_done():
            return False
        metered = {*self.said().joules, *self.bench.known.unmetered}
        return not self.bench.options.joules or {base(s) for s in self.mine()} <= metered

    def start(self) -> None:
        """The next process, with the survivors; none where there is nothing left to do."""
        if self.nothing_left():
            self.finished = True
            return
        bench, said, mine = self.bench, self.said(), self.mine()
        self.marker.write_text("")
        plan = Plan(
            gpu=self.number,
            gpus=bench.gpus,
            uuid=said.devices[0]["uuid"] if said.devices else "",
            counts=mine,
            first=said.next_round,
            careful=bench.known.unexplained.get(self.number, 0) > 0,
            warm=bench.options.l2 == "warm",
            fresh=frozenset(s for s in mine if is_short(bench, base(s))),
            judged=said.judged,
            metered=frozenset({*said.joules, *bench.known.unmetered}) if bench.options.joules else None,
            deadline=bench.by("rounds"),
            rows=self.rows,
            marker=self.marker,
            stop=bench.stop,
        )
        inputs = {c: bench.inputs(c) for c in bench.known.inputs}
        body = functools.partial(interleave, bench.device, bench.bundle, plan, inputs, bench.known.binaries)
        self.child = Child(body, bench.by("end") - time.monotonic())
        self.seen_at = time.monotonic()

    def step(self) -> None:
        """Start what can be started, and see how what runs is getting on."""
        if self.child is None and not self.finished:
            self.start()
        if self.child is None:
            return
        ended = self.child.poll()
        if ended is None and self.hangs():
            self.child.kill()
            ended = Ended("died", detail=f"killed: nothing happened for {self.hang_limit_s():.0f} s")
        if ended is None:
            return
        self.child = None
        if ended.kind == "returned":
            self.finished = True
        else:
            self.died(ended)

    def hangs(self) -> bool:
        """Whether the process has neither begun nor ended anything for too long."""
        seen = (self.rows.stat().st_size if self.rows.exists() else 0, self.marker.read_text())
        if seen != self.seen:
            self.seen, self.seen_at = seen, time.monotonic()
        return time.monotonic() - self.seen_at > self.hang_limit_s()

    def hang_limit_s(self) -> float:
        """No round may take so long: thrice what was estimated of it, and never less than the protocol's limit."""
        known = self.bench.known
        round_s = sum((known.outcomes[base(s)].estimate_s or 0.0) for s in self.counts)
        return max(self.bench.protocol["hang_limit_s"], 3 * round_s)

    def died(self, ended: Ended) -> None:
        """Write the offender off, or count a death that nobody explains."""
        bench = self.bench
        offender = base(self.marker.read_text()) if self.marker.exists() else ""
        if ended.detail.startswith("OtherGpu"):
            raise Refused(ended.detail)
        bench.say(f"rounds on GPU {self.number}: {ended.kind}: {ended.detail}; offender: {offender or 'unknown'}")
        bench.check_disk(ended.detail)
        if ended.kind == "timeout":
            self.unfinished, self.finished = ended.detail, True
        elif offender and self.rounds_done():  # its samples are none the worse for it
            bench.tell({"unmetered": offender, "why_not": ended.detail})
        elif offender:
            bench.fail(offender, "died", f"in the interleaved phase: {failure(ended)[0]}: {ended.detail}")
        else:
            deaths = bench.known.unexplained.get(self.number, 0) + 1
            bench.tell({"unexplained": self.number, "deaths": deaths})
            if deaths > int(bench.protocol["unexplained_deaths"]):
                self.unfinished, self.finished = f"given up after {deaths} deaths that nothing explains", True

    def into(
        self,
        outcomes: Mapping[str, Outcome],
        again: dict[str, dict[int, float]],
        energy: dict[str, dict[str, Any]],
    ) -> None:
        """Hand over what was measured: samples, those of second slots, energy, and the last look at the outputs."""
        said = self.said()
        for number, row in said.rounds.items():
            for slot, seconds in row.items():
                own = outcomes[base(slot)].samples
                (again.setdefault(base(slot), {}) if slot.endswith(AGAIN) else own)[number] = seconds
        energy |= said.joules
        energy |= {n: {"why_not": why} for n, why in self.bench.known.unmetered.items() if n in self.counts}
        for name in (n for n in self.counts if not n.endswith(AGAIN)):
            outcome, late = outcomes[name], said.late.get(name)
            if late is not None:
                outcome.gates.append(gate("numerics after", late["reason"], late["figures"]))
            if late is not None and late["reason"] is not None:
                outcome.fail("numerics", f"after the rounds: {late['reason']}")
            elif name not in said.judged and outcome.samples:
                outcome.fail("unchecked", "stopped before the last look at its outputs: --resume makes it good")

    def wind_down(self) -> bool:
        """Whether its process is gone, having been told to stop; none is started any more."""
        if self.child is not None and self.child.poll() is not None:
            self.child = None
        return self.child is None

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None


def is_short(bench: Bench, name: str) -> bool:
    """Whether a candidate is so short that where its graph lies shows in its time."""
    return (bench.known.outcomes[name].estimate_s or 0.0) <= bench.protocol["fresh_graph_s"]


def plan_lanes(bench: Bench) -> list[dict[str, int]]:
    """Rounds by slot for each GPU: the longest case first, to the GPU that has least to do.

    The candidates of one case stay on one GPU, since times of two GPUs are no pair.
    """
    survivors = [n for n in bench.known.alive() if n in bench.known.isolated]
    slots = slots_of(bench.bundle, survivors, bench.options.again == "all")
    estimates = {s: bench.known.outcomes[base(s)].estimate_s or 0.0 for s in slots}
    warm = bench.options.l2 == "warm"
    besides = {s: t if warm or is_short(bench, base(s)) else 0.0 for s, t in estimates.items()}
    cases: dict[str, list[str]] = {}
    for slot in slots:
        cases.setdefault(bench.bundle.candidate(base(slot)).case, []).append(slot)
    overhead_s = bench.protocol["sample_overhead_s"]
    length_s = {c: sum(estimates[s] + besides[s] + overhead_s for s in own) for c, own in cases.items()}
    lanes: list[list[str]] = [[] for _ in range(min(bench.gpus, len(cases)))]
    for case in sorted(cases, key=lambda c: -length_s[c]):
        shortest = min(lanes, key=lambda own: sum(estimates[s] + besides[s] + overhead_s for s in own))
        shortest += cases[case]
    left_s = 0.8 * (bench.by("rounds") - time.monotonic())
    return [plan_counts({s: estimates[s] for s in slots if s in own}, bench.protocol, left_s, besides) for own in lanes]


def run_lanes(bench: Bench, lanes: Sequence[Lane]) -> None:
    """All lanes side by side until the last is finished; clocks and processes are looked at meanwhile."""
    slots = sum(len(lane.counts) for lane in lanes)
    rounds = max((n for lane in lanes for n in lane.counts.values()), default=0)
    bench.say(f"interleave {slots} slots over {rounds} rounds on {len(lanes)} GPU{'s' if len(lanes) != 1 else ''}")
    read_at = -READING_EVERY_S
    while not all(lane.finished for lane in lanes):
        for lane in lanes:
            lane.step()
        running = [lane for lane in lanes if lane.child is not None]
        if running and time.monotonic() - read_at >= READING_EVERY_S:
            read_at = time.monotonic()
            for lane in running:
                found = environment.reading(lane.number, own=1)
                bench.tell({"reading": {"at_s": read_at - bench.started, "gpu": lane.number, **found}})
            bench.say(f"rounds {[lane.said().next_round for lane in lanes]}")
        if running:
            _pause(running)


def _pause(lanes: Sequence[Lane]) -> None:
    """Until a child says something or ends, and no longer than until the next look at the clocks."""
    select.select([lane.child.fileno for lane in lanes if lane.child is not None], [], [], WAIT_S)
