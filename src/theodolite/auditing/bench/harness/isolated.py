"""One candidate in a process of its own: does it run, is it right, and about how long does it take?

Whatever it breaks, it breaks alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .device import Binary, Device
from .jobs import Ended
from .spec import Candidate, Config, SpecError, check_candidate

TTIR_GATE = "ttir"
ESTIMATE_RUNS = 5
ESTIMATE_LIMIT_S = 1.0
# What an exception's text says, and the status that it means; first match wins.
STATUSES = (
    ("Drift:", "drift"),
    ("SpecError:", "manifest"),
    ("out of resource: shared memory", "shared-memory"),
    ("OutOfMemoryError", "out-of-memory"),
    ("illegal memory access", "illegal-access"),
    ("misaligned address", "illegal-access"),
)


class Drift(Exception):
    """What was compiled here is not what was frozen."""


@dataclass
class Outcome:
    """What is known of one candidate so far; `status` is "ok" while nothing went wrong."""

    status: str = "ok"
    detail: str = ""
    gates: list[dict[str, Any]] = field(default_factory=list)
    estimate_s: float | None = None
    samples: dict[int, float] = field(default_factory=dict)

    def fail(self, status: str, detail: str) -> None:
        if self.status == "ok":
            self.status, self.detail = status, detail


def gate(name: str, reason: str | None, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A GateResult as JSON; passed where there is no reason against."""
    return {"gate": name, "passed": reason is None, "reason": reason or "", "figures": dict(figures)}


def failure(ended: Ended) -> tuple[str, str]:
    """(status, detail) of a child that did not return."""
    if ended.kind == "timeout":
        return "timeout", ended.detail
    if ended.kind == "died":
        return "crash", ended.detail
    return next((s for text, s in STATUSES if text in ended.detail), "crash"), ended.detail


def judge_numerics(figures: Mapping[str, float], protocol: Mapping[str, float]) -> str | None:
    """Why an output fails, None where it passes.  A figure that is not a number fails (no comparison passes it)."""
    if figures["non_finite"] != 0:
        return f"{figures['non_finite']:.0f} elements are not finite"
    if not figures["elementwise"] <= 1:
        return f"an element is off by {figures['elementwise']:.3g} times its tolerance"
    limit = protocol["relative_norm"]
    for key, where in (("relative_norm", "overall"), ("relative_norm_head", "in one head")):
        if not figures[key] <= limit:
            return f"relative norm {figures[key]:.3g} {where} is over {limit:g}"
    if figures["inputs_changed"] != 0:
        return "an input was changed"
    return None


def check_ttir(candidate: Candidate, binaries: Mapping[str, Binary], config: Config, compiler: str) -> dict[str, Any]:
    """The gate "ttir": what was compiled here is what was hashed into kernel_id."""
    figures = {f"{name} shared_bytes": b.shared_bytes for name, b in binaries.items()}
    if compiler != config.triton:
        return gate(TTIR_GATE, f"triton {compiler} here, {config.triton} when frozen: no kernel_id holds here", figures)
    off = [n for n, b in binaries.items() if b.ttir != candidate.ttir.get(n)]
    return gate(TTIR_GATE, f"other TTIR than frozen: {', '.join(off)}" if off else None, figures)


def isolated(
    device: Device, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary], config: Config
) -> dict[str, Any]:
    """The child's body: {"gates": [...], "estimate_s": seconds or None}; raises whatever goes wrong."""
    check_candidate(candidate)
    opened = device.open()
    if tuple(opened["target"]) != config.target:
        raise SpecError(f"this GPU is {opened['target']}; the bundle was made for {config.target}")
    device.reserve([candidate])
    gates = [gate("loaded", None, device.bind(candidate, workload, inputs, binaries))]
    for name in device.input_sets(candidate):
        device.run_once(candidate, name)
        figures = device.compare(candidate, name)
        gates.append(gate(f"numerics {name}", judge_numerics(figures, config.protocol), figures))
        if not gates[-1]["passed"]:
            return {"gates": gates, "estimate_s": None}
    return {"gates": gates, "estimate_s": estimate(device, candidate)}


def estimate(device: Device, candidate: Candidate) -> float:
    """Median of a few cold runs in seconds; fewer where one takes long."""
    started, seen = time.monotonic(), list[float]()
    while len(seen) < ESTIMATE_RUNS and (not seen or time.monotonic() - started < ESTIMATE_LIMIT_S):
        seen.append(device.cold_run(candidate))
    return statistics.median(seen)
