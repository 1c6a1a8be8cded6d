"""`theodolite import`: AccelForge's mappings as trees that `show`, `cost` and `lower` take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from theodolite import records
from theodolite.cost.model import Cost, baseline, corrected, evaluate
from theodolite.errors import TextError, TheodoliteError
from theodolite.gpus import gpu as gpu_named
from theodolite.gpus.gpu import Gpu
from theodolite.ir.accelforge.source import MAX_DIGITS
from theodolite.ir.text import show
from theodolite.looptrees import Imported, check_shared, import_mapping

console = Console(soft_wrap=True)


def import_command(
    mappings: Annotated[list[Path], typer.Argument(help="YAML files with one mapping each")],
    using: Annotated[list[Path], typer.Option("--using", help="files with the architecture and the workload")],
    out: Annotated[Path, typer.Option("--out", help="folder for NAME.tree files")],
    gpu: Annotated[str, typer.Option("--gpu", help="the GPU that the trees are for")] = "h200",
    variable: Annotated[list[str] | None, typer.Option("--set", help="NAME=NUMBER for the files' templates")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line, for machines")] = False,
) -> None:
    """Read AccelForge mappings of attention as trees for a GPU, classify them and cost them by both models.

    A mapping that breaks a rule, or that is not read, becomes no tree and keeps none of the others from becoming one;
    the exit code is 2 then.
    """
    machine, values = gpu_named(gpu), dict(_variable(v) for v in variable or [])
    _check_names(mappings)
    check_shared(tuple(using), values)
    found: list[Imported] = []
    for path in mappings:
        try:
            one = import_mapping(path, tuple(using), values, machine)
            costs = _costs(path, one, machine)
        except TheodoliteError as error:
            said = str(error) if str(path) in str(error) else f"{path}: {error}"
            if len(mappings) == 1:
                raise type(error)(said) from error
            typer.echo(f"theodolite: {said}", err=True)
            continue
        tree = None if one.broken else out / f"{path.stem}.tree"
        if tree:
            records.write(tree, show(one.tree))
        found.append(one)
        if as_json:
            typer.echo(json.dumps(_row(path, one, costs, tree)))
        else:
            console.print(f"{path.name}: {_told(one, costs)}", markup=False, highlight=False)
    _summary(len(mappings), found, out, as_json)


def _check_names(mappings: list[Path]) -> None:
    by_name: dict[str, Path] = {}
    for path in mappings:
        other = by_name.setdefault(path.stem, path)
        if other is not path:
            raise TextError(f"{other} and {path} would both be {path.stem}.tree: import them into folders of their own")


def _costs(path: Path, found: Imported, machine: Gpu) -> Mapping[str, Cost]:
    """What each model says; nothing of a tree that is no mapping for the GPU."""
    if found.broken:
        return {}
    try:
        return {m.name: evaluate(found.tree, found.workload, machine, m) for m in (baseline(), corrected())}
    except TheodoliteError as error:
        more = f" ({found.elsewhere})" if found.elsewhere else ""
        raise type(error)(f"{path} cannot be costed: {error}{more}") from error


def _row(path: Path, found: Imported, costs: Mapping[str, Cost], tree: Path | None) -> dict[str, Any]:
    return {
        "file": path.name,
        "tree": str(tree) if tree else None,
        "fusion": found.fusion,
        "broken": found.broken,
        "unsound": found.unsound,
        "seconds": {name: cost.seconds for name, cost in costs.items()},
        "why_not": {name: cost.why_not for name, cost in costs.items() if cost.why_not},
        "elsewhere": found.elsewhere,
        "notes": list(found.notes),
    }


def _told(found: Imported, costs: Mapping[str, Cost]) -> str:
    """A mapping's line: what it is, what it costs or why not, whether it is sound, what is not carried over."""
    parts = [found.fusion]
    if found.broken:
        parts.append(f"no tree: {found.broken}")
    else:
        times = [f"{n} - ({c.why_not})" if c.seconds is None else f"{n} {c.seconds * 1e6:.3f} us"
                 for n, c in costs.items()]  # fmt: skip
        parts += [", ".join(times), found.unsound or "sound"]
    if found.elsewhere and found.elsewhere not in [c.why_not for c in costs.values()]:
        parts.append(f"no cost on its own architecture: {found.elsewhere}")
    return "; ".join((*parts, *found.notes))


def _summary(asked: int, found: list[Imported], out: Path, as_json: bool) -> None:
    """The last line: what to do next, or, as the error that ends the run, how many mappings became no tree."""
    trees = [one for one in found if not one.broken]
    if len(trees) < asked:
        broken, refused = len(found) - len(trees), asked - len(found)
        why = [f"{n} {what}" for n, what in ((broken, "broke a rule"), (refused, "not read or not costed")) if n]
        raise TheodoliteError(f"{len(trees)} of {asked} mappings became trees in {out}: {', '.join(why)}")
    if not as_json:
        then = f"theodolite lower {found[-1].workload.name} --tree {out} --out RUN"
        console.print(f"{asked} trees in {out}; next: {then}", markup=False, highlight=False)


def _variable(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not (value.isascii() and value.isdecimal()) or len(value) > MAX_DIGITS:
        raise TextError(f"--set reads NAME=NUMBER, of at most {MAX_DIGITS} digits, not {text[:60]!r}")
    return name, int(value)
