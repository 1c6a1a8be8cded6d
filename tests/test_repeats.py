"""Two runs of the same candidates, each timed twice in each: do verdicts stand, and does one kernel equal itself?"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from pathlib import Path

import pytest

from theodolite.auditing.bench.bundle import read_manifest, read_results
from theodolite.auditing.judge import Sound, sound_samples
from theodolite.auditing.manifest import Manifest
from theodolite.auditing.verdict import Faster, Thresholds, compare_family

DATA = Path(__file__).parent.parent / "data" / "repeats"
RUNS = (DATA / "h200-2026-11-30-doubled-1", DATA / "h200-2026-11-30-doubled-2")
CLEAR_GAP = 0.03
Pairs = dict[tuple[str, str, str], Faster | None]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(RUNS[0] / "manifest.json")


@pytest.fixture(scope="module")
def runs(manifest: Manifest) -> list[Sound]:
    found = [read_results(run / "samples.json.gz", manifest) for run in RUNS]
    assert found[0].environment["started_unix_s"] != found[1].environment["started_unix_s"]
    return [sound_samples(manifest, samples, False, Thresholds()) for samples in found]


@pytest.fixture(scope="module")
def verdicts(manifest: Manifest, runs: list[Sound]) -> list[Pairs]:
    """What each run says of every pair of a case, all of them one family."""
    out = []
    for sound in runs:
        pairs = [(case, a, b) for case in manifest.cases for a, b in itertools.combinations(measured(sound, case), 2)]
        seen = compare_family([sound.paired(*pair) for pair in pairs], tick_s=sound.tick_s)
        out.append({pair: one.faster if one else None for pair, one in zip(pairs, seen, strict=True)})
    return out


def measured(sound: Sound, case: str) -> list[str]:
    return [m.candidate for m in sound.measured.values() if m.case == case and m.status == "MEASURED"]


def gap(sound: Sound, a: str, b: str) -> float:
    medians = sorted(statistics.median(sound.series[name]) for name in (a, b))
    return medians[1] / medians[0] - 1


def test_one_kernel_is_never_faster_than_itself(runs: list[Sound]) -> None:
    outcomes = Counter(same.verdict.outcome for sound in runs for same in sound.same)
    assert outcomes.total() > 100
    assert outcomes["UNRESOLVED"] >= 0.99 * outcomes.total()


def test_clear_gaps_are_resolved_in_each_run(runs: list[Sound], verdicts: list[Pairs]) -> None:
    for sound, found in zip(runs, verdicts, strict=True):
        clear = [faster for (_, a, b), faster in found.items() if gap(sound, a, b) > CLEAR_GAP]
        assert len(clear) > 500
        assert sum(f is not None for f in clear) >= 0.95 * len(clear)


def test_no_two_resolved_verdicts_disagree(verdicts: list[Pairs]) -> None:
    first, second = verdicts
    both = [(first[pair], second[pair]) for pair in first if first[pair] and second[pair]]
    assert len(both) > 500
    assert all(one == other for one, other in both)
