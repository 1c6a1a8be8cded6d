"""The verb `pairs`: every mapping one decision away from a given one, and an audit of such pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from theodolite import pair_audit
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.cli_options import CasesArg, GpuOpt, JobsOpt, JsonOpt, ModelOpt, ScheduleOpt
from theodolite.cost.model import model
from theodolite.errors import TextError
from theodolite.gpus import gpu as gpu_named
from theodolite.mapper.pairs import Pair, pairs
from theodolite.pipeline import MANIFEST, Progress
from theodolite.workloads import workload as workload_named

ProgressBars = Callable[[], AbstractContextManager[Progress]]
GAP, COUNT, BASES = 0.05, 12, 4  # what --freeze takes where the options are left out


def register(app: typer.Typer, out: Console, progress: ProgressBars) -> None:
    """Add the verb to the command line."""

    @app.command("pairs")
    def pairs_command(
        cases: CasesArg,
        schedule: ScheduleOpt = None,
        freeze: Annotated[Path | None, typer.Option("--freeze", help="a run directory to begin with the pairs")] = None,
        gpu: GpuOpt = "h200",
        model_: ModelOpt = "corrected",
        gap: Annotated[float | None, typer.Option("--gap", min=0, help=f"only larger gaps; frozen: {GAP}")] = None,
        count: Annotated[int | None, typer.Option("--count", min=1, help=f"frozen a workload: {COUNT}")] = None,
        bases: Annotated[
            int | None, typer.Option("--bases", min=0, help=f"drawn mappings to start at: {BASES}")
        ] = None,
        also: Annotated[
            str | None, typer.Option("--also", help="only pairs of which this model too says something, be it a tie")
        ] = None,
        seed: Annotated[int | None, typer.Option("--seed", min=0, help="of the draw and of the inputs: 0")] = None,
        jobs: JobsOpt = None,
        as_json: JsonOpt = False,
    ) -> None:
        """List the mappings one decision away from --schedule: gap, and what the decision moves that no term prices.

        With --freeze, --count such pairs of each workload are lowered, gated and frozen, for measure, judge and report:
        all those round --schedule, or without it some round the model's best mapping and drawn ones.
        """
        if freeze is None:
            options = {"--count": count, "--bases": bases, "--also": also, "--seed": seed, "--jobs": jobs}
            for name, given in options.items():
                if given is not None:
                    raise TextError(f"{name} goes with --freeze RUN: what is listed are all pairs of --schedule")
            if schedule is None or len(cases) > 1:
                raise TextError("give one workload and --schedule to list pairs, or --freeze RUN to audit some")
            list_pairs(out, cases[0], schedule, gpu, model_, gap, as_json)
            return
        if as_json:
            raise TextError(f"--json lists pairs; what --freeze froze stands in {freeze / pair_audit.PAIRS}")
        if schedule is not None and bases is not None:
            raise TextError("give one of --schedule and --bases")
        with progress() as step:
            pair_audit.audit_pairs(
                cases,
                gpu,
                freeze,
                count=count if count is not None or schedule is not None else COUNT,
                gap=GAP if gap is None else gap,
                model=model_,
                bases=BASES if bases is None else bases,
                seed=seed or 0,
                jobs=jobs,
                progress=step,
                schedule=schedule,
                also=also,
            )
        say_frozen(out, freeze)


def list_pairs(
    out: Console, case: str, schedule: str, gpu: str, model_name: str, gap: float | None, as_json: bool
) -> None:
    """Print every pair of a mapping, or those whose predicted gap is above `gap`."""
    what, machine, chosen = workload_named(case), gpu_named(gpu), model(model_name)
    found = pairs(schedule, what, machine, chosen)
    shown = [p for p in found if gap is None or (p.gap is not None and p.gap > gap)]
    if as_json:
        for pair in shown:
            typer.echo(json.dumps(answer(pair)))
        return
    out.print(table_of(shown, f"{chosen.name} on {what.name}, {machine.name}: {len(shown)} of {len(found)} pairs"))


def say_frozen(out: Console, directory: Path) -> None:
    """A line a pair that cannot be measured, and one for the whole run."""
    manifest = read_manifest(directory / MANIFEST)
    frozen = pair_audit.read_pairs(directory, manifest).pairs
    failed = {
        c.id: next(f"{g.gate}: {g.reason}" for g in c.gates if not g.passed)
        for c in manifest.candidates
        if not c.passed
    }
    lost = {p.id: name for p in frozen for name in (p.a, p.b) if name in failed}
    for pair_id, name in lost.items():
        out.print(f"not to be measured: pair {pair_id}: {name}: {failed[name]}", markup=False)
    out.print(
        f"run {manifest.run_id} frozen: {len(frozen) - len(lost)} of {len(frozen)} pairs passed every gate, "
        f"{len(manifest.candidates)} candidates; next: theodolite measure {directory} (on a machine with the GPU)",
        markup=False,
    )


def answer(pair: Pair) -> dict[str, Any]:
    """The JSON object of one pair; seconds and gap are null where the model does not cost both members."""
    return {
        "decision": pair.decision,
        "values": pair.values,
        "a": str(pair.a),
        "b": str(pair.b),
        "a_s": pair.a_s,
        "b_s": pair.b_s,
        "gap": pair.gap,
        "why_not": pair.why_not,
        "moved": {m.field: [m.a, m.b] for m in pair.moved},
        "unpriced": pair.unpriced,
    }


def table_of(shown: list[Pair], title: str) -> Table:
    table = Table(title=escape(title), caption="A is the mapping given; + is a gap in its favour")
    right = ("A us", "B us", "gap")
    for column in ("decision", "A to B", *right, "moved, unpriced"):
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for pair in shown:
        a, b = pair.values
        table.add_row(pair.decision, f"{a} to {b}", _us(pair.a_s), _us(pair.b_s), _gap(pair), escape(_unpriced(pair)))
    return table


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.4f}"


def _gap(pair: Pair) -> str:
    """B over A, or A over B, minus one; signed by who is predicted to be faster."""
    if pair.gap is None or pair.a_s is None or pair.b_s is None:
        return "-"
    if pair.gap == 0:
        return "tie"
    return f"{'+' if pair.a_s < pair.b_s else '-'}{pair.gap:.1%}"


def _unpriced(pair: Pair) -> str:
    if pair.why_not is not None:
        return pair.why_not
    return ", ".join(pair.unpriced) or "-"
