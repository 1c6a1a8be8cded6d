"""An audit of pairs: for several workloads, mappings one decision apart are lowered, gated, frozen and judged.

    bases --pairs--> pairs --pick--> picked --lower, gate, freeze--> manifest.json + pairs.json + bundle/
        --measure--> samples --judge_pairs--> a verdict a pair and model --report--> a section of the page

pairs.json is frozen with the manifest: its digest stands in the manifest's `space` under "pairs" and so is part of the
run_id.  A run of pairs is an ordinary run besides, and what an ordinary run goes through it goes through, too.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from theodolite import pipeline, records
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.bench.measure import SAMPLES, attach
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest, Samples
from theodolite.auditing.pairs import FrozenPair, FrozenPairs, PairJudgement, judge_frozen_pairs
from theodolite.auditing.report.pairs import pairs_view
from theodolite.auditing.verdict import Thresholds
from theodolite.cost.model import Model, evaluate
from theodolite.cost.model import model as model_named
from theodolite.errors import Drift, Infeasible, RunError, TheodoliteError, plain_reason
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.text import parse
from theodolite.ir.workload import Workload
from theodolite.mapper.pairs import Pair, pairs, pick, unpriced
from theodolite.mapper.search import draw, map_workload
from theodolite.mapper.shorthand import Schedule, parse_schedule
from theodolite.mapper.skeletons import mapping, schedule_of
from theodolite.workloads import workload as workload_named

DRAWS_A_BASE = 50  # BASELINE has words for one pipeline in ten, where every tile has to divide
PAIRS, VERDICTS = "pairs.json", "pair_verdicts.json"


@dataclass(frozen=True)
class PickedPair:
    """A pair of one case."""

    case: str
    workload: Workload
    pair: Pair

    @property
    def id(self) -> str:
        return pair_id(self.case, self.pair.decision, self.pair.a, self.pair.b)


def pair_id(case: str, decision: str, a: Schedule, b: Schedule) -> str:
    """Depends on the two mappings alone, not on their order."""
    text = "\n".join(sorted((str(a), str(b))))
    return f"{case.replace(':', '.')}-{decision}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# ---- pick --------------------------------------------------------------------------------------------------------
def pick_pairs(
    cases: Sequence[str],
    gpu: Gpu,
    count: int | None,
    gap: float = 0.05,
    model: Model | None = None,
    bases: int = 4,
    seed: int = 0,
    progress: pipeline.Progress = pipeline.silent,
    schedule: str | None = None,
    also: Model | None = None,
) -> list[PickedPair]:
    """`count` pairs of each case, or all where it is None, whose predicted gap is above `gap`, spread over decisions.

    They are taken from the neighbours of the mapping that `schedule` names; without one, from those of the model's best
    mapping and of `bases` mappings drawn by seed.  `also` is a model that has to predict something of both members as
    well, be it a tie.  Raises Infeasible where a case has fewer such pairs.
    """
    chosen = model or model_named("corrected")
    begin = None if schedule is None else [parse_schedule(schedule)]
    out = []
    for n, case in enumerate(_distinct(cases)):
        progress("pair", n, len(cases))
        workload = workload_named(case)
        around = begin or base_mappings(workload, gpu, chosen, bases, seed, also)
        picked = pick([p for base in around for p in _said_by(base, workload, gpu, chosen, also)], gap, count)
        if len(picked) < (count or 1):
            more = "a smaller gap" if begin else "a smaller gap or more bases"
            raise Infeasible(
                f"{case}: {len(picked)} pairs have a gap above {gap:.1%}, not {count or 'one'}: ask for fewer, {more}"
            )
        out += [PickedPair(case, workload, p) for p in picked]
    progress("pair", len(cases), len(cases))
    return out


def _distinct(cases: Sequence[str]) -> list[str]:
    """The cases, one a workload: sdpa:A and the same one spelled out are one."""
    return list({workload_named(c).name: c for c in reversed(cases)}.values())[::-1]


def _said_by(base: Schedule, workload: Workload, gpu: Gpu, model: Model, also: Model | None) -> list[Pair]:
    """The pairs of a base under a model, less those of which `also` says nothing."""
    found = list(pairs(base, workload, gpu, model))
    if also is None:
        return found
    said = {p.b for p in pairs(base, workload, gpu, also) if p.gap is not None}
    return [p for p in found if p.b in said]


def base_mappings(
    workload: Workload, gpu: Gpu, model: Model, bases: int, seed: int, also: Model | None = None
) -> list[Schedule]:
    """The model's best mapping and `bases` drawn ones, each once; only such as `also` has a prediction for."""
    best = [m.schedule for m in map_workload(workload, gpu, model, 1).mapped]
    draws = bases if also is None else bases * DRAWS_A_BASE
    drawn = list(draw(workload, gpu, draws, pipeline.case_seed(workload, seed)))
    if also is not None:
        best, drawn = ([s for s in some if _predicted(s, workload, gpu, also)] for some in (best, drawn))
    return list(dict.fromkeys((*best, *drawn[:bases])))


