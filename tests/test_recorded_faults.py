"""What real faults did to runs on an H200, held against the run to which nothing happened; see tests/faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.drive import KILLS, state
from tests.faults.plant import BAD, GOOD
from theodolite.auditing.bench.bundle import read_manifest, read_results

DATA = Path(__file__).parent.parent / "data" / "faults" / "h200-2026-11-30"
WHOLE = DATA / "samples.json.gz"
OTHERS = sorted(p for p in DATA.glob("*.json.gz") if p != WHOLE)


def events() -> dict[str, dict[str, Any]]:
    """What was done to each run, over both drives."""
    found = {}
    for number in (1, 2):
        found.update(json.loads((DATA / f"faults-{number}.json").read_text())["scenarios"])
    return found


def test_every_planted_fault_harmed_its_own_candidate_alone() -> None:
    samples = read_results(WHOLE, read_manifest(DATA / "manifest.json"))
    status = {t.candidate: t.status for t in samples.timings}
    assert {n: s for n, s in status.items() if n.startswith("bad-")} == {f"bad-{n}": why[-1] for n, why in BAD.items()}
    good = [t for t in samples.timings if not t.candidate.startswith("bad-")]
    assert len(good) == len(GOOD) + 1
    assert all(t.status == "ok" and len(t.samples_s) == 4000 for t in good)


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_whatever_happened_the_end_is_the_same(path: Path) -> None:
    read_results(path, read_manifest(DATA / "manifest.json"))
    assert state(path) == state(WHOLE)


def test_nothing_that_was_measured_is_lost() -> None:
    found = events()
    assert set(found) == {"whole"} | {p.name.removesuffix(".json.gz") for p in OTHERS}
    assert all(run["samples_lost"] == [] for run in found.values())
    assert found["worker"]["rounds_kept"] > 30
    assert found["disk"]["rounds_kept"] > 30
    assert sum(run["rounds_kept"] > 1000 for run in found.values()) >= 3, "some kills came in the middle of the rounds"


def test_the_parent_was_killed_often_enough() -> None:
    found = events()
    for names in (["killed"], [n for n in found if n.startswith("killed-")]):
        kills = [e for name in names for e in found[name]["events"] if e["what"] == "SIGKILL"]
        assert len(kills) >= (KILLS if len(names) > 1 else 10)
        assert len({e["after_s"] for e in kills}) == len(kills)


def test_a_full_disk_stops_the_run_twice_and_blames_nobody() -> None:
    codes = [e["code"] for e in events()["disk"]["events"] if e["what"] == "exit"]
    assert codes == [3, 3, 1], "full while compiling, full during the rounds, then done, with some that failed"
