"""The folder beside the result file in which a run keeps what it finds out: one process at a time, new or resumed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .journal import whole_rows
from .phases import Refused

PARTIAL = ".partial"
JOURNAL, LOCK = "journal.jsonl", "lock"
LOCK_WAIT_S = 20.0  # for the children of a run that was killed to be gone


@contextmanager
def held(out: Path) -> Iterator[Path]:
    """The folder of runs to `out`, for this process and its children alone; made where there is none.

    Raises Refused for an `out` that can be no file, and where others hold the folder for long.
    """
    if not out.name or out.is_dir():
        raise Refused(f"--out {out} is a folder: give a file")
    folder = (out.parent.resolve() / out.name).with_name(out.name + PARTIAL)
    until = time.monotonic() + LOCK_WAIT_S
    while (descriptor := _locked(folder)) is None:
        if time.monotonic() > until:
            raise Refused(f"another process is measuring into {folder}: wait for it or stop it")
        time.sleep(0.1)
    try:
        yield folder
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the lock; None where another one has it, or took the folder away meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # removed between the two
        return None
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == (folder / LOCK).stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def begin(folder: Path, out: Path) -> None:
    """Make a held folder ready for a new run; Refused where there is a result, or a run to go on with."""
    if found_out(folder):
        raise Refused(f"a run to {out} was interrupted: go on with --resume, or remove {folder}")
    if out.exists():
        raise Refused(f"{out} holds a result: give another --out, or remove it")
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def resume(folder: Path, out: Path) -> None:
    """Refused where a held folder has no run to go on with."""
    if not whole_rows(folder / JOURNAL):
        done = f"{out} is complete" if out.exists() else f"no run to {out} was interrupted"
        raise Refused(f"nothing to resume: {done}")


def found_out(folder: Path) -> bool:
    """Whether a run's journal holds more than that it began."""
    return any("began" not in row for row in whole_rows(folder / JOURNAL))


def remove(folder: Path) -> None:
    """Take a held folder away at once: nobody sees half of it."""
    gone = folder.with_name(folder.name + "-done")
    shutil.rmtree(gone, ignore_errors=True)
    os.replace(folder, gone)
    shutil.rmtree(gone, ignore_errors=True)
