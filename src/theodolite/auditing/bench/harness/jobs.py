"""Forked children that may crash, hang, or lose their GPU context, and harm nobody but themselves.

The parent never initialises CUDA: a forked child can then do so for itself, with torch and triton already imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MESSAGE_CHARS = 600
PR_SET_PDEATHSIG = 1  # of Linux's prctl
STOPPING = (signal.SIGINT, signal.SIGTERM)
GONE_S = 10.0  # for a killed child to be gone: one that hangs in a driver is not waited for any longer


@dataclass(frozen=True)
class Ended:
    """How a child ended.  `value` is what it returned; `detail` its exception, signal or limit in words."""

    kind: Literal["returned", "raised", "died", "timeout"]
    value: Any = None
    detail: str = ""


class Child:
    """One function in a process of its own, in a process group that can be killed whole (compilers included)."""

    def __init__(self, function: Callable[[], Any], limit_s: float) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._received = bytearray()
        self._reader, writer = os.pipe()
        parent = os.getpid()
        # a signal that comes in between is for the parent: no child may take it for its own
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _body(function, writer, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)

    @property
    def fileno(self) -> int:
        """Readable when the child has said something or ended."""
        return self._reader

    def poll(self) -> Ended | None:
        """How it ended, or None while it runs.  Past its limit it is killed."""
        while select.select([self._reader], [], [], 0)[0]:
            part = os.read(self._reader, 1 << 16)
            if not part:
                return self._reap()
            self._received += part
        if time.monotonic() > self.deadline:
            self.kill()
            return Ended("timeout", detail=f"killed after {self._limit_s:.0f} s")
        return None

    def kill(self) -> None:
        """Kill it and whatever it started, and wait until it is gone."""
        for kill in (os.killpg, os.kill):  # the group may not exist yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        self._wait()
        os.close(self._reader)

    def _wait(self) -> int:
        until = time.monotonic() + GONE_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < until:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    return status
                time.sleep(0.002)
        return 0

    def _reap(self) -> Ended:
        status = self._wait()
        os.close(self._reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        try:
            kind, value = pickle.loads(bytes(self._received))
        except (pickle.UnpicklingError, EOFError, ValueError):
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
            return Ended("died", detail=how)
        return Ended("returned", value) if kind == "returned" else Ended("raised", detail=value)


def _die_with(parent: int) -> None:
    """A parent that is killed takes its children along: none goes on measuring for nobody."""
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        os._exit(0)


def _body(function: Callable[[], Any], writer: int, parent: int) -> None:
    """The child's whole life.  It leaves by _exit: an orderly exit may hang in a broken CUDA context."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _die_with(parent)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        try:
            message = pickle.dumps(("returned", function()))
        except BaseException as error:
            text = " ".join(str(error).split())
            message = pickle.dumps(("raised", f"{type(error).__name__}: {text[:MESSAGE_CHARS]}"))
        sys.stdout.flush()
        sys.stderr.flush()
        view = memoryview(message)
        while view:
            view = view[os.write(writer, view) :]
    finally:
        os._exit(0)


def wait(child: Child, tick: Callable[[], None] | None = None) -> Ended:
    """Until the child ends; `tick` is called about every quarter of a second."""
    try:
        while (ended := child.poll()) is None:
            select.select([child.fileno], [], [], 0.25)
            if tick is not None:
                tick()
        return ended
    except BaseException:  # an interrupt: no child may outlive it
        child.kill()
        raise


def run_many(
    functions: Sequence[Callable[[], Any]], workers: int, limit_s: float, deadline: float
) -> Iterator[tuple[int, Ended]]:
    """(position, how it ended) as children end, at most `workers` at a time; none starts past the deadline."""
    return run_seated([functools.partial(_unseated, f) for f in functions], workers, limit_s, deadline)


def _unseated(function: Callable[[], Any], seat: int) -> Any:
    return function()


def run_seated(
    functions: Sequence[Callable[[int], Any]], seats: int, limit_s: float, deadline: float
) -> Iterator[tuple[int, Ended]]:
    """As `run_many`; each function is told its seat, 0 to `seats` - 1, which nobody else has meanwhile."""
    waiting, running = list(enumerate(functions)), dict[int, tuple[int, Child]]()
    try:
        while waiting or running:
            for seat in sorted({*range(seats)} - set(running)):
                if not waiting:
                    break
                position, function = waiting.pop(0)
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    yield position, Ended("timeout", detail="no time was left to start it")
                    continue
                running[seat] = (position, Child(functools.partial(function, seat), min(limit_s, left_s)))
            if running:
                select.select([c.fileno for _, c in running.values()], [], [], 0.1)
            for seat, (position, child) in list(running.items()):
                if (ended := child.poll()) is not None:
                    del running[seat]
                    yield position, ended
    finally:
        for _, child in running.values():
            child.kill()
