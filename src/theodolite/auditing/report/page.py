"""`report.html`: one self-contained page with everything that a run can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from theodolite import records
from theodolite.auditing.judge import Judgement
from theodolite.auditing.manifest import Manifest, Samples
from theodolite.auditing.metrics import NEAR_BEST
from theodolite.auditing.report import units
from theodolite.auditing.report.pairs import PairsView
from theodolite.auditing.report.plots import FUSIONS, OTHER_FUSION
from theodolite.auditing.report.views import page_view
from theodolite.errors import RunError

HERE = Path(__file__).parent
MARKER_PATHS = {
    "o": "M8 3a5 5 0 1 0 .01 0z",
    "D": "M8 2l5.5 6-5.5 6-5.5-6z",
    "s": "M3.5 3.5h9v9h-9z",
    "^": "M8 3l5.5 10h-11z",
    "v": "M8 13l5.5-10h-11z",
}


def write_report(
    manifest: Manifest,
    samples: Samples | None,
    judgement: Judgement | None,
    path: Path,
    pairs: PairsView | None = None,
) -> None:
    """Write the page; the same records give the same bytes.

    Without samples and judgement the page holds candidates, predictions and gates alone; `pairs` adds a section to it.
    Raises RunError where only one of samples and judgement is given, or where they do not belong together.
    """
    records.write(path, render(manifest, samples, judgement, pairs))


def render(
    manifest: Manifest, samples: Samples | None, judgement: Judgement | None, pairs: PairsView | None = None
) -> str:
    """The page as text; see `write_report`."""
    if (samples is None) != (judgement is None):
        raise RunError("a report needs samples and their judgement, or neither: judge the samples first")
    if judgement is not None and samples is not None:
        if judgement.run_id != manifest.run_id:
            raise RunError(f"judgement of {judgement.run_id} given with manifest {manifest.run_id}: judge this one")
        if judgement.samples_run_id != samples.run_id:
            raise RunError(f"judgement of samples {judgement.samples_run_id} given with {samples.run_id}: judge these")
    if pairs is not None and pairs.run_id != manifest.run_id:
        raise RunError(f"pairs of run {pairs.run_id} given with manifest {manifest.run_id}: judge this one's")
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "us": units.us,
        "percent": units.percent,
        "times": units.times,
        "p_value": units.p_value,
        "figure": _figure,
        "pretty": lambda value: json.dumps(msgspec.to_builtins(value), sort_keys=True, indent=1),
        "svg": Markup,
    }
    return environment.get_template("page.html").render(
        page=page_view(manifest, samples, judgement),
        page_pairs=pairs,
        units=units,
        near_best=NEAR_BEST,
        style=Markup((HERE / "style.css").read_text()),
        legend=[(name, colour, MARKER_PATHS[marker]) for name, (colour, marker) in _legend()],
    )


def _legend() -> list[tuple[str, tuple[str, str]]]:
    return [*FUSIONS.items(), ("other", OTHER_FUSION)]


def _figure(value: Any) -> str:
    """A gate's figure: integers with separators, others with four digits, text as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
