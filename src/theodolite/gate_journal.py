"""Gate reports kept as they come, so that an interrupted `gate` goes on where it stopped.

A row is one report and a digest of all that its gates see; a program, tree, GPU or seed that has changed since has no
row.  A row that was cut short, and whatever is behind it, is taken away and gated anew.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from theodolite import records
from theodolite.auditing.gates.every import GateJob, GateReport
from theodolite.errors import RunError, plain_reason
from theodolite.ir.text import show

GATES = "gates.jsonl"


@dataclass(frozen=True)
class Row:
    """What the gates said of the job with this digest."""

    job: str
    report: GateReport


def digest(job: GateJob) -> str:
    """SHA-256 of all that the gates see of a candidate."""
    seen = {"tree": show(job.tree), "workload": job.workload, "program": job.program, "gpu": job.gpu, "seed": job.seed}
    return records.digest(seen)


@dataclass(frozen=True)
class GateJournal:
    """One file of rows, appended to.  RunError where it can neither be read nor written."""

    path: Path

    def kept(self, jobs: Sequence[GateJob]) -> dict[int, GateReport]:
        """The reports that are there already, by the job's place; the file then ends with its last whole row."""
        found = {row.job: row.report for row in self._rows()}
        keys = [digest(job) for job in jobs]
        return {n: found[key] for n, key in enumerate(keys) if key in found}

    def keep(self, job: GateJob, report: GateReport) -> None:
        """Append a row in one piece."""
        data = records.canonical(Row(digest(job), report)) + b"\n"
        try:
            with self.path.open("ab", buffering=0) as file:
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {plain_reason(error)}") from error

    def discard(self) -> None:
        """The reports are elsewhere now."""
        self.path.unlink(missing_ok=True)

    def _rows(self) -> list[Row]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {plain_reason(error)}") from error
        rows: list[Row] = []
        whole = 0
        for line in data.splitlines(keepends=True):
            try:
                if not line.endswith(b"\n"):
                    break
                rows.append(records.load(Row, line, str(self.path)))
            except RunError:
                break
            whole += len(line)
        if whole < len(data):
            os.truncate(self.path, whole)
        return rows
