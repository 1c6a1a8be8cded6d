"""The cost of a triple by AccelForge itself, as the same flat table."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Table = dict[str, float]


def theirs(files: tuple[Path, ...], variables: Mapping[str, Any]) -> Table:
    """What `evaluate_mapping` says, zeros left out.  Raises whatever AccelForge raises."""
    import accelforge
    from accelforge.frontend.spec import Spec
    from accelforge.mapper import Metrics

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    accelforge.set_n_parallel_jobs(1)
    spec = Spec.from_yaml(*map(str, files), jinja_parse_data=dict(variables))
    spec.model.metrics = Metrics.all_metrics()
    row = spec.evaluate_mapping().data.iloc[0]
    table: Table = {}
    for column, value in row.items():
        key = _key(str(column).split("<SEP>"))
        if key is not None:
            table[key] = max(table.get(key, 0.0), float(value)) if key.startswith("peak|") else float(value)
    return {k: v for k, v in table.items() if v != 0}


def _key(words: list[str]) -> str | None:
    """The table's word for a column; None for one that says nothing of its own."""
    match words:
        case ["Total", ("latency" | "energy") as what]:
            return f"total|{what}"
        case [einsum, ("action" | "energy") as what, component, tensor, kind]:
            return f"{what}|{einsum}|{component}|{'' if tensor == 'None' else tensor}|{kind}"
        case [einsum, "energy", component, "leak"]:
            return f"energy|{einsum}|{component}||leak"
        case [einsum, "latency", component]:
            return f"latency|{einsum}|{component}"
        case [einsum, "usage", "memory", memory, tensor]:
            return f"usage|{einsum}|{memory}|{tensor}"
        case ["reservation", memory, *_]:
            return f"peak|{memory}"
        case _:
            return None
