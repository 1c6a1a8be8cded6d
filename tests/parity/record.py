"""Write tests/data/accelforge/recorded.json.gz: what AccelForge says, for the lane that has no AccelForge."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.parity.cases import DATA, Case, drawn, stored
from tests.parity.theirs import theirs

SEEDS = range(110)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = [_record(case) for case in _cases(Path(folder))]
    text = json.dumps({"accelforge": version("accelforge"), "cases": cases}, separators=(",", ":"))
    (DATA / "recorded.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _cases(folder: Path) -> Iterator[Case]:
    yield from stored()
    for seed in SEEDS:
        yield drawn(seed, folder)


def _record(case: Case) -> dict[str, Any]:
    """The table, or the kind of error where AccelForge refuses the triple."""
    entry: dict[str, Any] = {"name": case.name, "mark": case.mark}
    try:
        return entry | {"table": {k: float(f"{v:.9g}") for k, v in theirs(case.files, case.variables).items()}}
    except Exception as error:
        return entry | {"refused": type(error).__name__}


if __name__ == "__main__":
    main()
