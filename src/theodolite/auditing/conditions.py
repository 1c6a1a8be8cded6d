"""What a reader of a verdict has to know of how the samples were taken, and what makes them worth nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = "another process used the GPU meanwhile"
IDLE_REASONS = ("0x0", "0x1")  # NVML's bits: nothing, and an idle GPU


def disqualified(environment: Mapping[str, Any]) -> str | None:
    """Why no sample of a recording counts, None where they do."""
    return SHARED if environment.get("exclusive") is False else None


def conditions(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything out of the ordinary in a recording's environment, a phrase each; the default protocol has none."""
    found = []
    if environment.get("l2", "cold") != "cold":
        found.append(f"{environment['l2']} L2")
    if (why := disqualified(environment)) is not None:
        found.append(why)
    if environment.get("exclusive", True) is None:
        found.append("nothing said whether the GPU was shared")
    during = environment.get("during")
    reasons = during.get("throttle_reasons", ()) if isinstance(during, Mapping) else ()
    if throttled := [r for r in reasons if str(r) not in IDLE_REASONS]:
        found.append(f"clocks were held back (NVML reasons {', '.join(map(str, throttled))})")
    if resumed := environment.get("resumed", 0):
        found.append(f"interrupted and resumed {'once' if resumed == 1 else f'{resumed} times'}")
    if dry := environment.get("dry_samples", 0):
        found.append(f"{dry} samples began on an empty queue")
    return tuple(found)
