"""What the machine was doing meanwhile, read and never set: clocks, power, temperature, throttling, other processes."""

from __future__ import annotations

import subprocess
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
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # newer and older drivers' name
NOISE_NS = 2.0  # elapsed times come as 32-bit milliseconds


def reading() -> dict[str, Any]:
    """One look at the first GPU through NVML, or through nvidia-smi; {"unread": why} where neither answers."""
    try:
        return _nvml()
    except Exception:  # not installed, or a binding of another age: nvidia-smi answers the same questions
        return _smi()


def _nvml() -> dict[str, Any]:
    import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

    pynvml.nvmlInit()
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
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


def _smi() -> dict[str, Any]:
    lines = _query("--query-gpu=" + ",".join([*FIELDS.values(), "driver_version"]))
    if not lines:
        return {"unread": "neither NVML nor nvidia-smi answers"}
    values = [v.strip() for v in lines[0].split(",")]
    found: dict[str, Any] = {name: _number(v) for name, v in zip(FIELDS, values, strict=False)}
    found["driver"] = values[-1]
    reasons = next((r for name in REASONS if (r := _query(f"--query-gpu={name}"))), ["unknown"])
    processes = _query("--query-compute-apps=pid")
    found["throttle_reasons"] = reasons[0]
    found["processes"] = "unknown" if processes is None else len(processes)
    return found


def _query(what: str) -> list[str] | None:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits", "--id=0"]
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
    step = values[0]
    for value in [*values, *(b - a for a, b in pairwise(values))]:
        step = _common(step, value)
    if step <= NOISE_NS:
        return NOISE_NS * 1e-9
    # the longest value pins the step best
    return values[-1] / round(values[-1] / step) * 1e-9


def _common(a: float, b: float) -> float:
    while b > NOISE_NS:
        rest = a % b
        a, b = b, min(rest, b - rest)
    return a


def summary(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Least, median and greatest of every number in several readings, and each throttle reason that was seen."""
    out: dict[str, Any] = {"readings": len(readings)}
    for name in FIELDS:
        values = sorted(r[name] for r in readings if isinstance(r.get(name), (int, float)))
        if values:
            out[name] = {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}
    out["throttle_reasons"] = sorted({str(r["throttle_reasons"]) for r in readings if "throttle_reasons" in r})
    return out
