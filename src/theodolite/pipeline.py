"""The whole of it, one function a step:

    Workload + Gpu --map--> mappings --lower--> programs --gate--> passed --freeze--> manifest
        --measure--> samples --judge--> verdicts --report--> HTML

`audit`, at the end, is the steps in a row.  What passes between them is a frozen record in a run directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from theodolite import records
from theodolite.auditing.bench.bundle import check_frozen, read_manifest, read_results, write_bundle
from theodolite.auditing.bench.measure import SAMPLES, attach
from theodolite.auditing.bench.measure import measure as run_bundle
from theodolite.auditing.gates.every import GateJob, run_gates
from theodolite.auditing.ids import input_record, kernel_id, prediction_id
from theodolite.auditing.judge import Judgement
from theodolite.auditing.judge import judge as judge_samples
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Model, Prediction, Samples
from theodolite.auditing.report.page import write_report
from theodolite.auditing.report.pairs import PairsView
from theodolite.cost.model import Model as CostModel
from theodolite.cost.model import baseline, corrected, evaluate
from theodolite.errors import Drift, RunError, TheodoliteError, plain_reason
from theodolite.gate_journal import GateJournal
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.realise import fusion_label, realise
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.lowering.compile import ttir
from theodolite.lowering.lower import lower
from theodolite.mapper.search import draw, map_workload
from theodolite.mapper.skeletons import mapping, schedule_of
from theodolite.workers import pool
from theodolite.workloads import workload as workload_named

Progress = Callable[[str, int, int], None]  # (step, done, of)
MODELS: tuple[Callable[[], CostModel], ...] = (baseline, corrected)
DRAFT, MANIFEST, VERDICTS = "draft.json", "manifest.json", "verdicts.json"


def silent(step: str, done: int, of: int) -> None:
    """Progress that shows nothing."""


@dataclass(frozen=True)
class Asked:
    """A mapping of one case and who asked for it."""

    case: str
    workload: Workload
    tree: Tree
    origin: tuple[str, ...]


# ---- map ---------------------------------------------------------------------------------------------------------
def map_cases(
    cases: Sequence[str], gpu: Gpu, top: int, random: int, seed: int, progress: Progress = silent
) -> tuple[list[Asked], dict[str, Any]]:
    """The best `top` mappings of each model and `random` drawn ones, for each case; and what the space held."""
    asked: list[Asked] = []
    space: dict[str, Any] = {}
    for n, case in enumerate(cases):
        progress("map", n, len(cases))
        workload = workload_named(case)
        space[case] = {}
        for make in MODELS:
            model = make()
            found = map_workload(workload, gpu, model, top)
            space[case][model.name] = {
                "points": dict(found.size),
                "inexpressible": dict(found.inexpressible),
                "no room on the GPU": dict(found.skipped),
            }
            for rank, mapped in enumerate(found.mapped, 1):
                asked.append(Asked(case, workload, mapped.tree, (f"{model.name} {rank}",)))
        for rank, schedule in enumerate(draw(workload, gpu, random, case_seed(workload, seed)), 1):
            asked.append(Asked(case, workload, mapping(schedule, workload, gpu), (f"random {rank}",)))
    progress("map", len(cases), len(cases))
    return merged(asked), space


def case_seed(workload: Workload, seed: int) -> int:
    """A seed of its own for each workload, so that cases do not all draw the same schedules."""
    return int.from_bytes(hashlib.sha256(f"{seed} {workload.name}".encode()).digest()[:8], "big")


def merged(asked: Iterable[Asked]) -> list[Asked]:
    """Each mapping of a case once, with everybody who asked for it."""
    out: dict[tuple[str, str], Asked] = {}
    for a in asked:
        key = (a.case, show(a.tree))
        out[key] = replace(out[key], origin=(*out[key].origin, *a.origin)) if key in out else a
    return list(out.values())


def recorded_mappings(recording: Path, cases: Sequence[str]) -> list[Asked]:
    """The mappings of a recorded run that belong to these cases' workloads."""
    manifest = read_manifest(recording / MANIFEST)
    out = []
    for case in cases:
        workload = workload_named(case)
        for candidate in manifest.candidates:
            if manifest.cases[candidate.case] == workload.name:
                tree = parse(candidate.mapping, f"{recording.name}, {candidate.id}")
                out.append(Asked(case, workload, tree, ("recorded",)))
    return out


