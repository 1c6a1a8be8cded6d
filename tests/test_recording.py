"""A recording is judged and reported as it lies there, and nothing is written into it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from theodolite import pipeline
from theodolite.cli import app
from theodolite.errors import Drift, RunError

RECORDED = Path(__file__).parent.parent / "data" / "looptrees" / "h200-case-a-2026-11-30"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    shutil.copytree(RECORDED, tmp_path / "recording")
    return tmp_path / "recording"


def test_it_is_judged_and_stays_as_it_is(recording: Path) -> None:
    before = {p.name: p.read_bytes() for p in recording.iterdir()}
    judged = CliRunner().invoke(app, ["judge", str(recording), "--json"])
    assert judged.exit_code == 0
    assert len(json.loads(judged.stdout)["rankings"]) == 2
    assert {p.name: p.read_bytes() for p in recording.iterdir()} == before


def test_its_report_goes_elsewhere(recording: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in recording.iterdir())
    with pytest.raises(RunError, match="--out"):
        pipeline.report(recording)
    out = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(recording), "--out", str(out)]).exit_code == 0
    assert "CORRECTED" in out.read_text()
    assert sorted(p.name for p in recording.iterdir()) == before


def test_a_changed_source_in_it_is_drift(recording: Path) -> None:
    path = recording / "manifest.json"
    path.write_text(path.read_text().replace("tl.exp2", "tl.exp", 1))
    with pytest.raises(Drift, match="no longer gives its run_id"):
        pipeline.judge(recording)


def test_without_samples_a_bundle_is_still_asked_for(recording: Path) -> None:
    (recording / "samples.json.gz").unlink()
    with pytest.raises(RunError, match="holds no bundle"):
        pipeline.judge(recording)
