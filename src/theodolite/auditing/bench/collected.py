"""What a grid bundle brought back, as frozen records, and a summary of it."""

from __future__ import annotations

import gzip
import math
import statistics
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite import records
from theodolite.auditing.bench.grid_bundle import GridManifest
from theodolite.errors import Drift, RunError

FORMAT = 1


@dataclass(frozen=True)
class CollectedTiming:
    """One candidate.  `samples_ns` in the order of the rounds; `quick_ns` are the two times before them.

    `status` is "ok" or what went wrong, and `detail` says more.  `again_ns` are a second slot's samples of the very
    same kernels: two readings of one truth.  `checked` says what was proved before anything ran.
    """

    candidate: str
    workload: str
    schedule: str
    kernel_id: str
    checked: str
    status: str
    detail: str
    figures: Mapping[str, int | float | str]
    resources: Mapping[str, int]
    quick_ns: tuple[int, ...]
    samples_ns: tuple[int, ...]
    again_ns: tuple[int, ...]

    @property
    def seconds(self) -> float | None:
        """The median of the rounds; None where the candidate was not measured."""
        return statistics.median(self.samples_ns) * 1e-9 if self.status == "ok" else None


@dataclass(frozen=True)
class Collected:
    """One run of a grid bundle."""

    format: int
    run_id: str
    gpu: str
    seed: int
    floors_s: Mapping[str, float]
    environment: Mapping[str, Any]
    timings: tuple[CollectedTiming, ...]

    def of(self, workload: str) -> tuple[CollectedTiming, ...]:
        return tuple(t for t in self.timings if t.workload == workload)

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(t.workload for t in self.timings))


@dataclass(frozen=True)
class WorkloadSummary:
    """Counts by status, and the best of those measured: its schedule, seconds and how far they are above the floor.

    `again_relative` is how far the medians of the two slots of one candidate lie apart, None where there are none.
    """

    workload: str
    statuses: Mapping[str, int]
    best: str | None
    best_s: float | None
    floor_ratio: float | None
    again_relative: float | None


def read_collected(path: Path, manifest: GridManifest | None = None) -> Collected:
    """Read a result back; with its manifest, hold it against that.

    Raises RunError for a file that is no result, contradicts itself or is another run's; Drift for an id that is not
    the manifest's.
    """
    try:
        found = records.load(Collected, gzip.decompress(path.read_bytes()), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if found.format != FORMAT:
        raise RunError(f"{path} has format {found.format}, not {FORMAT}: collect again with this version's bundle")
    if len({t.candidate for t in found.timings}) != len(found.timings):
        raise RunError(f"{path} names a candidate twice")
    for timing in found.timings:
        if (timing.status == "ok") and not (timing.samples_ns and min(timing.samples_ns) > 0):
            raise RunError(f"{path}: {timing.candidate} is ok without samples")
        if timing.workload not in found.floors_s:
            raise RunError(f"{path}: {timing.candidate} is of {timing.workload}, which the run does not know")
    if manifest is not None:
        _hold_against(found, manifest, path)
    return found


def _hold_against(found: Collected, manifest: GridManifest, path: Path) -> None:
    if (found.run_id, found.gpu) != (manifest.run_id, manifest.gpu):
        raise RunError(f"{path} is of run {found.run_id} on {found.gpu}, not {manifest.run_id} on {manifest.gpu}")
    frozen = {c.id: (c.workload, c.schedule, c.kernel_id, c.checked) for c in manifest.candidates}
    for t in found.timings:
        if frozen.get(t.candidate) != (t.workload, t.schedule, t.kernel_id, t.checked):
            raise Drift(f"{path}: {t.candidate} is not what was frozen")
    if missing := sorted(set(frozen) - {t.candidate for t in found.timings}):
        raise RunError(f"{path} leaves out {len(missing)} candidates, the first is {missing[0]}")


def summary(collected: Collected) -> tuple[WorkloadSummary, ...]:
    """One line a workload, in the order of the run."""
    return tuple(_summary(collected, w) for w in collected.workloads)


def _summary(collected: Collected, workload: str) -> WorkloadSummary:
    timings = collected.of(workload)
    statuses = dict(sorted(Counter(t.status for t in timings).items()))
    measured = [(t.seconds, t.candidate, t) for t in timings if t.seconds is not None]
    if not measured:
        return WorkloadSummary(workload, statuses, None, None, None, None)
    seconds, _, best = min(measured)
    apart = [abs(math.log(statistics.median(t.again_ns) * 1e-9 / s)) for s, _, t in measured if t.again_ns]
    ratio = seconds / collected.floors_s[workload]
    return WorkloadSummary(workload, statuses, best.schedule, seconds, ratio, max(apart, default=None))
