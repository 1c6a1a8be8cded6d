"""The survivors, interleaved: every round replays all of them once, in an order of its own.

A round is written whole or not at all, and every slot takes part in the first rounds, so that sample i of any two
slots stems from the same round.  Slow candidates stop earlier.  One process a GPU does it; when it dies, the next one
starts without the offender and keeps the rounds so far.

Two instances of one CUDA graph differ by up to 2 % for good, whichever kernels they hold: where the driver puts them
decides how far their first fetches have to go.  Short candidates therefore get a new instance every round, so that
this is noise, as it is for whoever runs them, and no property of a slot.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .device import Batch, Binary, Device
from .energy import EnergyUnread
from .isolated import judge_numerics
from .journal import Journal
from .spec import Bundle, carve

AGAIN = "#again"
CAREFUL_ROUNDS = 3  # after an unexplained death: one slot at a time, each named before it runs
DRY_RETRIES = 2


@dataclass(frozen=True)
class Plan:
    """What one process shall do.  counts: rounds by slot, slots in the manifest's order.  first: the next round.

    gpu, gpus: which one of how many; uuid: the one that the earlier rounds ran on, "" before.  fresh: the slots that
    get a new graph instance each round.  judged: candidates whose outputs were looked at after the last of the rounds;
    metered: those whose energy is known, None where nobody asked.  deadline: time.monotonic().

    The child writes rows (its journal) and marker (what it is about to run); where the file `stop` is there, it makes
    no further round.
    """

    gpu: int
    gpus: int
    uuid: str
    counts: Mapping[str, int]
    first: int
    careful: bool
    warm: bool
    fresh: frozenset[str]
    judged: frozenset[str]
    metered: frozenset[str] | None
    deadline: float
    rows: Path
    marker: Path
    stop: Path

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline or self.stop.exists()


class OtherGpu(Exception):
    """Samples of two GPUs are no pair."""


def base(slot: str) -> str:
    """The candidate of a slot."""
    return slot.removesuffix(AGAIN)


def slots_of(bundle: Bundle, survivors: Sequence[str], every: bool = False) -> list[str]:
    """The survivors, and the first and last one of each case (or every one) once more.

    Two slots of one kernel are an A/A pair.  A case has two such pairs, so that one is left where a candidate dies.
    """
    case = {name: bundle.candidate(name).case for name in survivors}
    last = {case[name]: name for name in survivors}
    first = {case[name]: name for name in reversed(survivors)}
    twice = set(survivors if every else (*first.values(), *last.values()))
    return [slot for name in survivors for slot in ((name, name + AGAIN) if name in twice else (name,))]


def plan_counts(
    estimates_s: Mapping[str, float],
    protocol: Mapping[str, float],
    left_s: float,
    besides_s: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Rounds by slot, such that all take at most about `left_s` seconds, and never fewer than `least_rounds`.

    `besides_s`: what a sample of a slot takes besides itself and the protocol's overhead.
    """
    rounds, least, slow_s = int(protocol["rounds"]), int(protocol["least_rounds"]), protocol["slow_s"]
    whole_s = {n: s + protocol["sample_overhead_s"] + (besides_s or {}).get(n, 0.0) for n, s in estimates_s.items()}

    def count(seconds: float, top: int) -> int:
        return min(rounds, max(least, top if seconds <= slow_s else int(top * slow_s / seconds)))

    def total_s(top: int) -> float:
        return sum(count(s, top) * whole_s[n] for n, s in estimates_s.items())

    top = rounds
    while top > least and total_s(top) > left_s:
        top = max(least, int(top * 0.9))
    return {slot: count(seconds, top) for slot, seconds in estimates_s.items()}


def order(seed: int, number: int, slots: Sequence[str]) -> list[str]:
    """The round's permutation; the same seed and round give the same one."""
    shuffled = list(slots)
    random.Random(f"{seed}:{number}").shuffle(shuffled)
    return shuffled


def interleave(
    device: Device, bundle: Bundle, plan: Plan, inputs: Mapping[str, Path], binaries: Mapping[str, Mapping[str, Binary]]
) -> None:
    """The child's body: captures, rounds, a last look at the outputs, energy.  What it finds goes to the plan's rows.

    Raises OtherGpu where this is not the GPU of the rounds so far.
    """
    journal = Journal(plan.rows)
    device.choose(plan.gpu, plan.gpus)
    opened = device.open()
    if plan.uuid and opened["uuid"] != plan.uuid:
        raise OtherGpu(f"the rounds so far ran on GPU {plan.uuid}, and this is {opened['uuid']}")
    names = list(dict.fromkeys(base(slot) for slot in plan.counts))
    wanted = [bundle.candidate(name) for name in names]
    # where the arena has no room, it is for the candidate that asks for most
    plan.marker.write_text(max(wanted, key=lambda c: carve(c.of_role("workspace"))[1]).id)
    device.reserve(wanted)
    for slot in plan.counts:
        candidate = bundle.candidate(base(slot))
        plan.marker.write_text(slot)
        if slot in names:
            device.bind(candidate, bundle.cases[candidate.case], inputs[candidate.case], binaries[candidate.id])
        device.capture(slot, candidate)
    plan.marker.write_text("")
    journal.add({"device": opened | device.prepare_rounds()})
    after = _rounds(device, bundle, plan, journal)
    for name in (n for n in names if after > plan.first or n not in plan.judged):
        plan.marker.write_text(name)
        device.replay(bundle.candidate(name))
        figures = device.compare(bundle.candidate(name), "random")
        reason = judge_numerics(figures, bundle.config.protocol)
        journal.add({"late": name, "after": after, "reason": reason, "figures": figures})
    plan.marker.write_text("")
    if plan.metered is not None:
        _meter(device, bundle, plan, journal, [n for n in names if n not in plan.metered])


def _rounds(device: Device, bundle: Bundle, plan: Plan, journal: Journal) -> int:
    """Rounds until all are done or it is over; the number of the next one.

    A collection of garbage in the middle of a round would cost a sample.
    """
    number = plan.first
    gc.collect()
    gc.disable()
    try:
        while number < max(plan.counts.values(), default=0) and not plan.over:
            slots = order(bundle.config.seed, number, [s for s, n in plan.counts.items() if number < n])
            careful = plan.careful and number < plan.first + CAREFUL_ROUNDS
            device.renew([s for s in slots if s in plan.fresh])
            batch, repeated = _batch(device, plan, slots, careful)
            samples_s = dict(batch.samples_s)
            journal.add({"round": number, "samples_s": samples_s, "repeated": repeated, "dry": len(batch.dry)})
            if careful:
                plan.marker.write_text("")
            number += 1
    finally:
        gc.enable()
    return number


def _batch(device: Device, plan: Plan, slots: Sequence[str], careful: bool) -> tuple[Batch, int]:
    """A round's times, and how often it was repeated because the queue ran dry."""
    mark = plan.marker.write_text if careful else None
    batch, repeated = device.batch(slots, mark, plan.warm), 0
    while batch.dry and repeated < DRY_RETRIES:
        batch, repeated = device.batch(slots, mark, plan.warm), repeated + 1
    return batch, repeated


def _meter(device: Device, bundle: Bundle, plan: Plan, journal: Journal, names: Sequence[str]) -> None:
    for name in names:
        if plan.over:
            break
        plan.marker.write_text(name)
        try:
            figures: dict[str, Any] = device.energy(name, bundle.config.protocol["energy_s"])
        except EnergyUnread as error:  # the samples are none the worse for it
            figures = {"why_not": str(error)}
        journal.add({"joules": name, "figures": figures})
    plan.marker.write_text("")
