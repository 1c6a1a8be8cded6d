"""What a grid's run leaves: every candidate with a status, all samples as whole nanoseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..harness import environment as machine
from ..harness.rounds import AGAIN
from .grid import CANDIDATES, Grid, Member
from .supervisor import Told

FORMAT = 1
NOT_REACHED = "the time limit came before it was measured"


def result(
    grid: Grid, faults: Mapping[str, tuple[str, str]], told: Sequence[Told], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """The Collected record.  `faults` is what went wrong before a GPU was touched: (status, detail) by candidate."""
    known = {name: row for t in told for name, row in t.known.items()}
    samples: dict[str, list[int]] = {}
    for t in told:
        for number in sorted(t.rounds):
            for slot, ns in t.rounds[number].items():
                samples.setdefault(slot, []).append(ns)
    timings = []
    for name, member in grid.members.items():
        row = known.get(name, {"status": "not-reached", "detail": NOT_REACHED})
        if name in faults:
            row = {"status": faults[name][0], "detail": faults[name][1]}
        timings.append(_timing(grid, member, row, samples))
    found = [_environment(t) for t in told]
    config = grid.bundle.config
    return {
        "format": FORMAT,
        "run_id": grid.bundle.run_id,
        "gpu": config.gpu,
        "seed": config.seed,
        "floors_s": dict(config.floors_s),
        "environment": {
            **environment,
            "workers": found,
            "candidates": hashlib.sha256((grid.bundle.folder / CANDIDATES).read_bytes()).hexdigest(),
        },
        "timings": timings,
    }


def _environment(told: Told) -> dict[str, Any]:
    found = dict(told.environment)
    found["event_tick_s"] = machine.event_tick_s(found.pop("tick_samples_s", []))
    return {**found, "rounds_done": told.next_round}


def _timing(grid: Grid, member: Member, row: Mapping[str, Any], samples: Mapping[str, list[int]]) -> dict[str, Any]:
    candidate = member.candidate
    own = samples.get(candidate.id, [])
    status, detail = row["status"], row.get("detail", "")
    floor_s = grid.bundle.config.floors_s[candidate.case]
    if status == "ok" and not own:
        status, detail = "not-reached", "no round was completed in time"
    elif status == "ok" and not min(own) * 1e-9 >= floor_s:
        status = "impossible"
        detail = f"{min(own) * 1e-3:.3g} us is below the {floor_s * 1e6:.3g} us that the peaks allow"
    return {
        "candidate": candidate.id,
        "workload": candidate.case,
        "schedule": member.schedule,
        "kernel_id": candidate.kernel_id,
        "checked": member.checked,
        "status": status,
        "detail": detail,
        "figures": row.get("figures", {}),
        "resources": row.get("resources", {}),
        "quick_ns": [round(s * 1e9) for s in row.get("quick_s", [])],
        "samples_ns": own,
        "again_ns": samples.get(candidate.id + AGAIN, []),
    }
