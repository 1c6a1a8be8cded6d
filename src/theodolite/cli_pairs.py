"""The verb `pairs`: every mapping one decision away from a given one, and what a model makes of the difference."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from theodolite.cli_options import GpuOpt
from theodolite.cost.model import model
from theodolite.gpus import gpu as gpu_named
from theodolite.mapper.pairs import Pair, pairs
from theodolite.workloads import workload as workload_named


def register(app: typer.Typer, out: Console) -> None:
    """Add the verb to the command line."""

    @app.command("pairs")
    def pairs_command(
        workload: Annotated[str, typer.Argument(help="sdpa:C, or sdpa:b=1,h=32,l=1024,s=1024,d=128,causal")],
        schedule: Annotated[str, typer.Option("--schedule", help="flash:bm=64,bn=128,split=1,warps=4,stages=3")],
        gpu: GpuOpt = "h200",
        model_: Annotated[str, typer.Option("--model", help="corrected, baseline, or TERM,TERM,...")] = "corrected",
        gap: Annotated[float | None, typer.Option("--gap", min=0, help="only larger predicted gaps, as 0.05")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="a JSON object a line, for machines")] = False,
    ) -> None:
        """List the mappings one decision away: predicted gap, and what the decision moves that no term prices."""
        what, machine, chosen = workload_named(workload), gpu_named(gpu), model(model_)
        found = pairs(schedule, what, machine, chosen)
        shown = [p for p in found if gap is None or (p.gap is not None and p.gap > gap)]
        if as_json:
            for pair in shown:
                typer.echo(json.dumps(answer(pair)))
            return
        out.print(table_of(shown, f"{chosen.name} on {what.name}, {machine.name}: {len(shown)} of {len(found)} pairs"))


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
