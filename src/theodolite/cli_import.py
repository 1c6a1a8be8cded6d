"""`theodolite import`: AccelForge's mappings as trees that `show`, `cost` and `lower` take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from theodolite import records
from theodolite.cost.model import baseline, corrected, evaluate
from theodolite.errors import TextError, TheodoliteError
from theodolite.gpus import gpu as gpu_named
from theodolite.ir.accelforge.source import MAX_DIGITS
from theodolite.ir.text import show
from theodolite.looptrees import import_mapping

console = Console(soft_wrap=True)


def import_command(
    mappings: Annotated[list[Path], typer.Argument(help="YAML files with one mapping each")],
    using: Annotated[list[Path], typer.Option("--using", help="files with the architecture and the workload")],
    out: Annotated[Path, typer.Option("--out", help="folder for NAME.tree files")],
    gpu: Annotated[str, typer.Option("--gpu", help="the GPU that the trees are for")] = "h200",
    variable: Annotated[list[str] | None, typer.Option("--set", help="NAME=NUMBER for the files' templates")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line, for machines")] = False,
) -> None:
    """Read AccelForge mappings of attention as trees for a GPU, classify them and cost them by both models."""
    machine, values = gpu_named(gpu), dict(_variable(v) for v in variable or [])
    for path in mappings:
        found = import_mapping(path, tuple(using), values, machine)
        models = (baseline(), corrected())
        try:
            costs = {m.name: evaluate(found.tree, found.workload, machine, m).seconds for m in models}
        except TheodoliteError as error:
            raise type(error)(f"{path} cannot be costed: {error}") from error
        records.write(out / f"{path.stem}.tree", show(found.tree))
        line = {"file": path.name, "fusion": found.fusion, "unsound": found.unsound, "seconds": costs}
        if as_json:
            typer.echo(json.dumps(line))
            continue
        told = ", ".join(f"{n} {'-' if s is None else f'{s * 1e6:.3f} us'}" for n, s in costs.items())
        sound = "sound" if found.unsound is None else found.unsound
        console.print(f"{path.name}: {found.fusion}; {told}; {sound}", markup=False, highlight=False)
    if not as_json:
        then = f"theodolite lower {found.workload.name} --tree {out} --out RUN"
        console.print(f"{len(mappings)} trees in {out}; next: {then}", markup=False, highlight=False)


def _variable(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not (value.isascii() and value.isdecimal()) or len(value) > MAX_DIGITS:
        raise TextError(f"--set reads NAME=NUMBER, of at most {MAX_DIGITS} digits, not {text[:60]!r}")
    return name, int(value)
