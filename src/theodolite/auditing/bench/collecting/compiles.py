"""Every unique kernel compiled in a process of its own under a short limit, many at a time, without ever waiting."""

from __future__ import annotations

import functools
import select
import time
from collections import deque
from collections.abc import Sequence

from ..harness.jobs import Child, Ended
from .device import GridDevice
from .grid import Unit


class Compiles:
    """A pool that is asked again and again; past the deadline it kills what runs and starts nothing more."""

    def __init__(
        self, device: GridDevice, units: Sequence[Unit], workers: int, limit_s: float, deadline: float
    ) -> None:
        self._device, self._workers, self._limit_s, self.deadline = device, workers, limit_s, deadline
        self._waiting = deque(units)
        self._running: dict[int, Child] = {}

    @property
    def done(self) -> bool:
        return not self._waiting and not self._running

    @property
    def filenos(self) -> list[int]:
        return [c.fileno for c in self._running.values()]

    def step(self) -> list[tuple[int, Ended]]:
        """(kernel's number, how it ended) of those that ended since; starts others in their place."""
        if time.monotonic() > self.deadline:
            return self._give_up()
        ended = []
        for number, child in list(self._running.items()):
            if (how := child.poll()) is not None:
                del self._running[number]
                ended.append((number, how))
        while self._waiting and len(self._running) < self._workers:
            unit = self._waiting.popleft()
            self._running[unit.number] = Child(functools.partial(self._device.compile_unit, unit), self._limit_s)
        return ended

    def _give_up(self) -> list[tuple[int, Ended]]:
        late = Ended("timeout", detail="not compiled within its share of the time limit")
        numbers = [*self._running, *(u.number for u in self._waiting)]
        self.close()
        return [(n, late) for n in numbers]

    def close(self) -> None:
        for child in self._running.values():
            child.kill()
        self._running.clear()
        self._waiting.clear()


def pause(filenos: Sequence[int], seconds: float) -> None:
    """Until one of them says something, at most so long."""
    if filenos:
        select.select(filenos, [], [], seconds)
    else:
        time.sleep(seconds)