def _predicted(schedule: Schedule, workload: Workload, gpu: Gpu, model: Model) -> bool:
    return evaluate(mapping(schedule, workload, gpu), workload, gpu, model).feasible


# ---- lower, gate, freeze -----------------------------------------------------------------------------------------
def freeze_pairs(
    picked: Sequence[PickedPair],
    gpu: Gpu,
    directory: Path,
    model: Model | None = None,
    gap: float = 0.05,
    seed: int = 0,
    jobs: int | None = None,
    progress: pipeline.Progress = pipeline.silent,
) -> Manifest:
    """Lower and gate both members of each pair, and freeze them with pairs.json into a new run directory.

    A mapping that several pairs share is one candidate.  A member that fails a gate stays in the run, with its reason,
    and its pairs become UNMEASURED.  The directory is there whole or not at all.  Raises RunError where there is no
    pair, or where the directory holds anything.
    """
    if not picked:
        raise RunError("no pair to freeze: pick some")
    check_new(directory)
    asked = pipeline.merged(_asked(p, s, gpu) for p in picked for s in (p.pair.a, p.pair.b))
    candidates = pipeline.lower_cases(asked, gpu, progress)
    chosen = model or model_named("corrected")
    frozen = FrozenPairs(FORMAT, chosen.name, gap, tuple(_frozen(p, candidates, gpu) for p in picked))
    gated = pipeline.gate_candidates(candidates, gpu, seed, jobs, progress)
    _some_passed(frozen, gated)
    space = {"pairs": {"digest": records.digest(frozen), "count": len(frozen.pairs)}}
    manifest = pipeline.freeze(gated, gpu, seed, space, progress)
    with _whole(directory) as part:
        progress("bundle", 0, 1)
        records.write(part / PAIRS, records.dump(frozen))
        pipeline.write_run(manifest, part)
        progress("bundle", 1, 1)
    return manifest


def _some_passed(frozen: FrozenPairs, gated: Sequence[Candidate]) -> None:
    """RunError where no pair is left to be measured."""
    passed = {c.id for c in gated if c.passed}
    if not any(p.a in passed and p.b in passed for p in frozen.pairs):
        first = next(f"{c.id}: {g.gate}: {g.reason}" for c in gated for g in c.gates if not g.passed)
        raise RunError(f"0 of {len(frozen.pairs)} pairs passed every gate, nothing to freeze; the first: {first}")


def check_new(directory: Path) -> None:
    """RunError where a run cannot be written: the directory is a file or holds something, or its parent is closed."""
    there = directory.resolve()
    try:
        there.parent.mkdir(parents=True, exist_ok=True)
        taken = there == Path.cwd() or (there.exists() and (not there.is_dir() or any(there.iterdir())))
    except OSError as error:
        raise RunError(f"{directory} cannot be written: {plain_reason(error)}") from error
    if taken:
        raise RunError(f"{directory} holds another run, or something else: give a new directory")
    if not os.access(there.parent, os.W_OK):
        raise RunError(f"{directory} cannot be written: no permission to write into {there.parent}")


@contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """A folder beside a directory that takes its place once all of it is written, and is gone after an interrupt."""
    there = directory.resolve()
    with tempfile.TemporaryDirectory(dir=there.parent, prefix=f".{there.name}.") as holder:
        part = Path(holder) / there.name
        yield part
        part.rename(there)


def _asked(picked: PickedPair, chosen: Schedule, gpu: Gpu) -> pipeline.Asked:
    side = "A" if chosen == picked.pair.a else "B"
    tree = mapping(chosen, picked.workload, gpu)
    return pipeline.Asked(picked.case, picked.workload, tree, (f"pair {picked.id} {side}",))


def _frozen(picked: PickedPair, candidates: Sequence[Candidate], gpu: Gpu) -> FrozenPair:
    ids = {(c.case, c.schedule): c.id for c in candidates}
    pair = picked.pair
    blind = {m.name: unpriced(pair.a, pair.b, picked.workload, gpu, m) for m in (make() for make in pipeline.MODELS)}
    a, b = (ids[picked.case, str(s)] for s in (pair.a, pair.b))
    return FrozenPair(picked.id, picked.case, a, b, pair.decision, *pair.values, blind)


# ---- judge, report -----------------------------------------------------------------------------------------------
def frozen_pairs(directory: Path) -> FrozenPairs | None:
    """The pairs of a run directory, None where it is no run of pairs.

    Raises Drift where they are not those that were frozen, RunError where they are missing or cannot be read.
    """
    manifest = read_manifest(directory / pipeline.MANIFEST)
    if "pairs" not in manifest.space and not (directory / PAIRS).exists():
        return None
    return read_pairs(directory, manifest)


def read_pairs(directory: Path, manifest: Manifest) -> FrozenPairs:
    """pairs.json of a run of pairs; raises as `frozen_pairs` does, and RunError where there is none."""
    path = directory / PAIRS
    try:
        found = records.load(FrozenPairs, path.read_bytes(), str(path))
    except OSError as error:
        raise RunError(f"{directory} holds no {PAIRS}: copy it there from where the run was frozen") from error
    kept = manifest.space.get("pairs")
    if not isinstance(kept, dict) or kept.get("digest") != records.digest(found):
        raise Drift(f"{path} is not what was frozen with run {manifest.run_id}: freeze the pairs again")
    return found


def judge_pairs(directory: Path, recording: Path | None = None, thresholds: Thresholds = Thresholds()) -> PairJudgement:
    """A verdict a pair and model from the run's samples, or a recording's where it has none; kept in a run's directory.

    Raises Drift where anything frozen changed, RunError where nothing was measured or recorded.
    """
    manifest = read_manifest(directory / pipeline.MANIFEST)
    pipeline.check_unchanged(directory)
    frozen = read_pairs(directory, manifest)
    before: set[str] | None = None
    if (directory / SAMPLES).exists():
        samples = pipeline.samples_of(manifest, directory)
    elif recording is not None:
        samples = attach(manifest, recording)
        then = read_manifest(recording / pipeline.MANIFEST)
        before = {p.prediction_id for c in then.candidates for p in c.predictions if p.prediction_id is not None}
    else:
        raise RunError(f"{directory} was not measured: run its bundle on a machine with the GPU")
    judgement = judge_frozen_pairs(manifest, frozen.pairs, samples, before, thresholds)
    if not pipeline.is_recording(directory):
        records.write(directory / VERDICTS, records.dump(judgement))
    return judgement


