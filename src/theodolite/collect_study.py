"""How well a model orders a collected grid: by workload, over everything measured and near the best alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from theodolite.auditing.bench.collected import Collected, CollectedTiming
from theodolite.auditing.ranking import Ranking, Standing, rank
from theodolite.cost.model import Cost, Model, evaluate
from theodolite.gpus import gpu as gpu_named
from theodolite.mapper.shorthand import parse_schedule
from theodolite.mapper.skeletons import mapping
from theodolite.workloads import workload as workload_named

NEAR = 1.5  # times the best measured


@dataclass(frozen=True)
class WorkloadStudy:
    """One workload under one model: all measured candidates, and those within NEAR of the best one."""

    workload: str
    model: str
    whole: Ranking
    near: Ranking


def study(collected: Collected, model: Model) -> list[WorkloadStudy]:
    """Rank every workload's measured candidates by what the model says of their schedules.

    Ties count against the model, and its pick among tied favourites is the slowest of them: see `auditing.ranking`.
    """
    return [_study(w, collected.of(w), collected.gpu, model) for w in collected.workloads]


def _study(workload: str, timings: Sequence[CollectedTiming], gpu: str, model: Model) -> WorkloadStudy:
    standings = [_standing(t, gpu, model) for t in timings]
    best = min((s.measured_s for s in standings if s.measured_s is not None), default=0.0)
    near = [s for s in standings if s.measured_s is not None and s.measured_s <= NEAR * best]
    return WorkloadStudy(workload, model.name, rank(workload, model.name, standings), rank(workload, model.name, near))


def _standing(timing: CollectedTiming, gpu: str, model: Model) -> Standing:
    workload, machine = workload_named(timing.workload), gpu_named(gpu)
    cost: Cost = evaluate(mapping(parse_schedule(timing.schedule), workload, machine), workload, machine, model)
    kind = "infeasible" if cost.expressible else "inexpressible"
    why_not = None if cost.feasible else f"{kind}: {cost.why_not}"
    return Standing(timing.candidate, timing.seconds, cost.seconds, why_not)


def rows(studies: Sequence[WorkloadStudy]) -> Iterator[tuple[str, ...]]:
    """A header and two rows a workload: number, tau-b, accuracy by measured gap, regret of the model's pick."""
    labels = [b.label for b in studies[0].whole.buckets] if studies else []
    yield ("workload", "of", "ranked", "tau-b", *(f"% right {b}" for b in labels), "regret", "tied")
    for one in studies:
        yield (one.workload, "all", *_figures(one.whole))
        yield ("", f"within {NEAR:g}x", *_figures(one.near))


def _figures(ranking: Ranking) -> tuple[str, ...]:
    tau = "-" if ranking.tau_b is None else f"{ranking.tau_b:.3f}"
    buckets = ("-" if b.accuracy is None else f"{100 * b.accuracy:.1f} of {b.pairs}" for b in ranking.buckets)
    regret = "-" if ranking.pick is None else f"{100 * ranking.pick.regret:.1f} %"
    tied = "-" if ranking.pick is None else str(ranking.pick.tied)
    return (str(ranking.ranked), tau, *buckets, regret, tied)
