"""The verbs of collected grids: `collect` writes a bundle, `study` holds a model against what it brought back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from theodolite.auditing.bench.collected import WorkloadSummary, read_collected, summary
from theodolite.auditing.bench.grid_bundle import CANDIDATES, NOT_CHECKED, read_grid_manifest
from theodolite.cli_options import GpuOpt
from theodolite.collect import ALL, Asking, collect, parse_least, result_in
from theodolite.collect_study import rows, study
from theodolite.cost.model import model
from theodolite.pipeline import Progress

ProgressBars = Callable[[], AbstractContextManager[Progress]]


def register(app: typer.Typer, out: Console, progress: ProgressBars) -> None:
    """Add the verbs to the command line."""

    @app.command("collect")
    def collect_command(
        cases: Annotated[list[str], typer.Argument(help="workloads, such as sdpa:A sdpa:B")],
        directory: Annotated[Path, typer.Option("--out", help="where the bundle goes")],
        gpu: GpuOpt = "h200",
        count: Annotated[int, typer.Option("--count", min=1, help="candidates a workload")] = 200,
        seed: Annotated[int, typer.Option("--seed", min=0, help="seed of the draw and of the inputs")] = 0,
        family: Annotated[str, typer.Option("--family", help="flash, pipeline or all")] = ALL,
        pipelines: Annotated[float, typer.Option("--pipelines", help="their part under --family all")] = 0.25,
        grid: Annotated[bool, typer.Option("--grid/--random", help="evenly spread points, or random ones")] = False,
        least: Annotated[list[str] | None, typer.Option("--least", help="KEY=NUMBER: no smaller value")] = None,
        check: Annotated[int, typer.Option("--check", min=0, help="how many pass through every gate here")] = 12,
        jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="processes; all cores if left out")] = None,
    ) -> None:
        """Freeze many candidates into a bundle that measures them in minutes; needs no GPU."""
        asking = Asking(cases, gpu, count, seed, family, pipelines, grid, parse_least(least or []), check)
        with progress() as step:
            manifest = collect(asking, directory, jobs, step)
        checked = sum(c.checked != NOT_CHECKED for c in manifest.candidates)
        out.print(
            f"run {manifest.run_id}: {len(manifest.candidates)} candidates, {len(manifest.kernels)} kernels, "
            f"{checked} candidates checked; next, on the GPU: python {directory / 'run.py'} --limit-s 300",
            markup=False,
        )

    @app.command("study")
    def study_command(
        path: Annotated[Path, typer.Argument(help="collected.json.gz, or a directory that holds it")],
        model_: Annotated[str, typer.Option("--model", help="corrected, baseline, or TERM,TERM,...")] = "corrected",
        as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line, for machines")] = False,
    ) -> None:
        """Summarise a collected grid and say how well a model orders it."""
        found = result_in(path)
        beside = found.parent / CANDIDATES
        collected = read_collected(found, read_grid_manifest(beside) if beside.exists() else None)
        studies = study(collected, model(model_))
        if as_json:
            for one in studies:
                typer.echo(json.dumps(asdict(one)))
            return
        for line in aligned(summary_rows(summary(collected))):
            typer.echo(line)
        typer.echo(f"\n{model(model_).name} on run {collected.run_id}, {collected.gpu}")
        for line in aligned(rows(studies)):
            typer.echo(line)


def summary_rows(summaries: Sequence[WorkloadSummary]) -> Iterator[tuple[str, ...]]:
    """A header and a row a workload: the best schedule, its time, two readings of one kernel, counts by status."""
    yield ("workload", "best", "us", "over the floor", "one kernel twice", "status")
    for s in summaries:
        statuses = ", ".join(f"{n} {name}" for name, n in s.statuses.items())
        seconds = "-" if s.best_s is None else f"{s.best_s * 1e6:.2f}"
        ratio = "-" if s.floor_ratio is None else f"{s.floor_ratio:.2f}x"
        again = "-" if s.again_relative is None else f"{100 * s.again_relative:.2f} %"
        yield (s.workload, s.best or "-", seconds, ratio, again, statuses)


def aligned(table: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows as lines, columns under each other, nothing cut off however narrow the terminal is."""
    cells = list(table)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
