"""`collect`: thousands of schedules of several workloads, chosen, lowered and frozen into one grid bundle.

    choose --> lower --> check a sample --> TTIR of each unique kernel --> freeze --> bundle

All candidates get a kernel_id here.  The gates of `audit` take seconds a candidate, so that only a random sample passes
through them; every candidate's record says whether it did, and the GPU checks the numerics of all.  A sampled
candidate that fails a gate stops the whole: something is wrong with what was not sampled too.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from theodolite.auditing.bench.collected import read_collected
from theodolite.auditing.bench.grid_bundle import (
    CANDIDATES,
    GridManifest,
    GridProtocol,
    Lowered,
    freeze_grid,
    read_grid_manifest,
    unique_kernels,
    write_grid,
)
from theodolite.auditing.gates.every import GateJob, GateReport, run_gates
from theodolite.auditing.ids import input_record, kernel_id
from theodolite.errors import KernelError, RunError, TextError, one_of
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.realise import realise
from theodolite.ir.workload import Workload
from theodolite.lowering.compile import Target, ttir
from theodolite.lowering.lower import lower
from theodolite.lowering.plan import KernelSpec, Program
from theodolite.mapper.scatter import at_random, check_least, in_order
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule
from theodolite.mapper.skeletons import mapping
from theodolite.pipeline import Progress, silent, toolchain
from theodolite.workers import pool
from theodolite.workloads import workload as workload_named

CHECKED = "compiles, launches, fidelity, numerics"
ALL = "all"
RESULT = "collected.json.gz"


@dataclass(frozen=True)
class Asking:
    """What is to be collected.

    count: candidates a workload.  pipelines: their part of it under family "all".  grid: all points in order, evenly
    thinned to the count, in place of random ones.  least: lower ends of decisions.  check: how many candidates of all
    pass through every gate here.  workspace_bytes: candidates with larger workspaces are left out.
    """

    workloads: Sequence[str]
    gpu: str = "h200"
    count: int = 200
    seed: int = 0
    family: str = ALL
    pipelines: float = 0.25
    grid: bool = False
    least: Mapping[str, int] = field(default_factory=dict)
    check: int = 12
    workspace_bytes: int = 16 << 30


def collect(asking: Asking, directory: Path, jobs: int | None = None, progress: Progress = silent) -> GridManifest:
    """Choose, lower, check, freeze and write the bundle."""
    gpu = gpu_named(asking.gpu)
    lowered = check_sample(choose(asking, gpu, progress), asking, gpu, jobs, progress)
    kernels = unique_kernels(lowered)
    texts = dict(zip(kernels, ttir_of(list(kernels.values()), gpu.target, jobs, progress), strict=True))
    manifest = freeze_grid(lowered, texts, gpu, toolchain()["triton"], asking.seed, GridProtocol())
    write_grid(manifest, directory)
    return manifest


# ---- choose ------------------------------------------------------------------------------------------------------
def choose(asking: Asking, gpu: Gpu, progress: Progress = silent) -> list[Lowered]:
    """The candidates, workloads taking turns: whatever a time limit cuts off, it cuts off of all of them."""
    check_least(asking.least)
    names = list(dict.fromkeys(workload_named(w).name for w in asking.workloads))
    rows = []
    for n, name in enumerate(names):
        progress("choose", n, len(names))
        rows.append(_chosen(workload_named(name), asking, gpu))
    progress("choose", len(names), len(names))
    turns = itertools.zip_longest(*rows)
    return [one for turn in turns for one in turn if one is not None]


def counts(asking: Asking) -> dict[str, int]:
    """Candidates a workload, by family."""
    if asking.family == ALL:
        if not 0 <= asking.pipelines <= 1:
            raise TextError(f"the part of pipelines lies between 0 and 1, not at {asking.pipelines}")
        pipelines = round(asking.count * asking.pipelines)
        return {"flash": asking.count - pipelines, "pipeline": pipelines}
    if asking.family not in FAMILIES:
        raise one_of("family", asking.family, [*FAMILIES, ALL])
    return {asking.family: asking.count}


def _chosen(workload: Workload, asking: Asking, gpu: Gpu) -> list[Lowered]:
    """One workload's candidates, the families in a random order among each other."""
    found: list[Lowered] = []
    for family, count in counts(asking).items():
        least = {k: v for k, v in asking.least.items() if k in {d.key for d in FAMILIES[family]}}
        if asking.grid:
            fitting = list(_lowered(in_order(family, workload, gpu, least), workload, gpu, asking.workspace_bytes))
            step = max(1.0, len(fitting) / max(1, count))
            found += [fitting[int(n * step)] for n in range(min(count, len(fitting)))]
        else:
            drawn = at_random(family, workload, gpu, asking.seed, least)
            found += itertools.islice(_lowered(drawn, workload, gpu, asking.workspace_bytes), count)
    order = np.random.Generator(np.random.Philox(asking.seed)).permutation(len(found))
    return [found[int(n)] for n in order]


