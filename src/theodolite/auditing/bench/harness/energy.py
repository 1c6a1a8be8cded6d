"""Joules of one replay: NVML's total energy counter over many replays, less what the idle GPU takes meanwhile.

The counter moves in steps (every 100 ms on an H200), so an interval begins and ends where it moves.  The replays run
back to back, with whatever their own data leave in the L2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

BEAT_S = 5e-3  # replays between two looks at the counter take about so long
SETTLE_S = 0.3
STUCK_S = 2.0


class EnergyUnread(Exception):
    """The counter cannot be read here, and why."""


def energy_counter(uuid: str) -> Callable[[], float]:
    """A function that reads a GPU's total energy in joules.  It raises EnergyUnread, and so does this, without NVML."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise EnergyUnread("nvidia-ml-py is not installed") from error

    def counter_j() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * 1e-3
        except pynvml.NVMLError as error:
            raise EnergyUnread(f"NVML: {error}") from error

    try:
        pynvml.nvmlInit()
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except pynvml.NVMLError as error:
        raise EnergyUnread(f"NVML: {error}") from error
    return counter_j


def energy_of(
    replay: Callable[[], object],
    wait: Callable[[], object],
    counter_j: Callable[[], float],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> dict[str, float]:
    """{"joules": a replay's, idle power subtracted, "gross_w", "idle_w", "replays", "seconds"}.

    Both intervals last at least `seconds`.  Raises EnergyUnread where the counter stands still.
    """
    wait()
    sleep(SETTLE_S)
    idle_w, _, _ = _watts(lambda: sleep(BEAT_S), counter_j, seconds, clock)
    count = _replays_a_beat(replay, wait, clock)

    def beat() -> None:
        for _ in range(count):
            replay()
        wait()

    gross_w, beats, took_s = _watts(beat, counter_j, seconds, clock)
    replays = beats * count
    joules = (gross_w - idle_w) * took_s / replays
    return {"joules": joules, "gross_w": gross_w, "idle_w": idle_w, "replays": replays, "seconds": took_s}


def _replays_a_beat(replay: Callable[[], object], wait: Callable[[], object], clock: Callable[[], float]) -> int:
    count = 1
    while True:
        began = clock()
        for _ in range(count):
            replay()
        wait()
        took_s = clock() - began
        if took_s >= BEAT_S / 2:
            return max(1, round(count * BEAT_S / took_s))
        count *= 2


def _watts(
    body: Callable[[], object], counter_j: Callable[[], float], seconds: float, clock: Callable[[], float]
) -> tuple[float, int, float]:
    """(watts, runs of the body, seconds) from one step of the counter to another; the body runs all the while."""
    before_s, before_j = _next_step(body, counter_j, clock)[:2]
    beats, now_s = 0, before_s
    while now_s - before_s < seconds:
        body()
        beats, now_s = beats + 1, clock()
    after_s, after_j, more = _next_step(body, counter_j, clock)
    return (after_j - before_j) / (after_s - before_s), beats + more, after_s - before_s


def _next_step(
    body: Callable[[], object], counter_j: Callable[[], float], clock: Callable[[], float]
) -> tuple[float, float, int]:
    """(when, joules, runs of the body) at the counter's next step."""
    first, began, beats = counter_j(), clock(), 0
    while (now := counter_j()) == first:
        if clock() - began > STUCK_S:
            raise EnergyUnread("the GPU's energy counter stands still")
        body()
        beats += 1
    return clock(), now, beats
