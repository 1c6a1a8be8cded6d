"""Joules from a counter that moves in steps, on a GPU and a clock that are made up."""

from __future__ import annotations

import pytest

from theodolite.auditing.bench.harness.energy import EnergyUnread, energy_of

IDLE_W, BUSY_W, STEP_S = 120.0, 530.0, 0.1


class MadeUpGpu:
    """Replays take `replay_s` each, one after another; the counter shows what was true at its last step."""

    def __init__(self, replay_s: float, still: bool = False) -> None:
        self.now_s, self.joules, self.shown, self.stepped_s = 0.0, 0.0, 0.0, 0.0
        self.replay_s, self.still, self.queued_s = replay_s, still, 0.0

    def _pass(self, seconds: float, watts: float) -> None:
        while seconds > 0:
            part = min(seconds, self.stepped_s + STEP_S - self.now_s)
            self.now_s, self.joules, seconds = self.now_s + part, self.joules + part * watts, seconds - part
            if self.now_s >= self.stepped_s + STEP_S - 1e-12:
                self.stepped_s, self.shown = self.now_s, self.joules

    def replay(self) -> None:
        self.queued_s += self.replay_s

    def wait(self) -> None:
        self._pass(self.queued_s, BUSY_W)
        self.queued_s = 0.0

    def sleep(self, seconds: float) -> None:
        self._pass(seconds, IDLE_W)

    def counter_j(self) -> float:
        self._pass(1e-5, IDLE_W)
        return 0.0 if self.still else self.shown

    def clock(self) -> float:
        return self.now_s


@pytest.mark.parametrize("replay_s", [6.5e-6, 300e-6, 4e-3, 22e-3])
def test_joules_are_what_the_replays_took_above_idle(replay_s: float) -> None:
    gpu = MadeUpGpu(replay_s)
    found = energy_of(gpu.replay, gpu.wait, gpu.counter_j, 0.6, gpu.clock, gpu.sleep)
    assert found["idle_w"] == pytest.approx(IDLE_W, rel=0.03)
    assert found["joules"] == pytest.approx((BUSY_W - IDLE_W) * replay_s, rel=0.06)
    assert found["seconds"] >= 0.6
    assert found["replays"] * replay_s == pytest.approx(found["seconds"], rel=0.06)


def test_a_counter_that_stands_still_is_no_zero() -> None:
    gpu = MadeUpGpu(1e-3, still=True)
    with pytest.raises(EnergyUnread, match="stands still"):
        energy_of(gpu.replay, gpu.wait, gpu.counter_j, 0.6, gpu.clock, gpu.sleep)
