"""Many schedules in a file, costed line by line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite.cost.model import Cost, Model, evaluate
from theodolite.errors import TextError, TheodoliteError, Unsupported, plain_reason
from theodolite.gpus.gpu import Gpu
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import parse_schedule
from theodolite.mapper.skeletons import mapping


@dataclass(frozen=True)
class Entry:
    """One line of a file of schedules; `fault` says why a line is no entry."""

    line: int
    ident: Any
    schedule: str
    fault: str | None = None


def read(path: Path) -> list[Entry]:
    """The lines {"id": ..., "schedule": ...} of a file; blank ones are skipped.

    Raises TextError where the file cannot be read or holds no line.  Lines end at "\\n" alone: a JSON string may hold
    what Python's splitlines takes for an end of line, such as U+2028.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path} cannot be read: {plain_reason(error)}") from error
    entries = [_entry(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not entries:
        raise TextError(f"{path} holds no schedules")
    return entries


def _entry(number: int, line: str) -> Entry:
    try:
        found = json.loads(line)
    except ValueError as error:  # malformed, or a number with thousands of digits
        return Entry(number, None, "", f"not JSON: {error}")
    except RecursionError:
        return Entry(number, None, "", "nested too deeply to be read")
    if not isinstance(found, dict) or not isinstance(found.get("schedule"), str) or "id" not in found:
        ident = found.get("id") if isinstance(found, dict) else None
        return Entry(number, ident, "", 'a line reads {"id": ..., "schedule": "..."}')
    return Entry(number, found["id"], found["schedule"])


def cost(entry: Entry, workload: Workload, gpu: Gpu, model: Model) -> tuple[Cost, str | None]:
    """(what the model says, what is wrong with the line or None).  A malformed line is infeasible, with its reason."""
    fault = entry.fault
    if fault is None:
        try:
            chosen = parse_schedule(entry.schedule)
        except TheodoliteError as error:
            fault = str(error)
        else:
            return costed(mapping(chosen, workload, gpu), workload, gpu, model), None
    return Cost(None, False, fault, {}, expressible=False), fault


def costed(tree: Tree, workload: Workload, gpu: Gpu, model: Model) -> Cost:
    """What the model says of a mapping; one that nothing realises is infeasible, with its reason."""
    try:
        return evaluate(tree, workload, gpu, model)
    except Unsupported as error:
        return Cost(None, False, str(error), {}, expressible=False)


def answer(ident: Any, cost_: Cost) -> dict[str, Any]:
    """The JSON object of one answer; `terms` sums to `seconds`, in seconds."""
    return {
        "id": ident,
        "seconds": cost_.seconds,
        "feasible": cost_.feasible,
        "why_not": cost_.why_not,
        "terms": dict(cost_.terms),
    }