# ---- lower -------------------------------------------------------------------------------------------------------
def lower_cases(asked: Sequence[Asked], gpu: Gpu, progress: Progress = silent) -> list[Candidate]:
    """Realise and print each mapping, with both models' predictions; ids and gates are still empty."""
    out = []
    for n, a in enumerate(asked):
        progress("lower", n, len(asked))
        out.append(lower_one(a, gpu))
    progress("lower", len(asked), len(asked))
    return out


def lower_one(asked: Asked, gpu: Gpu) -> Candidate:
    """One candidate, not yet gated or frozen.  Raises Unsupported, naming the rule, where a tree cannot be lowered."""
    text = show(asked.tree)
    realised = realise(asked.tree, asked.workload)
    named = schedule_of(asked.tree, asked.workload, gpu)
    return Candidate(
        id=f"{asked.case.replace(':', '.')}-{asked.tree.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}",
        case=asked.case,
        origin=asked.origin,
        schedule=str(named) if named else None,
        fusion=fusion_label(asked.tree),
        mapping=text,
        realised=show(realised),
        refinements=tuple((r.rule, r.reason) for r in realised.refinements),
        program=lower(realised, asked.workload),
        kernel_id="",
        predictions=tuple(predict(asked.tree, asked.workload, gpu, make()) for make in MODELS),
        gates=(),
        resources={},
    )


def predict(tree: Tree, workload: Workload, gpu: Gpu, model: CostModel) -> Prediction:
    """What a model says of a mapping, without an id yet."""
    cost = evaluate(tree, workload, gpu, model)
    kind = "infeasible" if cost.expressible else "inexpressible"
    why_not = None if cost.feasible else f"{kind}: {cost.why_not}"
    return Prediction(model.name, cost.seconds, why_not, dict(cost.terms), None)


# ---- gate --------------------------------------------------------------------------------------------------------
def gate_candidates(
    candidates: Sequence[Candidate],
    gpu: Gpu,
    seed: int,
    jobs: int | None = None,
    progress: Progress = silent,
    journal: GateJournal | None = None,
) -> list[Candidate]:
    """Run every gate on every candidate, `jobs` (or as many as there are cores) at a time.

    A journal keeps each report as it comes, and what it holds already is not gated again.
    """
    work = [gate_job(c, gpu, seed) for c in candidates]
    reports = journal.kept(work) if journal else {}
    progress("gate", len(reports), len(work))
    with pool(jobs) as processes:
        waiting = {processes.submit(run_gates, job): n for n, job in enumerate(work) if n not in reports}
        for future in as_completed(waiting):
            n = waiting[future]
            reports[n] = future.result()
            if journal:
                journal.keep(work[n], reports[n])
            progress("gate", len(reports), len(work))
    return [replace(c, gates=reports[n].gates, resources=reports[n].resources) for n, c in enumerate(candidates)]


def gate_job(candidate: Candidate, gpu: Gpu, seed: int) -> GateJob:
    tree = parse(candidate.mapping, candidate.id)
    workload = workload_named(tree.workload)
    return GateJob(realise(tree, workload), workload, candidate.program, gpu.name, seed)


# ---- freeze ------------------------------------------------------------------------------------------------------
def freeze(
    candidates: Sequence[Candidate], gpu: Gpu, seed: int, space: Mapping[str, Any], progress: Progress = silent
) -> Manifest:
    """Ids for kernels and predictions, and the manifest that holds all of it; its run_id is a hash of the rest."""
    frozen = []
    whole = draft(candidates, gpu, seed, space)
    for n, candidate in enumerate(candidates):
        progress("freeze", n, len(candidates))
        frozen.append(freeze_one(candidate, gpu, seed, whole.models))
    progress("freeze", len(candidates), len(candidates))
    whole = replace(whole, toolchain=toolchain(), candidates=tuple(frozen))
    return replace(whole, run_id=records.digest(whole)[:12])


def draft(candidates: Sequence[Candidate], gpu: Gpu, seed: int, space: Mapping[str, Any]) -> Manifest:
    """A manifest that is not frozen yet: no ids, no toolchain."""
    models = tuple(Model(m.name, m.term_names, gpu.constants()) for m in (make() for make in MODELS))
    cases = {c.case: c.program.workload for c in candidates}
    return Manifest(FORMAT, "", gpu.name, seed, cases, models, {}, tuple(candidates), dict(space))


