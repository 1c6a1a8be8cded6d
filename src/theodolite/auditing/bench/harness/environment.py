"""What the machine was doing meanwhile, read and never set: clocks, power, temperature, throttling, other processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

FIELDS = {
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
}
VISIBLE = "CUDA_VISIBLE_DEVICES"
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # newer and older drivers' name
NOISE_NS = 2.0  # elapsed times come as 32-bit milliseconds
PRECISION_NS = 0.2  # of one elapsed time or a difference of two
MOST_PARTS = 4096  # of the shortest length: a finer step than that is noise


def reading(gpu: int = 0, own: int = 0) -> dict[str, Any]:
    """One look at a visible GPU through NVML, or through nvidia-smi; {"unread": why} where neither answers.

    `own` processes are of this run; "foreign_processes" are the others.
    """
    visible = [n.strip() for n in os.environ.get(VISIBLE, "").split(",") if n.strip()]
    name = visible[gpu] if gpu < len(visible) else str(gpu)
    try:
        found = _nvml(name)
    except Exception:  # not installed, or a binding of another age: nvidia-smi answers the same questions
        found = _smi(name)
    if isinstance(found.get("processes"), int):
        found["foreign_processes"] = max(0, found["processes"] - own)
    return found


def exclusive(readings: Sequence[dict[str, Any]]) -> bool | None:
    """Whether nobody else used the GPU at any look; None where nobody was seen and one look could not say."""
    seen = [r.get("foreign_processes") for r in readings]
    if any(isinstance(n, int) and n > 0 for n in seen):
        return False
    return True if seen and all(n == 0 for n in seen) else None


def wait_for_others(gpu: int, limit_s: float) -> int:
    """How many processes of others a GPU has, after some time for the last of them to go."""
    until = time.monotonic() + limit_s
    while True:
        found = reading(gpu).get("foreign_processes", 0)
        if not found or time.monotonic() > until:
            return int(found)
        time.sleep(0.5)


def _nvml(name: str) -> dict[str, Any]:
    import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

    pynvml.nvmlInit()
    try:
        by_index = name.isdigit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
        driver = pynvml.nvmlSystemGetDriverVersion()
        return {
            "clock_sm_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
            "clock_memory_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
            "temperature_c": pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
            "power_w": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "power_limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3,
            "throttle_reasons": hex(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
            "processes": len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
        }
    finally:
        pynvml.nvmlShutdown()


def _smi(name: str) -> dict[str, Any]:
    lines = _query("--query-gpu=" + ",".join([*FIELDS.values(), "driver_version"]), name)
    if not lines:
        return {"unread": "neither NVML nor nvidia-smi answers"}
    values = [v.strip() for v in lines[0].split(",")]
    found: dict[str, Any] = {field: _number(v) for field, v in zip(FIELDS, values, strict=False)}
    found["driver"] = values[-1]
    reasons = next((r for field in REASONS if (r := _query(f"--query-gpu={field}", name))), ["unknown"])
    processes = _query("--query-compute-apps=pid", name)
    found["throttle_reasons"] = reasons[0]
    found["processes"] = "unknown" if processes is None else len(processes)
    return found


def _query(what: str, name: str) -> list[str] | None:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits", f"--id={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [line for line in done.stdout.splitlines() if line.strip()]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def event_tick_s(elapsed_s: Sequence[float]) -> float | None:
    """The step that elapsed times are multiples of, in seconds; None where fewer than two differ.

    A greatest common divisor with tolerance: the noise of the values' own precision counts as zero, and is the answer
    where no coarser step shows.
    """
    values = sorted({round(v * 1e9, 1) for v in elapsed_s if v > 0})
    if len(values) < 2:
        return None
    lengths = sorted({*values, *(b - a for a, b in pairwise(values) if b - a > NOISE_NS)})
    for parts in range(1, min(int(lengths[0] / NOISE_NS), MOST_PARTS) + 1):
        step = _pinned(lengths[0] / parts, parts, lengths)
        if step is not None:
            return step * 1e-9
    return NOISE_NS * 1e-9


def _pinned(step: float, parts: int, lengths: Sequence[float]) -> float | None:
    """The step as all lengths pin it, shortest first, or None where one of them is no whole number of it.

    A length's own error is shared by all the steps in it, so that each longer one pins the step better.
    """
    longest = parts
    for length in lengths:
        count = round(length / step)
        allowed = NOISE_NS / 2 + count * PRECISION_NS / longest
        if allowed >= step / 2:
            continue  # too long to tell by the step as it is known
        if abs(length - count * step) > allowed:
            return None
        if count > longest:
            step, longest = length / count, count
    return step


def summary(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Least, median and greatest of every number in several readings; most processes of others; throttle reasons."""
    out: dict[str, Any] = {"readings": len(readings)}
    for name in FIELDS:
        values = sorted(r[name] for r in readings if isinstance(r.get(name), (int, float)))
        if values:
            out[name] = {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}
    others = [r["foreign_processes"] for r in readings if isinstance(r.get("foreign_processes"), int)]
    out["foreign_processes"] = max(others, default="unknown")
    out["throttle_reasons"] = sorted({str(r["throttle_reasons"]) for r in readings if "throttle_reasons" in r})
    return out
