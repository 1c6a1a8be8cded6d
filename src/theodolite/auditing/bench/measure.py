"""`measure`: run a frozen bundle on this machine's GPU.  `attach`: bring earlier samples to today's candidates."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from theodolite.auditing.bench.bundle import AGAIN, check_frozen, read_manifest, read_results
from theodolite.auditing.manifest import Candidate, Manifest, Samples, Timing
from theodolite.errors import RunError

SAMPLES = "samples.json.gz"
RECORDED_LOWERING = "recorded lowering"  # the phrase by which a judge tells that another lowering was timed
UNMEASURED = "UNMEASURED"


def measure(run_directory: Path, arguments: Sequence[str] = ()) -> Samples:
    """Run the bundle of a run directory and keep what comes back as samples.json.gz in it.

    `arguments` go to run.py (--resume, --limit-s, --rounds, --only, --l2, --again, --joules).  What it prints is shown
    as it comes.  Raises Drift where anything frozen changed, RunError without a GPU or where the run leaves no result.
    """
    manifest = read_manifest(run_directory / "manifest.json")
    check_frozen(manifest, run_directory)
    _need_gpu()
    out = (run_directory / SAMPLES).resolve()
    before = out.stat().st_mtime_ns if out.exists() else None
    command = [sys.executable, str(run_directory / "bundle" / "run.py"), "--out", str(out), *arguments]
    code = _to_the_end(command)
    if not out.exists() or out.stat().st_mtime_ns == before:
        raise RunError(f"run.py ended with {code} and left no result: see what it printed")
    return read_results(out, manifest)


def _to_the_end(command: Sequence[str]) -> int:
    """The exit code of a command, which an interrupt reaches as well: it is given the time to write what it has."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # a second interrupt ends the waiting
            raise


def gpu_here() -> str | None:
    """The name of the GPU that torch sees here, or None; asked in a process of its own, which may load CUDA."""
    if importlib.util.find_spec("torch") is None:
        return None
    probe = [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())"]
    answer = subprocess.run(probe, check=False, capture_output=True, text=True)
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def is_gpu(device: str | None, name: str) -> bool:
    """Whether a device's name ("NVIDIA GeForce RTX 4090") is that of a known GPU ("rtx4090")."""
    return device is not None and name.lower() in device.lower().replace(" ", "")


def _need_gpu() -> None:
    """RunError where torch is missing or sees no GPU."""
    if gpu_here() is None:
        raise RunError("torch sees no GPU here: copy the run's bundle to a machine with one, run `python run.py` there")


def attach(manifest: Manifest, recorded_directory: Path) -> Samples:
    """Recorded samples under the ids of today's candidates.

    A candidate finds its timing by kernel_id; failing that by workload and mapping, and then says "recorded lowering"
    in its detail and keeps the kernel_id that was timed.  Others are UNMEASURED.  The record keeps its own run_id.
    Raises RunError where the recording is unreadable or of another GPU.
    """
    recorded = read_manifest(recorded_directory / "manifest.json")
    samples = read_results(recorded_directory / SAMPLES, recorded)
    if recorded.gpu != manifest.gpu:
        raise RunError(f"{recorded_directory} was measured on {recorded.gpu}, not {manifest.gpu}")
    timings = {t.candidate: t for t in samples.timings}
    by_kernel = _first_good(recorded, timings, lambda c: c.kernel_id)
    by_mapping = _first_good(recorded, timings, lambda c: f"{recorded.cases[c.case]}\n{c.mapping}")
    out: list[Timing] = []
    for candidate in manifest.candidates:
        same = by_kernel.get(candidate.kernel_id)
        found = same or by_mapping.get(f"{manifest.cases[candidate.case]}\n{candidate.mapping}")
        if found is None:
            out.append(_unmeasured(candidate))
            continue
        for suffix in ("", AGAIN):
            if timing := timings.get(found + suffix):
                detail = timing.detail if same else f"{RECORDED_LOWERING}; {timing.detail}".removesuffix("; ")
                out.append(replace(timing, candidate=candidate.id + suffix, detail=detail))
    environment = {**samples.environment, "attached_to": manifest.run_id}
    return replace(samples, environment=environment, timings=tuple(out))


def _first_good(recorded: Manifest, timings: dict[str, Timing], key: Callable[[Candidate], str]) -> dict[str, str]:
    """Recorded candidate by key; one that was measured goes before one that was not, an earlier before a later."""
    ordered = sorted(recorded.candidates, key=lambda c: timings[c.id].status != "ok")
    return {key(c): c.id for c in reversed(ordered)}


def _unmeasured(candidate: Candidate) -> Timing:
    return Timing(candidate.id, candidate.kernel_id, UNMEASURED, "not in the recording", (), ())
