"""The command line: each step of the pipeline is a verb, `audit` is all of them in a row.

Results go to standard output, progress and errors to standard error.  A mistake of the user's is one line and exit
code 2.  With --json the same input gives the same bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from theodolite import batch, cli_collect, cli_import, cli_pairs, pair_audit, pipeline, records
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.bench.measure import gpu_here, is_gpu
from theodolite.auditing.manifest import Candidate, Manifest
from theodolite.auditing.report.terminal import pairs_table, summary_table
from theodolite.cli_options import (
    CasesArg,
    DataOpt,
    DirArg,
    GpuOpt,
    JobsOpt,
    JsonOpt,
    ModelOpt,
    RandomOpt,
    RecordingOpt,
    ScheduleOpt,
    SeedOpt,
    TopOpt,
    TreeOpt,
    WorkloadArg,
    err,
    out,
    plain,
    progress,
)
from theodolite.cli_trees import chosen_tree, named_mappings
from theodolite.collect import holds_grid, verify_grid
from theodolite.cost.model import Cost, model
from theodolite.errors import Infeasible, RunError, TextError, TheodoliteError, plain_reason
from theodolite.gate_journal import GATES, GateJournal
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.realise import realise
from theodolite.ir.text import show
from theodolite.ir.workload import Workload
from theodolite.mapper.search import map_workload
from theodolite.workloads import workload as workload_named

app = typer.Typer(
    help="Finds the best mapping of a cascade of Einsums on a GPU, writes its kernels, proves and measures them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli_collect.register(app, out, progress)
cli_pairs.register(app, out, progress)
app.command("import")(cli_import.import_command)


# ---- one mapping -------------------------------------------------------------------------------------------------
@app.command("show")
def show_command(
    workload: WorkloadArg,
    gpu: GpuOpt = "h200",
    schedule: ScheduleOpt = None,
    tree: TreeOpt = None,
    realised: Annotated[bool, typer.Option("--realised", help="what the tree becomes on the GPU")] = False,
) -> None:
    """Print the tree that a schedule stands for, or what it becomes on the GPU."""
    what, machine = workload_named(workload), gpu_named(gpu)
    chosen = chosen_tree(what, machine, schedule, tree)
    typer.echo(show(realise(chosen, what) if realised else chosen), nl=False)


@app.command("cost")
def cost_command(
    workload: WorkloadArg,
    gpu: GpuOpt = "h200",
    model_: ModelOpt = "corrected",
    schedule: ScheduleOpt = None,
    tree: TreeOpt = None,
    schedules: Annotated[Path | None, typer.Option("--schedules", help='lines {"id": ..., "schedule": ...}')] = None,
    as_json: JsonOpt = False,
) -> None:
    """Say what a model thinks a mapping costs; with --schedules, a whole file of them."""
    what, machine, chosen = workload_named(workload), gpu_named(gpu), model(model_)
    if schedules is not None:
        if schedule is not None or tree is not None:
            raise TextError("give one of --schedule, --tree and --schedules")
        cost_file(schedules, what, machine, model_, as_json)
        return
    if schedule is None and tree is None:
        raise TextError("give one of --schedule, --tree and --schedules")
    mapping = chosen_tree(what, machine, schedule, tree)
    cost = batch.costed(mapping, what, machine, chosen)
    ident = schedule if schedule is not None else str(tree)
    if as_json:
        typer.echo(json.dumps(batch.answer(ident, cost)))
    if not cost.feasible:
        raise Infeasible(f"{chosen.name} cannot cost this mapping: {cost.why_not}")
    if not as_json:
        out.print(cost_table([(ident, cost)], f"{chosen.name} on {what.name}, {machine.name}"))


def cost_file(path: Path, workload: Workload, gpu: Gpu, model_name: str, as_json: bool) -> None:
    """Answer every line that can be answered; malformed ones are named at the end, with exit code 2."""
    chosen = model(model_name)
    entries = batch.read(path)
    malformed: list[str] = []
    rows: list[tuple[str, Cost]] = []
    for entry in entries:
        cost, fault = batch.cost(entry, workload, gpu, chosen)
        if fault:
            malformed.append(f"line {entry.line}: {fault}")
        if as_json:
            typer.echo(json.dumps(batch.answer(entry.ident, cost)))
        rows.append((str(entry.ident), cost))
    if not as_json:
        out.print(cost_table(rows, f"{chosen.name} on {workload.name}, {gpu.name}"))
    if malformed:
        raise TextError(f"{path}: {len(malformed)} of {len(entries)} lines are malformed, the first on {malformed[0]}")


def cost_table(rows: list[tuple[str, Cost]], title: str) -> Table:
    table = Table(title=escape(title))
    names = list(dict.fromkeys(t for _, cost in rows for t in cost.terms))
    for column in ("mapping", "us", *names, "why not"):
        table.add_column(column, justify="left" if column in ("mapping", "why not") else "right", overflow="fold")
    for ident, cost in rows:
        seconds = "-" if cost.seconds is None else f"{cost.seconds * 1e6:.4f}"
        parts = [f"{cost.terms[n] * 1e6:.4f}" if n in cost.terms else "-" for n in names]
        table.add_row(plain(ident), seconds, *parts, plain(cost.why_not or ""))
    return table


@app.command("map")
def map_command(
    workload: WorkloadArg,
    gpu: GpuOpt = "h200",
    model_: ModelOpt = "corrected",
    top: TopOpt = 5,
    as_json: JsonOpt = False,
) -> None:
    """Find the best mappings of a workload on a GPU under a model."""
    what, machine, chosen = workload_named(workload), gpu_named(gpu), model(model_)
    with progress() as step:
        step("map", 0, 1)
        found = map_workload(what, machine, chosen, top)
        step("map", 1, 1)
    if not found.mapped:
        raise Infeasible(f"{what.name}: no mapping of the space is feasible under {chosen.name} on {machine.name}")
    if as_json:
        for rank, m in enumerate(found.mapped, 1):
            line = {"rank": rank, "seconds": m.seconds, "schedule": str(m.schedule), "tree": show(m.tree)}
            typer.echo(json.dumps({**line, "terms": dict(m.cost.terms)}))
        return
    points = ", ".join(f"{n:,} of {f}" for f, n in found.size.items())
    table = Table(title=escape(f"{chosen.name} on {what.name}, {machine.name} ({points})"))
    for column in ("rank", "us", "schedule"):
        table.add_column(column, justify="left" if column == "schedule" else "right", overflow="fold")
    for rank, m in enumerate(found.mapped, 1):
        table.add_row(str(rank), f"{m.seconds * 1e6:.4f}", str(m.schedule))
    out.print(table)
    for family, count in found.inexpressible.items():
        if count:
            out.print(f"{count:,} mappings of {family} cannot be said in {chosen.name}: counted, not ranked")


# ---- a run, step by step -----------------------------------------------------------------------------------------
def draft_of(directory: Path) -> Manifest:
    path = directory / pipeline.DRAFT
    try:
        return records.load(Manifest, path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(
            f"{directory} holds no {pipeline.DRAFT}: begin with `theodolite lower ... --out {directory}`"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {plain_reason(error)}") from error


@app.command("lower")
def lower_command(
    cases: CasesArg,
    directory: Annotated[Path, typer.Option("--out", help="the run directory to begin")],
    gpu: GpuOpt = "h200",
    schedule: Annotated[list[str] | None, typer.Option("--schedule", help="lower these and nothing else")] = None,
    tree: Annotated[list[Path] | None, typer.Option("--tree", help="likewise: files, or folders of *.tree")] = None,
    top: TopOpt = 5,
    random: RandomOpt = 5,
    seed: SeedOpt = 0,
) -> None:
    """Map, realise and print kernels into a new run directory; `gate` and `freeze` come next."""
    machine = gpu_named(gpu)
    if (directory / pipeline.DRAFT).exists() or (directory / pipeline.MANIFEST).exists():
        raise RunError(f"{directory} already holds a run: give a new directory")
    with progress() as step:
        if schedule or tree:
            asked = [by_hand for c in cases for by_hand in named_mappings(c, machine, schedule or [], tree or [])]
            space: dict[str, object] = {}
        else:
            asked, space = pipeline.map_cases(cases, machine, top, random, seed, step)
        candidates = pipeline.lower_cases(pipeline.merged(asked), machine, step)
    draft = pipeline.draft(candidates, machine, seed, space)
    for candidate in candidates:
        records.write(directory / "kernels" / f"{candidate.id}.py", candidate.program.source)
    records.write(directory / pipeline.DRAFT, records.dump(draft))
    out.print(f"{len(candidates)} programs in {directory / 'kernels'}; next: theodolite gate {directory}", markup=False)


@app.command("gate")
def gate_command(directory: DirArg, jobs: JobsOpt = None) -> None:
    """Run every gate on every candidate of a run directory; after an interrupt, on those that are left."""
    draft = draft_of(directory)
    with progress() as step:
        kept = GateJournal(directory / GATES)
        gated = pipeline.gate_candidates(draft.candidates, gpu_named(draft.gpu), draft.seed, jobs, step, kept)
    records.write(directory / pipeline.DRAFT, records.dump(replace(draft, candidates=tuple(gated))))
    kept.discard()
    print_failed(gated)
    passed = sum(c.passed for c in gated)
    if not passed:
        out.print(f"0 of {len(gated)} passed every gate: nothing to freeze", markup=False)
        raise typer.Exit(1)
    out.print(f"{passed} of {len(gated)} passed every gate; next: theodolite freeze {directory}", markup=False)


def print_failed(candidates: Sequence[Candidate]) -> None:
    """A line a candidate that did not pass every gate, with the reasons."""
    for candidate in (c for c in candidates if not c.passed):
        reasons = "; ".join(f"{g.gate}: {g.reason}" for g in candidate.gates if not g.passed)
        out.print(f"not passed: {candidate.id} {candidate.schedule or ''}: {reasons}", markup=False)


@app.command("freeze")
def freeze_command(directory: DirArg) -> None:
    """Freeze ids and predictions into a manifest, and pack the bundle that measures them."""
    draft = draft_of(directory)
    with progress() as step:
        manifest = pipeline.freeze(draft.candidates, gpu_named(draft.gpu), draft.seed, draft.space, step)
        pipeline.write_run(manifest, directory)
    out.print(
        f"run {manifest.run_id} frozen; next: theodolite measure {directory} (on a machine with the GPU)", markup=False
    )


@app.command("measure", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def measure_command(context: typer.Context, directory: DirArg) -> None:
    """Run the frozen bundle on this machine's GPU; refuses where anything frozen changed.

    Further options go to the bundle's run.py (--rounds, --limit-s, --only).
    """
    pipeline.check_unchanged(directory)
    pair_audit.frozen_pairs(directory)  # raises Drift before anything is timed
    samples = pipeline.measure(directory, context.args)
    good = sum(t.status == "ok" for t in samples.timings)
    out.print(f"{good} of {len(samples.timings)} timed; next: theodolite judge {directory}", markup=False)


@app.command("judge")
def judge_command(directory: DirArg, recording: RecordingOpt = None, as_json: JsonOpt = False) -> None:
    """Judge a measured run, or a run with the samples of a recording, and print the table; of pairs, a second one."""
    frozen = pair_audit.frozen_pairs(directory)
    with progress() as step:
        step("judge", 0, 2)
        judged = pipeline.judge(directory, recording)
        if judged is None:
            raise RunError(f"{directory} was not measured and no --recording is given: nothing to judge")
        step("judge", 1, 2)
        of_pairs = None if frozen is None else pair_audit.judge_pairs(directory, recording)
        step("judge", 2, 2)
    if as_json:
        for record in (judged[0], of_pairs):
            if record is not None:
                typer.echo(json.dumps(asdict(record)))
        return
    out.print(summary_table(judged[0]))
    if of_pairs is not None:
        out.print(pairs_table(of_pairs))


@app.command("report")
def report_command(
    directory: DirArg,
    recording: RecordingOpt = None,
    to: Annotated[Path | None, typer.Option("--out", help="the page; left out: report.html in the run")] = None,
) -> None:
    """Write the report of a run, or of a recording to --out."""
    with progress() as step:
        step("report", 0, 1)
        path = pair_audit.report(directory, recording, to)
        step("report", 1, 1)
    out.print(str(path), markup=False)


@app.command("verify")
def verify_command(directory: DirArg) -> None:
    """Re-derive every id of a run, a grid or a recording; exit code 1 where anything does not follow."""
    with progress() as step:
        if holds_grid(directory):
            count, faults = verify_grid(directory, None, step)
        else:
            faults = [*pipeline.verify(directory, step), *pair_audit.verify_pairs(directory)]
            count = len(read_manifest(directory / pipeline.MANIFEST).candidates)
    for fault in faults:
        out.print(fault, markup=False)
    out.print(f"{count} candidates, {len(faults)} faults", markup=False)
    if faults:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    cases: CasesArg,
    gpu: GpuOpt = "h200",
    runs: Annotated[Path, typer.Option("--runs", help="where run directories go")] = Path("runs"),
    recording: RecordingOpt = None,
    data: DataOpt = Path("data"),
    top: TopOpt = 5,
    random: RandomOpt = 5,
    seed: SeedOpt = 0,
    jobs: JobsOpt = None,
    on_gpu: Annotated[
        bool | None,
        typer.Option("--measure/--no-measure", help="measure here; default: where the GPU is"),
    ] = None,
) -> None:
    """Map, lower, gate, freeze, measure (or attach the recorded run), judge and report."""
    here = is_gpu(gpu_here(), gpu_named(gpu).name) if on_gpu is None else on_gpu
    found = recording or (None if here else pipeline.recording_for(gpu, data))
    with progress() as step:
        directory = pipeline.audit(cases, gpu, runs, found, top, random, seed, jobs, here, step)
    judged = pipeline.judge(directory, found)
    if judged is None:
        out.print(f"no {gpu} here and no recording of one under {data}: every candidate is UNMEASURED", markup=False)
    else:
        out.print(summary_table(judged[0]))
    print_failed(read_manifest(directory / pipeline.MANIFEST).candidates)
    out.print(f"report: {directory / 'report.html'}", markup=False)


USAGE_ERROR: Any = typer.BadParameter.__base__  # typer has no name of its own for all kinds of them
INTERRUPTED = 130


def main() -> None:
    """Run the command line; a mistake of the user's is one line on standard error and exit code 2."""
    try:
        code = app(standalone_mode=False)  # an Exit's code comes back, all else is raised
    except TheodoliteError as error:
        _stop(str(error), 2)
    except OSError as error:  # a file or a disk that fails where nobody has better words for it
        _stop(f"{error.filename or 'a file'}: {plain_reason(error)}", 2)
    except USAGE_ERROR as error:
        if len(sys.argv) == 1:  # nothing was asked for, and the error is the whole help
            error.show()
            sys.exit(2)
        _stop(f"{error.format_message()} ({error.ctx.command_path} --help says more)", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        _say("interrupted; nothing is kept but what a run directory already holds")
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # the usual way out waits for threads of a pool whose processes are gone
    sys.exit(code if isinstance(code, int) else 0)


def _stop(message: str, code: int) -> NoReturn:
    _say(message)
    sys.exit(code)


def _say(message: str) -> None:
    err.print("theodolite: " + " ".join(message.split()), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
