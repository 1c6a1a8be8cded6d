"""The one result file: JSON under gzip, whole or not at all."""

from __future__ import annotations

import gzip
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .isolated import Outcome, gate
from .rounds import AGAIN, base
from .spec import Bundle

FORMAT = 1


def result(
    bundle: Bundle,
    outcomes: Mapping[str, Outcome],
    again: Mapping[str, dict[int, float]],
    energy: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """A Samples record: one timing a candidate, each case's second slot behind its first."""
    timings = []
    for candidate in bundle.candidates:
        outcome = outcomes[candidate.id]
        timings.append(_timing(bundle, candidate.id, outcome))
        if candidate.id in energy:
            timings[-1]["energy"] = dict(energy[candidate.id])
        if candidate.id in again:
            second = Outcome(outcome.status, outcome.detail, [], None, again[candidate.id])
            timings.append(_timing(bundle, candidate.id + AGAIN, second))
    return {"format": FORMAT, "run_id": bundle.run_id, "environment": dict(environment), "timings": timings}


def _timing(bundle: Bundle, slot: str, outcome: Outcome) -> dict[str, Any]:
    candidate = bundle.candidate(base(slot))
    samples = [outcome.samples[n] for n in sorted(outcome.samples)]
    floor_s = bundle.config.floors_s[candidate.case]
    gates = list(outcome.gates)
    status, detail = outcome.status, outcome.detail
    if samples:
        beaten = not min(samples) >= floor_s
        reason = f"{min(samples) * 1e6:.3g} us is below the {floor_s * 1e6:.3g} us that the peaks allow"
        gates.append(gate("possible", reason if beaten else None, {"floor_s": floor_s, "least_s": min(samples)}))
        if beaten and status == "ok":
            status, detail = "impossible", reason
    elif status == "ok":
        status, detail = "not-reached", "no round was completed in time"
    return {
        "candidate": slot,
        "kernel_id": candidate.kernel_id,
        "status": status,
        "detail": detail,
        "gates": gates,
        "samples_s": samples,
    }


def plain(value: Any) -> Any:
    """JSON has no word for what is not finite: those become text, and fail as numbers wherever they are read."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def write_result(path: Path, record: Mapping[str, Any]) -> None:
    """The same record gives the same bytes (no time stamp inside)."""
    data = gzip.compress(json.dumps(plain(record), sort_keys=True, allow_nan=False).encode(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
