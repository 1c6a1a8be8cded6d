"""A grid's ids, derived anew from the texts that are kept in it."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from theodolite import cli, records
from theodolite.auditing.bench.grid_bundle import CANDIDATES, GridManifest, read_grid_manifest
from theodolite.collect import verify_grid
from theodolite.errors import RunError

RECORDED = Path(__file__).parent.parent / "data" / "grids" / "h200-2026-11-30"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grid") / "bundle"
    words = ["collect", "sdpa:A", "--count", "3", "--family", "flash", "--check", "0", "--least", "bm=64"]
    cli.app([*words, "--out", str(out)], standalone_mode=False)
    return out


def with_changes(grid: Path, folder: Path, change: object) -> Path:
    """A copy whose manifest is changed and signed anew, as a forger would."""
    manifest = change(read_grid_manifest(grid / CANDIDATES))  # type: ignore[operator]
    manifest = replace(manifest, run_id="")
    manifest = replace(manifest, run_id=records.digest(manifest)[:12])
    records.write(folder / CANDIDATES, gzip.compress(records.canonical(manifest), mtime=0))
    return folder


def test_the_recorded_grid_follows_from_what_is_kept() -> None:
    assert verify_grid(RECORDED) == (1760, [])


def test_a_fresh_grid_verifies_on_the_command_line(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["verify", str(grid)], standalone_mode=False)
    assert "3 candidates, 0 faults" in capsys.readouterr().out


def test_another_text_under_a_new_signature_is_found(grid: Path, tmp_path: Path) -> None:
    def change(manifest: GridManifest) -> GridManifest:
        return replace(manifest, texts=tuple(t.replace("tl.exp2(", "tl.exp(") for t in manifest.texts))

    _, faults = verify_grid(with_changes(grid, tmp_path, change))
    assert any("other TTIR" in f for f in faults)
    assert any("kernel_id is" in f for f in faults)


def test_another_grid_size_under_a_new_signature_is_found(grid: Path, tmp_path: Path) -> None:
    def change(manifest: GridManifest) -> GridManifest:
        first = manifest.candidates[0]
        launch = replace(first.launches[0], grid=(1, 1, 1))
        return replace(manifest, candidates=(replace(first, launches=(launch,)), *manifest.candidates[1:]))

    count, faults = verify_grid(with_changes(grid, tmp_path, change))
    assert count == 3
    assert len(faults) == 1
    assert "kernel_id is" in faults[0]


def test_a_changed_file_is_refused(grid: Path, tmp_path: Path) -> None:
    manifest = replace(read_grid_manifest(grid / CANDIDATES), seed=7)
    records.write(tmp_path / CANDIDATES, gzip.compress(records.canonical(manifest), mtime=0))
    with pytest.raises(RunError, match="was changed"):
        verify_grid(tmp_path)
