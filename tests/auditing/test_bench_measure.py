"""Results against their manifest, recordings against today's candidates, and what `measure` refuses."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.auditing import made_up
from theodolite import records
from theodolite.auditing.bench import measure as measuring
from theodolite.auditing.bench.bundle import check_frozen, read_results, write_bundle
from theodolite.auditing.bench.measure import attach, measure
from theodolite.auditing.manifest import Manifest, Samples, Timing
from theodolite.errors import Drift, RunError


def recording(folder: Path, manifest: Manifest, samples: Samples) -> Path:
    records.write(folder / "manifest.json", records.dump(manifest))
    records.write(folder / "samples.json.gz", gzip.compress(records.canonical(samples)))
    return folder


def three() -> tuple[Manifest, Samples]:
    manifest = made_up.manifest([made_up.candidate(n, {}) for n in ("a", "b", "c")])
    timings = [made_up.timing(c, 1e-5, seed=i) for i, c in enumerate(manifest.candidates)]
    return manifest, made_up.samples([*timings, made_up.timing(manifest.candidates[0], 1e-5, name="a#again")])


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    manifest, samples = three()
    assert read_results(recording(tmp_path, manifest, samples) / "samples.json.gz") == samples


def other_kernel(timing: Timing) -> Timing:
    return replace(timing, kernel_id="another")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda s: replace(s, run_id="run-2"), RunError, "run-2"),
        (lambda s: replace(s, format=9), RunError, "format 9"),
        (lambda s: replace(s, timings=s.timings[1:]), RunError, ": a"),
        (lambda s: replace(s, timings=(*s.timings, s.timings[0])), RunError, "twice"),
        (lambda s: replace(s, timings=(*s.timings, replace(s.timings[0], candidate="d"))), RunError, "'d'"),
        (lambda s: replace(s, timings=(*s.timings[:2], other_kernel(s.timings[2]), s.timings[3])), Drift, ": c "),
    ],
)
def test_results_that_do_not_fit_their_manifest_are_refused(
    tmp_path: Path, change: Callable[[Samples], Samples], error: type[Exception], says: str
) -> None:
    manifest, samples = three()
    recording(tmp_path, manifest, change(samples))
    with pytest.raises(error, match=says):
        read_results(tmp_path / "samples.json.gz")


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(b"{}"), gzip.compress(b"x" * 999)[:20]])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, data: bytes) -> None:
    manifest, _ = three()
    records.write(tmp_path / "results.json.gz", data)
    with pytest.raises(RunError, match=r"results\.json\.gz"):
        read_results(tmp_path / "results.json.gz", manifest)


def test_attach_matches_by_kernel_then_by_mapping_then_not_at_all(tmp_path: Path) -> None:
    manifest, samples = three()
    recording(tmp_path, manifest, samples)
    a, b, c = manifest.candidates
    now = replace(
        manifest,
        run_id="today",
        candidates=(
            replace(a, id="renamed", mapping="printed otherwise today"),
            replace(b, kernel_id="lowered otherwise today"),
            replace(c, kernel_id="new", mapping="new"),
        ),
    )
    found = {t.candidate: t for t in attach(now, tmp_path).timings}
    recorded = {t.candidate: t for t in samples.timings}
    assert found["renamed"] == replace(recorded["a"], candidate="renamed")
    assert found["renamed#again"] == replace(recorded["a#again"], candidate="renamed#again")
    assert found["b"] == replace(recorded["b"], detail="recorded lowering")
    assert (found["c"].status, found["c"].kernel_id, found["c"].samples_s) == ("UNMEASURED", "new", ())
    assert set(found) == {"renamed", "renamed#again", "b", "c"}


def test_attach_does_not_take_a_mapping_of_other_sizes_or_another_gpu(tmp_path: Path) -> None:
    manifest, samples = three()
    recording(tmp_path, manifest, samples)
    other = tuple(replace(c, kernel_id=f"new {c.id}") for c in manifest.candidates)
    now = replace(manifest, cases={"sdpa:A": "sdpa:b=1,h=8,l=256,s=128,d=64"}, candidates=other)
    assert {t.status for t in attach(now, tmp_path).timings} == {"UNMEASURED"}
    with pytest.raises(RunError, match="h200, not rtx4090"):
        attach(replace(manifest, gpu="rtx4090"), tmp_path)


def test_measure_needs_a_gpu_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = made_up.manifest([made_up.candidate("a", {})])
    records.write(tmp_path / "manifest.json", records.dump(manifest))
    with pytest.raises(RunError, match="no bundle"):
        measure(tmp_path)
    write_bundle(manifest, tmp_path / "bundle", ttir={"a": {"copy": "0"}})
    monkeypatch.setattr(measuring.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="torch sees no GPU here"):
        measure(tmp_path)


def test_a_run_directory_that_drifted_is_refused(tmp_path: Path) -> None:
    manifest = made_up.manifest([made_up.candidate("a", {})])
    write_bundle(manifest, tmp_path / "bundle", ttir={"a": {"copy": "0"}})
    records.write(tmp_path / "kernels" / "a.py", manifest.candidates[0].program.source)
    check_frozen(manifest, tmp_path)
    with pytest.raises(Drift, match=r"manifest\.json"):
        check_frozen(replace(manifest, seed=1), tmp_path)
    records.write(tmp_path / "kernels" / "a.py", manifest.candidates[0].program.source + "#")
    with pytest.raises(Drift, match=r"kernels/a\.py"):
        check_frozen(manifest, tmp_path)
