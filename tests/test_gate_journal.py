"""An interrupted `gate` goes on where it stopped, and what it then says is what it would have said at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ir.drawn import FLASH, H200, PIPELINE
from theodolite import cli, pipeline, records
from theodolite.auditing.gates.every import GateJob, GateReport
from theodolite.auditing.manifest import Candidate, GateResult, Manifest
from theodolite.errors import RunError
from theodolite.gate_journal import GATES, GateJournal, digest
from theodolite.gpus import gpu
from theodolite.mapper.skeletons import mapping_of
from theodolite.workloads import workload

LOAD = workload("sdpa:b=1,h=2,l=32,s=32,d=16")
TEXTS = [PIPELINE, *(FLASH.replace("warps=4", f"warps={w}") for w in (1, 2, 4, 8))]


def lowered(text: str) -> Candidate:
    return pipeline.lower_one(pipeline.Asked(LOAD.name, LOAD, mapping_of(text, LOAD, H200), ("by hand",)), H200)


LOWERED = [lowered(text) for text in TEXTS]


class Gates:
    """In the place of the gates: reports that tell jobs apart, and the jobs that were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, job: GateJob) -> GateReport:
        key = digest(job)
        self.asked.append(key)
        figures = {"programs": len(key), "share": int(key[:4], 16) / 7, "digest": key}
        result = GateResult("made up", int(key, 16) % 3 > 0, f"\u2028 {key}\n[/]", figures)
        return GateReport((result,), {k.name: {"registers": len(k.name)} for k in job.program.kernels})


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Gates:
    made = Gates()
    monkeypatch.setattr(pipeline, "run_gates", made)
    monkeypatch.setattr(pipeline, "pool", lambda jobs: ThreadPoolExecutor(1))
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that waits for its gates."""
    return drafted(tmp_path / "run", LOWERED)


def drafted(directory: Path, candidates: list[Candidate], machine: str = "h200", seed: int = 0) -> Path:
    records.write(
        directory / pipeline.DRAFT, records.dump(pipeline.draft(candidates, gpu(machine), seed, {"space": 1}))
    )
    return directory


def keys(directory: Path) -> list[str]:
    """The jobs in a journal, whole rows or not."""
    return [line[8:72] for line in (directory / GATES).read_text().splitlines()]


def gate(directory: Path, monkeypatch: pytest.MonkeyPatch, interrupt_at: int | None = None) -> list[tuple[int, int]]:
    """What `theodolite gate` shows as progress; an interrupt comes once so many candidates are done."""
    shown: list[tuple[int, int]] = []

    def show(step: str, done: int, of: int) -> None:
        shown.append((done, of))
        if done == interrupt_at:
            raise KeyboardInterrupt

    @contextmanager
    def progress() -> Iterator[pipeline.Progress]:
        yield show

    monkeypatch.setattr(cli, "progress", progress)
    result = CliRunner().invoke(cli.app, ["gate", str(directory)])
    assert result.exit_code == (0 if interrupt_at is None else 130), result.output
    return shown


def test_resumed_equals_uninterrupted(run: Path, tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / pipeline.DRAFT).read_bytes()
    assert gate(run, monkeypatch, interrupt_at=2) == [(0, 5), (1, 5), (2, 5)]
    assert (run / pipeline.DRAFT).read_bytes() == before
    assert len(keys(run)) == 2
    gates.asked.clear()
    assert gate(run, monkeypatch, interrupt_at=4) == [(2, 5), (3, 5), (4, 5)]
    done = keys(run)
    gates.asked.clear()
    assert gate(run, monkeypatch) == [(4, 5), (5, 5)]
    assert len(done) == 4
    assert len(gates.asked) == 1
    assert gates.asked[0] not in done
    assert {p.name for p in run.iterdir()} == {pipeline.DRAFT}
    whole = drafted(tmp_path / "whole", LOWERED)
    gate(whole, monkeypatch)
    assert (run / pipeline.DRAFT).read_bytes() == (whole / pipeline.DRAFT).read_bytes()
    gated = records.load(Manifest, (run / pipeline.DRAFT).read_bytes(), "draft")
    assert [c.passed for c in gated.candidates] != [True] * 5
    assert all(c.gates and c.resources for c in gated.candidates)


def test_a_finished_gate_begins_anew(run: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    gate(run, monkeypatch)
    gates.asked.clear()
    assert gate(run, monkeypatch)[0] == (0, 5)
    assert len(gates.asked) == 5


@pytest.mark.parametrize("cut", [1, 2, 70, 200])
def test_a_torn_row_is_gated_again(run: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    gate(run, monkeypatch, interrupt_at=3)
    path = run / GATES
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    gates.asked.clear()
    assert gate(run, monkeypatch, interrupt_at=3)[0] == (2, 5)
    assert path.read_bytes() == whole  # the third was gated once more, and stands where it stood
    assert gates.asked[0] == keys(run)[2]


@pytest.mark.parametrize("broken", [b"\n", b"\0\0\0\n", b'{"job": 3}\n', b"\xff\n", b"[" * 9999 + b"\n"])
def test_what_is_behind_a_broken_row_is_gated_again(
    run: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    gate(run, monkeypatch, interrupt_at=3)
    rows = (run / GATES).read_bytes().splitlines(keepends=True)
    (run / GATES).write_bytes(rows[0] + broken + rows[1] + rows[2])
    assert gate(run, monkeypatch, interrupt_at=3) == [(1, 5), (2, 5), (3, 5)]
    assert sorted(keys(run)) == sorted(set(keys(run)))


def test_only_the_very_same_job_is_taken_from_a_journal(
    run: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program, a tree, a GPU or a seed that is another one has reports of its own."""
    gate(run, monkeypatch, interrupt_at=5)
    kept = GateJournal(run / GATES)
    first, *others = LOWERED
    longer = replace(first, program=replace(first.program, source=first.program.source + "# one more line\n"))
    other_tree = replace(first, mapping=first.mapping.replace("stages=2", "stages=3"))
    job = pipeline.gate_job
    assert set(kept.kept([job(c, H200, 0) for c in LOWERED])) == set(range(5))
    assert set(kept.kept([job(c, H200, 0) for c in (longer, *others)])) == {1, 2, 3, 4}
    assert set(kept.kept([job(c, H200, 0) for c in (other_tree, *others)])) == {1, 2, 3, 4}
    assert set(kept.kept([job(c, H200, 0) for c in reversed(LOWERED)])) == set(range(5))
    assert kept.kept([job(c, H200, 1) for c in LOWERED]) == {}
    assert kept.kept([job(c, gpu("rtx4090"), 0) for c in LOWERED]) == {}
    drafted(run, [longer, *others])
    gates.asked.clear()
    assert gate(run, monkeypatch) == [(4, 5), (5, 5)]
    assert gates.asked == [digest(job(longer, H200, 0))]


def test_a_report_reads_back_equal(tmp_path: Path, gates: Gates) -> None:
    journal = GateJournal(tmp_path / GATES)
    jobs = [pipeline.gate_job(c, H200, 0) for c in LOWERED]
    for job in jobs:
        journal.keep(job, gates(job))
    assert journal.kept(jobs) == {n: gates(job) for n, job in enumerate(jobs)}
    assert all(json.loads(line) for line in (tmp_path / GATES).read_text().splitlines())
    journal.discard()
    journal.discard()
    assert journal.kept(jobs) == {}


def test_what_cannot_be_kept_is_said(tmp_path: Path, gates: Gates) -> None:
    job = pipeline.gate_job(LOWERED[0], H200, 0)
    with pytest.raises(RunError, match=r"cannot be written: no such file$"):
        GateJournal(tmp_path / "nowhere" / GATES).keep(job, gates(job))
    with pytest.raises(RunError, match=r"cannot be written: no space left on device$"):
        GateJournal(Path("/dev/full")).keep(job, gates(job))
    with pytest.raises(RunError, match=r"cannot be read: it is a directory$"):
        GateJournal(tmp_path).kept([job])