def freeze_one(candidate: Candidate, gpu: Gpu, seed: int, models: Sequence[Model]) -> Candidate:
    """The candidate with its kernel_id, and a prediction_id for each prediction that has a value."""
    workload = workload_named(candidate.program.workload)
    texts = ttir(candidate.program, gpu.target)
    ident, _ = kernel_id(candidate.program, texts, gpu.target, input_record(workload, seed))
    constants = {m.name: m for m in models}
    predictions = tuple(
        p if p.seconds is None else replace(p, prediction_id=_prediction_id(ident, p, constants[p.model]))
        for p in candidate.predictions
    )
    return replace(candidate, kernel_id=ident, predictions=predictions)


def _prediction_id(ident: str, prediction: Prediction, model: Model) -> str:
    assert prediction.seconds is not None
    answer: str | tuple[str, Any] = prediction_id(ident, model.name, model.terms, model.constants, prediction.seconds)
    return answer if isinstance(answer, str) else answer[0]


def toolchain() -> dict[str, str]:
    """The versions that ids depend on."""
    import triton  # only where kernels are compiled

    return {"triton": str(triton.__version__)}


def write_run(manifest: Manifest, directory: Path) -> None:
    """The run directory of a manifest: manifest.json, and bundle/ for a machine with a GPU.

    A directory that already holds this very manifest is left alone, samples included.  Raises RunError where it holds
    another one.
    """
    path = directory / MANIFEST
    if path.exists():
        if path.read_text() == records.dump(manifest) and (directory / "bundle" / "frozen.json").exists():
            return
        raise RunError(f"{directory} holds another run: give a new directory")
    write_bundle(manifest, directory / "bundle")
    records.write(path, records.dump(manifest))


# ---- measure, judge, report --------------------------------------------------------------------------------------
def measure(directory: Path, arguments: Sequence[str] = ()) -> Samples:
    """Run the frozen bundle on this machine's GPU; see `auditing.bench.measure`."""
    return run_bundle(directory, arguments)


def judge(directory: Path, recording: Path | None = None) -> tuple[Judgement, Samples] | None:
    """Judge a run directory and keep the verdicts in it; None where nothing was measured or recorded.

    Samples measured in this run go before a recording's.
    """
    manifest = read_manifest(directory / MANIFEST)
    check_unchanged(directory)
    if (directory / SAMPLES).exists():
        samples = samples_of(manifest, directory)
        judgement = judge_samples(manifest, samples, recorded=False)
    elif recording is not None:
        samples = attach(manifest, recording)
        before = frozen_before(manifest, samples, recording)
        judgement = judge_samples(manifest, samples, recorded=True, frozen_before=before)
    else:
        return None
    if not is_recording(directory):
        records.write(directory / VERDICTS, records.dump(judgement))
    return judgement, samples


def is_recording(directory: Path) -> bool:
    """Whether a directory holds what came of a run, and no bundle any more: nothing is ever written into one."""
    return (directory / SAMPLES).exists() and not any((directory / n).exists() for n in ("bundle", "frozen.json"))


def frozen_before(manifest: Manifest, samples: Samples, recording: Path) -> bool:
    """Whether the recording had frozen every prediction of the measured candidates, id by id, before it was timed."""
    then = {p.prediction_id for c in read_manifest(recording / MANIFEST).candidates for p in c.predictions}
    measured = {t.candidate for t in samples.timings if t.status == "ok"}
    now = {p.prediction_id for c in manifest.candidates if c.id in measured for p in c.predictions}
    return bool(now) and now <= then


def report(
    directory: Path, recording: Path | None = None, pairs: PairsView | None = None, out: Path | None = None
) -> Path:
    """Write report.html of a run directory (or `out`), with a section of its pairs where they are given; its path.

    Raises RunError rather than write into a recording, or put a report without verdicts in the place of one with them.
    """
    if out is None and is_recording(directory):
        raise RunError(f"{directory} is a recording, which stays as it is: say with --out where the report goes")
    manifest = read_manifest(directory / MANIFEST)
    judged = judge(directory, recording)
    if judged is None and (directory / VERDICTS).exists():
        raise RunError(f"{directory} was judged with samples that it does not hold: give the same --recording again")
    path = out or directory / "report.html"
    write_report(manifest, judged[1] if judged else None, judged[0] if judged else None, path, pairs)
    return path


