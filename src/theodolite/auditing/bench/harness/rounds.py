"""The survivors, interleaved: every round replays all of them once, in an order of its own.

A round is written whole or not at all, and every slot takes part in the first rounds, so that sample i of any two
slots stems from the same round.  Slow candidates stop earlier.  One process does it; when it dies, the next one starts
without the offender and keeps the rounds so far.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .device import Binary, Device
from .isolated import judge_numerics
from .spec import Bundle

AGAIN = "#again"
CAREFUL_ROUNDS = 3  # after an unexplained death: one slot at a time, each named before it runs
DRY_RETRIES = 2


@dataclass(frozen=True)
class Plan:
    """counts: rounds by slot, slots in the manifest's order.  first: the next round.  deadline: time.monotonic().

    The child writes samples (a round a line), marker (what it is about to run) and found (what the device is).
    """

    counts: Mapping[str, int]
    first: int
    careful: bool
    deadline: float
    samples: Path
    marker: Path
    found: Path


def slots_of(bundle: Bundle, survivors: Sequence[str]) -> list[str]:
    """The survivors, and the first one of each case once more: two slots of one kernel are the A/A pair."""
    doubled = {bundle.candidate(name).case: name for name in reversed(survivors)}
    return [slot for name in survivors for slot in ((name, name + AGAIN) if name in doubled.values() else (name,))]


def plan_counts(estimates_s: Mapping[str, float], protocol: Mapping[str, float], left_s: float) -> dict[str, int]:
    """Rounds by slot, such that all take at most about `left_s` seconds, and never fewer than `least_rounds`."""
    rounds, least, slow_s = int(protocol["rounds"]), int(protocol["least_rounds"]), protocol["slow_s"]

    def count(seconds: float, top: int) -> int:
        return min(rounds, max(least, top if seconds <= slow_s else int(top * slow_s / seconds)))

    def total_s(top: int) -> float:
        return sum(count(s, top) * (s + protocol["sample_overhead_s"]) for s in estimates_s.values())

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
) -> dict[str, Any]:
    """The child's body: captures, rounds, and a last look at the outputs.  Samples go to the plan's file."""
    environment = device.open()
    names = list(dict.fromkeys(slot.removesuffix(AGAIN) for slot in plan.counts))
    device.reserve([bundle.candidate(name) for name in names])
    for slot in plan.counts:
        candidate = bundle.candidate(slot.removesuffix(AGAIN))
        plan.marker.write_text(slot)
        if slot in names:
            device.bind(candidate, bundle.cases[candidate.case], inputs[candidate.case], binaries[candidate.id])
        device.capture(slot, candidate)
    plan.marker.write_text("")
    environment |= device.prepare_rounds()
    plan.found.write_text(json.dumps(environment))
    done = _rounds(device, bundle, plan)
    late: dict[str, Any] = {}
    for name in names:
        plan.marker.write_text(name)
        candidate = bundle.candidate(name)
        device.replay(candidate)
        figures = device.compare(candidate, "random")
        late[name] = {"reason": judge_numerics(figures, bundle.config.protocol), "figures": figures}
    plan.marker.write_text("")
    return {"rounds": done, "late": late}


def _rounds(device: Device, bundle: Bundle, plan: Plan) -> dict[str, Any]:
    """Rounds until all are done or the deadline has come; a collection in the middle of one would cost a sample."""
    repeated = dry = done = 0
    gc.collect()
    gc.disable()
    try:
        with plan.samples.open("a") as file:
            for number in range(plan.first, max(plan.counts.values(), default=0)):
                if time.monotonic() > plan.deadline:
                    break
                slots = order(bundle.config.seed, number, [s for s, n in plan.counts.items() if number < n])
                careful = plan.careful and number < plan.first + CAREFUL_ROUNDS
                mark = plan.marker.write_text if careful else None
                batch = device.batch(slots, mark)
                for _ in range(DRY_RETRIES):
                    if not batch.dry:
                        break
                    repeated += 1
                    batch = device.batch(slots, mark)
                dry += len(batch.dry)
                file.write(json.dumps({"round": number, "samples_s": dict(batch.samples_s)}) + "\n")
                file.flush()
                if careful:
                    plan.marker.write_text("")
                done += 1
    finally:
        gc.enable()
    return {"rounds_done": plan.first + done, "rounds_repeated": repeated, "dry_samples": dry}


def read_samples(path: Path) -> dict[int, dict[str, float]]:
    """Seconds by round and slot; a last line that a death cut short is left out."""
    found: dict[int, dict[str, float]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row["round"]] = row["samples_s"]
    return found
