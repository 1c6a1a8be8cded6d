"""Ctrl-C: one line, exit code 130, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from theodolite.workers import pool

COMMAND = [sys.executable, "-m", "theodolite.cli"]


def group_of(leader: int) -> list[int]:
    """Processes of a group that are alive, and those that they began in sessions of their own."""
    alive, found = {}, [leader]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                alive[int(path.parent.name)] = (int(parent), int(group))
    for pid in found:
        found += [p for p, (parent, _) in alive.items() if parent == pid]
    return sorted({p for p, (_, group) in alive.items() if group == leader} | (set(found) & set(alive)))


@pytest.mark.parametrize("verb", ["gate", "audit"])
def test_an_interrupt_ends_everything_at_once(tmp_path: Path, verb: str) -> None:
    """Ctrl-C reaches the whole group of the terminal, while both workers are at a compile or an interpreted kernel."""
    words = [
        "audit",
        "sdpa:A",
        "--runs",
        str(tmp_path / "runs"),
        "--data",
        str(tmp_path),
        "--top",
        "2",
        "--random",
        "6",
    ]
    if verb == "gate":
        words = ["gate", str(tmp_path / "run")]
        lower = ["lower", "sdpa:A", "--out", words[1], "--top", "2", "--random", "6"]
        subprocess.run([*COMMAND, *lower], check=True, capture_output=True, timeout=120)
    command = [*COMMAND, *words, "--jobs", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 90
        while len(group_of(process.pid)) < 5:  # itself, two workers, and what these began
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        before = group_of(process.pid)
        asked = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        took_s = time.monotonic() - asked
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (130, "")
    assert err == "theodolite: interrupted; nothing is kept but what a run directory already holds\n"
    assert took_s < 5  # it takes a fraction of a second; the machine may be busy
    deadline = time.monotonic() + 10
    while left := [p for p in before if Path(f"/proc/{p}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert not (tmp_path / "runs").exists()


def test_workers_leave_an_interrupt_to_their_parent() -> None:
    with pool(1) as processes:
        assert processes.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