def verify(directory: Path, progress: Progress = silent) -> list[str]:
    """Re-derive every id of a run or a recording from the mappings, sources and values kept in it.

    Returns one line a fault; an empty list where all ids follow.  The mapping is parsed, the program's TTIR compiled
    anew, kernel_id, prediction_id and run_id recomputed; a bundle, where there is one, is held against the manifest.
    """
    manifest = read_manifest(directory / MANIFEST)
    gpu = gpu_named(manifest.gpu)
    faults = []
    for n, candidate in enumerate(manifest.candidates):
        progress("verify", n, len(manifest.candidates))
        faults += [f"{candidate.id}: {f}" for f in _faults(candidate, manifest, gpu)]
    progress("verify", len(manifest.candidates), len(manifest.candidates))
    if records.digest(replace(manifest, run_id=""))[:12] != manifest.run_id:
        faults.append(f"run_id {manifest.run_id} does not follow from the manifest")
    return faults + _bundle_faults(manifest, directory) + _sample_faults(manifest, directory)


def _sample_faults(manifest: Manifest, directory: Path) -> list[str]:
    """Why the samples kept in a directory cannot be those of its manifest."""
    if not (directory / SAMPLES).exists():
        return []
    try:
        samples_of(manifest, directory)
    except (Drift, RunError) as error:
        return [str(error)]
    return []


def samples_of(manifest: Manifest, directory: Path) -> Samples:
    """A run's own samples; Drift where they were not taken by the bundle that lies there."""
    samples = read_results(directory / SAMPLES, manifest)
    frozen = directory / "bundle" / "frozen.json"
    if frozen.exists() and samples.environment.get("bundle") not in (
        None,
        hashlib.sha256(frozen.read_bytes()).hexdigest(),
    ):
        raise Drift(f"{directory / SAMPLES} was taken by another bundle than the one beside it")
    return samples


def _bundle_faults(manifest: Manifest, directory: Path) -> list[str]:
    """What of a run's bundle, or of the directory where it is a bundle, is not what was frozen: the first such file.

    A recording comes without a bundle, and has none of these faults.
    """
    if not (directory / "bundle").exists() and not (directory / "frozen.json").exists():
        return []
    try:
        check_frozen(manifest, directory)
    except (Drift, RunError) as error:
        return [str(error)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = plain_reason(error) if isinstance(error, OSError) else " ".join(repr(error).split())
        return [f"the bundle of {directory} cannot be read: {why}"]
    return []


def _faults(candidate: Candidate, manifest: Manifest, gpu: Gpu) -> list[str]:
    try:
        parse(candidate.mapping, candidate.id)
        again = freeze_one(candidate, gpu, manifest.seed, manifest.models)
    except TheodoliteError as error:
        return [str(error)]
    faults = []
    if again.kernel_id != candidate.kernel_id:
        faults.append(f"kernel_id is {again.kernel_id[:12]} and not {candidate.kernel_id[:12]}")
    for old, new in zip(candidate.predictions, again.predictions, strict=True):
        if old.prediction_id != new.prediction_id:
            faults.append(f"prediction_id of {old.model} does not follow")
    return faults


# ---- the steps in a row ------------------------------------------------------------------------------------------
def audit(
    cases: Sequence[str],
    gpu: str,
    runs: Path = Path("runs"),
    recording: Path | None = None,
    top: int = 5,
    random: int = 5,
    seed: int = 0,
    jobs: int | None = None,
    on_gpu: bool = False,
    progress: Progress = silent,
) -> Path:
    """Map, lower, gate, freeze, measure (or attach a recording), judge and report; returns the run directory.

    The audited set is what the models pick today, what is drawn at random, and every mapping of the recording.
    """
    machine = gpu_named(gpu)
    asked, space = map_cases(cases, machine, top, random, seed, progress)
    if recording is not None:
        asked = merged([*asked, *recorded_mappings(recording, cases)])
    candidates = lower_cases(asked, machine, progress)
    gated = gate_candidates(candidates, machine, seed, jobs, progress)
    manifest = freeze(gated, machine, seed, space, progress)
    directory = runs / manifest.run_id
    write_run(manifest, directory)
    if on_gpu:
        measure(directory)
    report(directory, recording)
    return directory


def recording_for(gpu: str, data: Path) -> Path | None:
    """The newest recorded run of a GPU under `data`, by name; None where there is none."""
    found = []
    for path in sorted(data.glob("*/" + MANIFEST)):
        if (path.parent / SAMPLES).exists() and read_manifest(path).gpu == gpu:
            found.append(path.parent)
    return found[-1] if found else None


def check_unchanged(directory: Path) -> None:
    """Drift where anything frozen in a run directory or a recording is no longer what its manifest says."""
    manifest = read_manifest(directory / MANIFEST)
    if records.digest(replace(manifest, run_id=""))[:12] != manifest.run_id:
        raise Drift(f"{directory / MANIFEST} no longer gives its run_id {manifest.run_id}")
    if not is_recording(directory):
        check_frozen(manifest, directory)
