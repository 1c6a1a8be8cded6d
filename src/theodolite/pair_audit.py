"""An audit of pairs: for several workloads, mappings one decision apart are lowered, gated, frozen and judged.

    bases --pairs--> pairs --pick--> picked --lower, gate, freeze--> manifest.json + pairs.json + bundle/
        --measure--> samples --judge_pairs--> a verdict a pair and model

pairs.json is frozen with the manifest: its digest stands in the manifest's `space` under "pairs" and so is part of the
run_id.  A run of pairs is an ordinary run besides: `measure`, `judge`, `report` and `verify` take it as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from theodolite import pipeline, records
from theodolite.auditing.bench.bundle import read_manifest, read_results
from theodolite.auditing.bench.measure import SAMPLES, attach
from theodolite.auditing.manifest import FORMAT, Candidate, Manifest
from theodolite.auditing.pairs import FrozenPair, FrozenPairs, PairJudgement, judge_frozen_pairs
from theodolite.auditing.verdict import Thresholds
from theodolite.cost.model import Model
from theodolite.cost.model import model as model_named
from theodolite.errors import Drift, Infeasible, RunError
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.workload import Workload
from theodolite.mapper.pairs import Pair, pairs, pick, unpriced
from theodolite.mapper.search import draw, map_workload
from theodolite.mapper.shorthand import Schedule
from theodolite.mapper.skeletons import mapping
from theodolite.workloads import workload as workload_named

PAIRS, VERDICTS = "pairs.json", "pair_verdicts.json"


@dataclass(frozen=True)
class PickedPair:
    """A pair of one case."""

    case: str
    workload: Workload
    pair: Pair

    @property
    def id(self) -> str:
        """Depends on the two mappings alone, not on their order."""
        text = "\n".join(sorted((str(self.pair.a), str(self.pair.b))))
        return f"{self.case.replace(':', '.')}-{self.pair.decision}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# ---- pick --------------------------------------------------------------------------------------------------------
def pick_pairs(
    cases: Sequence[str],
    gpu: Gpu,
    count: int,
    gap: float = 0.05,
    model: Model | None = None,
    bases: int = 4,
    seed: int = 0,
    progress: pipeline.Progress = pipeline.silent,
) -> list[PickedPair]:
    """`count` pairs of each case whose predicted gap is above `gap`, spread over decisions.

    They are taken from the neighbours of the model's best mapping and of `bases` mappings drawn by seed.  Raises
    Infeasible where a case has fewer such pairs.
    """
    chosen = model or model_named("corrected")
    out = []
    for n, case in enumerate(cases):
        progress("pair", n, len(cases))
        workload = workload_named(case)
        found = [
            p for base in base_mappings(workload, gpu, chosen, bases, seed) for p in pairs(base, workload, gpu, chosen)
        ]
        picked = pick(found, gap, count)
        if len(picked) < count:
            raise Infeasible(f"{case}: {len(picked)} pairs have a gap above {gap:.1%}, not {count}: ask for more bases")
        out += [PickedPair(case, workload, p) for p in picked]
    progress("pair", len(cases), len(cases))
    return out


def base_mappings(workload: Workload, gpu: Gpu, model: Model, bases: int, seed: int) -> list[Schedule]:
    """The model's best mapping and `bases` drawn ones, each once."""
    best = [m.schedule for m in map_workload(workload, gpu, model, 1).mapped]
    drawn = draw(workload, gpu, bases, pipeline.case_seed(workload, seed))
    return list(dict.fromkeys((*best, *drawn)))


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
    and its pairs become UNMEASURED.  Raises RunError where there is no pair, or where the directory holds a run.
    """
    if not picked:
        raise RunError("no pair to freeze: pick some")
    if (directory / pipeline.MANIFEST).exists():
        raise RunError(f"{directory} holds another run: give a new directory")
    asked = pipeline.merged(_asked(p, s, gpu) for p in picked for s in (p.pair.a, p.pair.b))
    candidates = pipeline.lower_cases(asked, gpu, progress)
    chosen = model or model_named("corrected")
    frozen = FrozenPairs(FORMAT, chosen.name, gap, tuple(_frozen(p, candidates, gpu) for p in picked))
    gated = pipeline.gate_candidates(candidates, gpu, seed, jobs, progress)
    space = {"pairs": {"digest": records.digest(frozen), "count": len(frozen.pairs)}}
    manifest = pipeline.freeze(gated, gpu, seed, space, progress)
    # pairs.json first: a directory with a manifest is a finished run
    records.write(directory / PAIRS, records.dump(frozen))
    pipeline.write_run(manifest, directory)
    return manifest


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


# ---- judge -------------------------------------------------------------------------------------------------------
def read_pairs(directory: Path, manifest: Manifest) -> FrozenPairs:
    """pairs.json of a run directory; Drift where it is not the one that was frozen, RunError where there is none."""
    path = directory / PAIRS
    try:
        found = records.load(FrozenPairs, path.read_bytes(), str(path))
    except OSError as error:
        raise RunError(f"{directory} holds no {PAIRS}: it is no run of pairs") from error
    kept = manifest.space.get("pairs")
    if not isinstance(kept, dict) or kept.get("digest") != records.digest(found):
        raise Drift(f"{path} is not what was frozen with run {manifest.run_id}: freeze the pairs again")
    return found


def judge_pairs(directory: Path, recording: Path | None = None, thresholds: Thresholds = Thresholds()) -> PairJudgement:
    """A verdict a pair and model from the run's samples, or a recording's where it has none; kept in the directory.

    Raises Drift where anything frozen changed, RunError where nothing was measured or recorded.
    """
    manifest = read_manifest(directory / pipeline.MANIFEST)
    pipeline.check_unchanged(directory)
    frozen = read_pairs(directory, manifest)
    before: set[str] | None = None
    if (directory / SAMPLES).exists():
        samples = read_results(directory / SAMPLES, manifest)
    elif recording is not None:
        samples = attach(manifest, recording)
        then = read_manifest(recording / pipeline.MANIFEST)
        before = {p.prediction_id for c in then.candidates for p in c.predictions if p.prediction_id is not None}
    else:
        raise RunError(f"{directory} was not measured: run its bundle on a machine with the GPU")
    judgement = judge_frozen_pairs(manifest, frozen.pairs, samples, before, thresholds)
    records.write(directory / VERDICTS, records.dump(judgement))
    return judgement


# ---- all of it ---------------------------------------------------------------------------------------------------
def audit_pairs(
    cases: Sequence[str],
    gpu: str,
    directory: Path,
    count: int,
    gap: float = 0.05,
    model: str = "corrected",
    bases: int = 4,
    seed: int = 0,
    jobs: int | None = None,
    progress: pipeline.Progress = pipeline.silent,
) -> Manifest:
    """Pick `count` pairs of each case and freeze them into a run directory; its bundle is what a GPU measures."""
    machine, chosen = gpu_named(gpu), model_named(model)
    picked = pick_pairs(cases, machine, count, gap, chosen, bases, seed, progress)
    return freeze_pairs(picked, machine, directory, chosen, gap, seed, jobs, progress)