def report(directory: Path, recording: Path | None = None, out: Path | None = None) -> Path:
    """Write report.html of a run directory, with a section of its pairs where it has any; see `pipeline.report`."""
    frozen = frozen_pairs(directory)
    if frozen is None:
        return pipeline.report(directory, recording, out=out)
    manifest = read_manifest(directory / pipeline.MANIFEST)
    if recording is not None or (directory / SAMPLES).exists():
        judged = judge_pairs(directory, recording)
    else:  # every pair is UNMEASURED
        judged = judge_frozen_pairs(manifest, frozen.pairs, Samples(FORMAT, manifest.run_id, {}, ()))
    return pipeline.report(directory, recording, pairs_view(manifest, frozen, judged), out)


# ---- verify ------------------------------------------------------------------------------------------------------
def verify_pairs(directory: Path) -> list[str]:
    """One line a fault of a run's pairs; an empty list where all of them follow, or where the run has none.

    pairs.json is held against its digest in the manifest, and each pair against its members' mappings: they differ in
    exactly the decision named, by the values named.  A bundle carries no pairs.json, and nothing is missing from it.
    """
    manifest = read_manifest(directory / pipeline.MANIFEST)
    if (directory / "frozen.json").exists() and not (directory / PAIRS).exists():
        return []
    try:
        frozen = frozen_pairs(directory)
    except TheodoliteError as error:
        return [str(error)]
    kept = () if frozen is None else frozen.pairs
    twice = [f"{n} pairs are called {i}" for i, n in Counter(p.id for p in kept).items() if n > 1]
    return twice + [f"pair {p.id}: {fault}" for p in kept for fault in _faults(p, manifest)]


def _faults(pair: FrozenPair, manifest: Manifest) -> Iterator[str]:
    gpu = gpu_named(manifest.gpu)
    known = {c.id: c for c in manifest.candidates if c.case == pair.case}
    try:
        a, b = (_schedule(known[name], gpu) for name in (pair.a, pair.b))
    except KeyError as error:
        yield f"the manifest has no candidate {error} of {pair.case}"
        return
    except TheodoliteError as error:
        yield str(error)
        return
    differ = sorted(k for k in {*a.values, *b.values} if a.values.get(k) != b.values.get(k))
    if a.family != b.family or differ != [pair.decision]:
        yield f"its members differ in {', '.join(differ) or 'nothing'}, not in {pair.decision} alone"
    elif (a.values[pair.decision], b.values[pair.decision]) != (pair.a_value, pair.b_value):
        yield f"{pair.decision} is {a.values[pair.decision]} and {b.values[pair.decision]} in its members"
    if pair.id != pair_id(pair.case, pair.decision, a, b):
        yield "its id does not follow from its members"


def _schedule(candidate: Candidate, gpu: Gpu) -> Schedule:
    """The schedule of a candidate's mapping; Drift where that is not the one it is frozen with."""
    named = schedule_of(parse(candidate.mapping, candidate.id), workload_named(candidate.program.workload), gpu)
    if named is None or str(named) != candidate.schedule:
        raise Drift(f"{candidate.id}: schedule {candidate.schedule} is not that of its mapping")
    return named


# ---- all of it ---------------------------------------------------------------------------------------------------
def audit_pairs(
    cases: Sequence[str],
    gpu: str,
    directory: Path,
    count: int | None,
    gap: float = 0.05,
    model: str = "corrected",
    bases: int = 4,
    seed: int = 0,
    jobs: int | None = None,
    progress: pipeline.Progress = pipeline.silent,
    schedule: str | None = None,
    also: str | None = None,
) -> Manifest:
    """Pick pairs of each case, as `pick_pairs` does, and freeze them into a new run directory.

    The run's bundle is what a GPU measures.
    """
    machine, chosen = gpu_named(gpu), model_named(model)
    check_new(directory)
    other = model_named(also) if also else None
    picked = pick_pairs(cases, machine, count, gap, chosen, bases, seed, progress, schedule, other)
    return freeze_pairs(picked, machine, directory, chosen, gap, seed, jobs, progress)
