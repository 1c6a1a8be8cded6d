"""What the verbs share: options, the two consoles, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from theodolite import gpus, pipeline

WIDTH = 140  # columns of a pipe or a file: the widest tables fit, where Rich would squeeze them into 80
MOST = 1000  # mappings a model that --top may ask for

WorkloadArg = Annotated[str, typer.Argument(help="sdpa:C, or sdpa:b=1,h=32,l=1024,s=1024,d=128,causal")]
CasesArg = Annotated[list[str], typer.Argument(help="workloads, such as sdpa:A sdpa:B")]
DirArg = Annotated[Path, typer.Argument(help="a run directory")]
GpuOpt = Annotated[str, typer.Option("--gpu", help=f"one of {', '.join(gpus.known())}")]
ModelOpt = Annotated[str, typer.Option("--model", help="corrected, baseline, or TERM,TERM,...")]
JsonOpt = Annotated[bool, typer.Option("--json", help="a JSON object a line, for machines")]
ScheduleOpt = Annotated[str | None, typer.Option("--schedule", help="flash:bm=64,bn=128,split=1,warps=4,stages=3")]
TreeOpt = Annotated[Path | None, typer.Option("--tree", help="a file with an abstract tree")]
TopOpt = Annotated[int, typer.Option("--top", min=1, max=MOST, help="how many of each model's best mappings")]
RandomOpt = Annotated[int, typer.Option("--random", min=0, help="how many mappings drawn at random")]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="seed of the draw and of the inputs")]
JobsOpt = Annotated[int | None, typer.Option("--jobs", min=1, help="candidates gated at a time; all cores if left out")]
RecordingOpt = Annotated[Path | None, typer.Option("--recording", help="a recorded run's directory")]
DataOpt = Annotated[Path, typer.Option("--data", help="where recorded runs lie; the GPU's newest one is used")]


def console() -> Console:
    """Standard output; as wide as WIDTH where neither a terminal nor COLUMNS says how wide it is."""
    wide = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if wide else WIDTH, emoji=False)


out, err = console(), Console(stderr=True, emoji=False)


def plain(text: str) -> Text:
    """A user's text as a cell: brackets are no markup, and what no encoding has (a lone surrogate) is spelled out."""
    return Text(text.encode("utf-8", "backslashreplace").decode())


@contextmanager
def progress() -> Iterator[pipeline.Progress]:
    """Each step as it goes, on standard error: bars on a terminal, elsewhere a line now and then."""
    if not err.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as bars:
        tasks: dict[str, TaskID] = {}

        def show_step(step: str, done: int, of: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=of)
            bars.update(tasks[step], completed=done, total=of)

        yield show_step


def _lines(every_s: float = 10.0) -> pipeline.Progress:
    """Progress for a log: a line where the last one is some seconds old."""
    last = time.monotonic()

    def show_step(step: str, done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            print(f"{step} {done} of {of}", file=sys.stderr, flush=True)

    return show_step
