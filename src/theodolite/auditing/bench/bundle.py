"""The bundle: a directory that measures a manifest's candidates on a machine with Python, torch and triton alone.

run.py, harness/       what runs there (the standard library, torch and triton)
manifest.json          the frozen manifest
config.json            target, TTIR hashes, floors, protocol: see harness/spec.py, `Config`
kernels/<id>.py        each candidate's program, byte for byte
frozen.json            SHA-256 of every other file
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from theodolite import records
from theodolite.auditing.ids import input_record, kernel_id
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Samples
from theodolite.errors import Drift, RunError
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.workload import DTYPE_BYTES, Workload, points
from theodolite.workloads import workload as workload_named

AGAIN = "#again"
HERE = Path(__file__).parent
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=,+-]*")
Ttir = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Protocol:
    """How a bundle measures.  Times in seconds.

    rounds, least_rounds, slow_s: a candidate that takes longer than `slow_s` gets fewer rounds, at least the least.
    hold_cycles: GPU clocks for which the queue is held while it fills.  flush_l2_multiple: bytes written before each
    sample, in L2 capacities.  sample_overhead_s: flush and gaps, for planning only.  relative_norm: of the output's
    error, overall and in every head; 5e-3 finds a key block dropped, fp16 rounding is 2e-4.  fresh_graph_s: shorter
    candidates get a new graph instance every round.  energy_s: least length of an energy reading.  hang_limit_s: for
    which a process of the rounds may show no sign of life.  stop_grace_s: for the last look after a signal.
    """

    rounds: int = 300
    least_rounds: int = 20
    slow_s: float = 5e-3
    compile_limit_s: float = 90.0
    isolated_limit_s: float = 90.0
    hold_cycles: int = 2_000_000
    flush_l2_multiple: float = 2.5
    sample_overhead_s: float = 150e-6
    relative_norm: float = 5e-3
    unexplained_deaths: int = 3
    fresh_graph_s: float = 1e-3
    energy_s: float = 0.6
    hang_limit_s: float = 60.0
    stop_grace_s: float = 15.0


def write_bundle(
    manifest: Manifest, directory: Path, *, ttir: Ttir | None = None, protocol: Protocol | None = None
) -> None:
    """Write the bundle of a frozen manifest.

    `ttir`: SHA-256 of each kernel's TTIR by candidate id, made under the triton that the manifest's toolchain names
    ("triton"); left out, it is computed here, and every kernel_id with it.  Raises Drift where a kernel_id does not
    follow from its program, RunError for an id that is no file's name or a directory that holds something else.
    """
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty: give a new directory for the bundle")
    for candidate in manifest.candidates:
        if not ID.fullmatch(candidate.id):
            raise RunError(f"candidate id {candidate.id!r} cannot name a file: use letters, digits and . _ : = , + -")
    gpu = gpu_named(manifest.gpu)
    hashes = _hashes(manifest, gpu) if ttir is None else ttir
    config = {
        "gpu": gpu.name,
        "target": gpu.target,
        "triton": _triton(manifest),
        "seed": manifest.seed,
        "floors_s": {case: floor_s(workload_named(name), gpu) for case, name in manifest.cases.items()},
        "protocol": asdict(protocol or Protocol()),
        "ttir": hashes,
    }
    files = {f"kernels/{c.id}.py": c.program.source.encode() for c in manifest.candidates}
    files |= {f"harness/{p.name}": p.read_bytes() for p in sorted((HERE / "harness").glob("*.py"))}
    files["run.py"] = (HERE / "run.py").read_bytes()
    files["manifest.json"] = records.dump(manifest).encode()
    files["config.json"] = records.dump(config).encode()
    for name, data in files.items():
        records.write(directory / name, data)
    frozen = {"run_id": manifest.run_id, "files": {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}}
    records.write(directory / "frozen.json", records.dump(frozen))


def _triton(manifest: Manifest) -> str:
    if "triton" not in manifest.toolchain:
        raise RunError("the manifest's toolchain names no triton version: freeze it again with that which compiled it")
    return manifest.toolchain["triton"]


def _hashes(manifest: Manifest, gpu: Gpu) -> dict[str, dict[str, str]]:
    """SHA-256 of TTIR by candidate and kernel; Drift where a kernel_id is not that of its program."""
    import triton

    from theodolite.lowering.compile import ttir

    if triton.__version__ != _triton(manifest):
        raise Drift(f"frozen under triton {_triton(manifest)}, and this is {triton.__version__}: install the former")
    out = {}
    for candidate in (c for c in manifest.candidates if c.passed):  # the others never run, and may not even compile
        text = ttir(candidate.program, gpu.target)
        inputs = input_record(workload_named(manifest.cases[candidate.case]), manifest.seed)
        now, record = kernel_id(candidate.program, text, gpu.target, inputs)
        if now != candidate.kernel_id:
            frozen = candidate.kernel_id[:12]
            raise Drift(f"{candidate.id}: its program gives kernel_id {now[:12]}, the manifest says {frozen}")
        out[candidate.id] = dict(record["ttir"])
    return out


def floor_s(workload: Workload, gpu: Gpu) -> float:
    """Seconds below which no time is possible: inputs and outputs once over peak HBM, products over peak FLOP/s.

    A domain that is not understood counts no FLOPs: a floor may be low, never high.
    """
    outside = (*workload.inputs, *workload.outputs)
    moved_bytes = sum(math.prod(workload.shape(t)) * DTYPE_BYTES[workload.tensor(t).dtype] for t in outside)
    flop = sum(2 * points(e, workload) for e in workload.einsums if (e.map, e.reduce) == ("mul", "sum"))
    return max(moved_bytes / gpu.peak_hbm_bytes_per_s, flop / gpu.peak_flop_per_s)


def check_frozen(manifest: Manifest, directory: Path) -> None:
    """A bundle, or a run directory with one inside, still is what was frozen.

    Raises Drift naming the file that is missing, changed or new; RunError where there is nothing frozen to check.
    """
    bundle = directory if (directory / "frozen.json").exists() else directory / "bundle"
    if not (bundle / "frozen.json").exists():
        raise RunError(f"{directory} holds no bundle: write one with write_bundle")
    frozen = json.loads((bundle / "frozen.json").read_bytes())
    expected: dict[str, str] = dict(frozen["files"])
    for name, data in (("manifest.json", records.dump(manifest)), *_sources(manifest)):
        for folder in {bundle, directory}:
            path = folder / name
            if (folder == bundle or path.exists()) and (not path.exists() or path.read_bytes() != data.encode()):
                raise Drift(f"{path} is not what was frozen: freeze and write the bundle again")
    for name, digest in sorted(expected.items()):
        path = bundle / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise Drift(f"{path} is not what was frozen: freeze and write the bundle again")
    for path in sorted((*bundle.glob("harness/*"), *bundle.glob("kernels/*"))):
        if path.is_file() and path.relative_to(bundle).as_posix() not in expected:
            raise Drift(f"{path} was never frozen: remove it")


def _sources(manifest: Manifest) -> list[tuple[str, str]]:
    return [(f"kernels/{c.id}.py", c.program.source) for c in manifest.candidates]


def read_results(path: Path, manifest: Manifest | None = None) -> Samples:
    """The result file of a bundle's run, held against its manifest (by default the one beside it or one level up).

    Raises RunError for a file that is no result, another run's, one that leaves a candidate out or knows one too many;
    Drift for a kernel_id that is not the manifest's.
    """
    if manifest is None:
        manifest = _manifest_near(path)
    try:
        samples = records.load(Samples, gzip.decompress(path.read_bytes()), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if samples.format != FORMAT:
        raise RunError(f"{path} has format {samples.format}, not {FORMAT}: measure again with this version's bundle")
    if samples.run_id != manifest.run_id:
        raise RunError(f"{path} is of run {samples.run_id}, not {manifest.run_id}: give its own manifest")
    known: dict[str, Candidate] = {c.id: c for c in manifest.candidates}
    seen: list[str] = [t.candidate for t in samples.timings]
    for timing in samples.timings:
        if timing.candidate.removesuffix(AGAIN) not in known:
            raise RunError(f"{path} times {timing.candidate!r}, which is no candidate of the manifest")
        if timing.kernel_id != known[timing.candidate.removesuffix(AGAIN)].kernel_id:
            raise Drift(f"{path}: {timing.candidate} was measured as another kernel_id than the manifest's")
    missing = sorted(set(known) - set(seen))
    if missing or len(set(seen)) != len(seen):
        raise RunError(f"{path} does not account for each candidate once: {', '.join(missing) or 'some stand twice'}")
    return samples


def read_manifest(path: Path) -> Manifest:
    """manifest.json; RunError where there is none or it is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"no manifest at {path}: give a run directory") from error
    return records.load(Manifest, data, str(path))


def _manifest_near(path: Path) -> Manifest:
    for folder in (path.parent, path.parent.parent):
        if (folder / "manifest.json").exists():
            return read_manifest(folder / "manifest.json")
    raise RunError(f"no manifest.json beside {path}: give the run's manifest")