def _lowered(
    schedules: Sequence[Schedule] | Iterator[Schedule], workload: Workload, gpu: Gpu, workspace_bytes: int
) -> Iterator[Lowered]:
    for chosen in schedules:
        program = lower(realise(mapping(chosen, workload, gpu), workload), workload)
        if sum(b.size_bytes for b in program.workspaces) <= workspace_bytes:
            yield Lowered(workload.name, str(chosen), program)


# ---- check -------------------------------------------------------------------------------------------------------
def check_sample(
    lowered: Sequence[Lowered], asking: Asking, gpu: Gpu, jobs: int | None = None, progress: Progress = silent
) -> list[Lowered]:
    """Run every gate on a random sample.  Raises KernelError, naming the schedule, where one does not pass."""
    generator = np.random.Generator(np.random.Philox(asking.seed))
    sample = [int(n) for n in generator.permutation(len(lowered))[: asking.check]]
    work = [gate_job(lowered[n], gpu, asking.seed) for n in sample]
    out = list(lowered)
    for n, report in zip(sample, _gated(work, jobs, progress), strict=True):
        for failed in (g for g in report.gates if not g.passed):
            where = f"{lowered[n].schedule} on {lowered[n].workload}"
            raise KernelError(f"{where} does not pass {failed.gate}: {failed.reason}")
        out[n] = replace(out[n], checked=CHECKED)
    return out


def gate_job(one: Lowered, gpu: Gpu, seed: int) -> GateJob:
    workload = workload_named(one.workload)
    tree = realise(mapping(parse_schedule(one.schedule), workload, gpu), workload)
    return GateJob(tree, workload, one.program, gpu.name, seed)


def _gated(work: Sequence[GateJob], jobs: int | None, progress: Progress) -> list[GateReport]:
    out: list[GateReport] = []
    with pool(jobs) as processes:
        for report in processes.map(run_gates, work):
            out.append(report)
            progress("check", len(out), len(work))
    return out


# ---- TTIR --------------------------------------------------------------------------------------------------------
def ttir_of(
    programs: Sequence[Program], target: Target, jobs: int | None = None, progress: Progress = silent
) -> list[str]:
    """The TTIR of programs of one kernel each, as many at a time as there are cores."""
    out: list[str] = []
    with pool(jobs) as processes:
        for text in processes.map(_ttir, programs, itertools.repeat(target), chunksize=8):
            out.append(text)
            progress("ttir", len(out), len(programs))
    return out


def _ttir(program: Program, target: Target) -> str:
    (text,) = ttir(program, target).values()
    return text


# ---- verify ------------------------------------------------------------------------------------------------------
def holds_grid(directory: Path) -> bool:
    """Whether a directory is a grid's: its bundle, or a recording of one."""
    return (directory / CANDIDATES).exists()


def verify_grid(directory: Path, jobs: int | None = None, progress: Progress = silent) -> tuple[int, list[str]]:
    """(number of candidates, a line a fault): each kernel's TTIR compiled anew, each kernel_id and the run_id derived.

    Samples, where there are any, are held against the manifest.  Raises RunError for files that cannot be read or were
    changed.
    """
    manifest = read_grid_manifest(directory / CANDIDATES)
    if (directory / RESULT).exists():
        read_collected(directory / RESULT, manifest)
    if (here := toolchain()["triton"]) != manifest.triton:
        return len(manifest.candidates), [f"frozen under triton {manifest.triton}, and this is {here}: install that"]
    specs = [KernelSpec(**{f.name: getattr(k, f.name) for f in fields(KernelSpec)}) for k in manifest.kernels]
    programs = [
        Program("", manifest.texts[k.text], (spec,), (), ()) for k, spec in zip(manifest.kernels, specs, strict=True)
    ]
    texts = ttir_of(programs, manifest.target, jobs, progress)
    faults = [
        f"kernel {k.name}, number {n}: its text compiles to other TTIR than was frozen"
        for n, (k, text) in enumerate(zip(manifest.kernels, texts, strict=True))
        if hashlib.sha256(text.encode()).hexdigest() != k.ttir
    ]
    inputs = {w: input_record(workload_named(w), manifest.seed) for w in manifest.floors_s}
    for c in manifest.candidates:
        program = Program(c.workload, "", tuple(specs[n] for n in c.kernels), c.buffers, c.launches)
        own = {specs[n].name: texts[n] for n in c.kernels}
        now, _ = kernel_id(program, own, manifest.target, inputs[c.workload])
        if now != c.kernel_id:
            faults.append(f"{c.id}: kernel_id is {now[:12]} and not {c.kernel_id[:12]}")
    return len(manifest.candidates), faults


def parse_least(words: Sequence[str]) -> dict[str, int]:
    """`KEY=NUMBER` words; TextError for one that does not read so."""
    out = {}
    for word in words:
        key, equals, number = word.partition("=")
        if not equals or not number.isdigit():
            raise TextError(f"--least reads KEY=NUMBER, not {word!r}")
        out[key] = int(number)
    return out


def result_in(directory: Path) -> Path:
    """The result beside a bundle or in a recording; RunError where there is none."""
    path = directory / RESULT if directory.is_dir() else directory
    if not path.exists():
        raise RunError(f"no result at {path}: run the bundle's run.py on a machine with the GPU first")
    return path
