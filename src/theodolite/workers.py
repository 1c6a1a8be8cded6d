"""A pool of processes that does not outlive an interrupt."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


@contextmanager
def pool(jobs: int | None = None) -> Iterator[ProcessPoolExecutor]:
    """`jobs` processes, or as many as there are cores; an exception in the block ends them, at work or not.

    An executor by itself waits for what its processes are at, minutes of compiling, before it lets go.
    """
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(max_workers=jobs or os.cpu_count(), initializer=_ignore_interrupts)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    executor.shutdown()


def _ignore_interrupts() -> None:
    """A terminal interrupts all its processes; the parent alone answers, and ends these."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
