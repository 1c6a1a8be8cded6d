"""`collect` from end to end without a GPU, and `study` on results whose order is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from theodolite import cli, records
from theodolite.auditing.bench.collected import FORMAT, Collected, CollectedTiming
from theodolite.auditing.bench.grid_bundle import CANDIDATES, NOT_CHECKED, read_grid_manifest
from theodolite.auditing.gates.every import GateReport
from theodolite.auditing.manifest import GateResult
from theodolite.collect import Asking, check_sample, choose, counts, parse_least
from theodolite.collect_study import NEAR, rows, study
from theodolite.cost.model import corrected, evaluate
from theodolite.errors import KernelError, TextError, UnknownName
from theodolite.gpus import gpu
from theodolite.mapper.shorthand import parse_schedule
from theodolite.mapper.skeletons import mapping
from theodolite.workloads import workload

H200 = gpu("h200")
SMALL = "sdpa:b=1,h=2,l=40,s=72,d=64,causal"


def test_collect_writes_a_bundle_that_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bundle"
    words = ["collect", SMALL, "sdpa:A", "--count", "4", "--family", "flash", "--check", "1", "--least", "bm=64"]
    cli.app([*words, "--out", str(out)], standalone_mode=False)
    manifest = read_grid_manifest(out / CANDIDATES)
    assert f"run {manifest.run_id}: 8 candidates" in capsys.readouterr().out
    assert [c.workload for c in manifest.candidates[:2]] == [workload(SMALL).name, workload("sdpa:A").name]
    assert all(parse_schedule(c.schedule).values["bm"] >= 64 for c in manifest.candidates)
    assert sum(c.checked != NOT_CHECKED for c in manifest.candidates) == 1
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    assert size < 1 << 20


def test_families_and_workloads_take_turns() -> None:
    asking = Asking([SMALL, "sdpa:A"], count=8, pipelines=0.25, least={"qk.bk": 16, "av.bs": 16})
    found = choose(asking, H200)
    assert [x.workload for x in found] == [workload(SMALL).name, workload("sdpa:A").name] * 8
    assert sum(x.schedule.startswith("pipeline") for x in found) == 4
    assert [x.schedule for x in found] == [x.schedule for x in choose(asking, H200)]
    assert len({(x.workload, x.schedule) for x in found}) == 16


def test_large_workspaces_are_left_out() -> None:
    limit = 1 << 20
    asking = Asking([SMALL], count=6, family="pipeline", workspace_bytes=limit)
    sizes = [sum(b.size_bytes for b in x.program.workspaces) for x in choose(asking, H200)]
    assert len(sizes) == 6
    assert max(sizes) <= limit
    free = choose(Asking([SMALL], count=6, family="pipeline"), H200)
    assert max(sum(b.size_bytes for b in x.program.workspaces) for x in free) > limit


def test_a_grid_is_thinned_evenly() -> None:
    few = choose(Asking([SMALL], count=5, family="flash", grid=True, least={"bm": 128, "bn": 128}), H200)
    assert len({x.schedule for x in few}) == 5
    splits = {parse_schedule(x.schedule).values["split"] for x in few}
    assert len(splits) > 2, "the ends of the grid and its middle"


def test_what_is_asked_for_is_checked() -> None:
    assert counts(Asking([SMALL], count=10, pipelines=0.3)) == {"flash": 7, "pipeline": 3}
    assert parse_least(["bm=64", "qk.bk=16"]) == {"bm": 64, "qk.bk": 16}
    with pytest.raises(TextError, match="KEY=NUMBER"):
        parse_least(["bm>64"])
    with pytest.raises(UnknownName, match="family"):
        counts(Asking([SMALL], family="flsh"))
    with pytest.raises(TextError, match="between 0 and 1"):
        counts(Asking([SMALL], pipelines=1.5))


def test_a_sampled_candidate_that_fails_a_gate_stops_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking([SMALL], count=3, family="flash", check=2)
    found = choose(asking, H200)
    good, bad = (GateReport((GateResult("fidelity", ok, "dots differ", {}),), {}) for ok in (True, False))
    monkeypatch.setattr("theodolite.collect._gated", lambda work, jobs, progress: [good, good])
    assert sorted(x.checked == NOT_CHECKED for x in check_sample(found, asking, H200)) == [False, False, True]
    monkeypatch.setattr("theodolite.collect._gated", lambda work, jobs, progress: [good, bad])
    with pytest.raises(KernelError, match="does not pass fidelity: dots differ"):
        check_sample(found, asking, H200)


# ---- study -------------------------------------------------------------------------------------------------------
SCHEDULES = [f"flash:bm={bm},bn=64,split={split},warps=4,stages=2" for bm in (32, 64, 128) for split in (1, 2, 4, 8)]


def predicted_s(schedule: str) -> float:
    load = workload("sdpa:C")
    cost = evaluate(mapping(parse_schedule(schedule), load, H200), load, H200, corrected())
    assert cost.seconds is not None
    return cost.seconds


def timing(schedule: str, seconds: float, status: str = "ok") -> CollectedTiming:
    samples = (round(seconds * 1e9),) * 3 if status == "ok" else ()
    name = workload("sdpa:C").name
    return CollectedTiming(schedule, name, schedule, "k", NOT_CHECKED, status, "", {}, {}, (), samples, ())


def collected(timings: list[CollectedTiming]) -> Collected:
    return Collected(FORMAT, "run", "h200", 0, {workload("sdpa:C").name: 1e-6}, {}, tuple(timings))


def test_a_model_that_was_measured_to_be_right_is_right() -> None:
    """Measured times are the model's own, times ten."""
    (one,) = study(collected([timing(s, 10 * predicted_s(s)) for s in SCHEDULES]), corrected())
    assert one.whole.tau_b == pytest.approx(1.0)
    assert one.whole.pick is not None
    assert one.whole.pick.regret == pytest.approx(0.0)
    assert all(b.wrong == b.tied == 0 for b in one.whole.buckets)
    best = min(predicted_s(s) for s in SCHEDULES)
    assert one.near.ranked == sum(predicted_s(s) <= NEAR * best for s in SCHEDULES)
    assert 1 < one.near.ranked < len(SCHEDULES)


def test_a_model_upside_down_is_wrong_and_pays_for_it() -> None:
    times = {s: 1e-10 / predicted_s(s) for s in SCHEDULES}
    (one,) = study(collected([timing(s, t) for s, t in times.items()]), corrected())
    assert one.whole.tau_b == pytest.approx(-1.0)
    assert one.whole.pick is not None
    assert one.whole.pick.regret == pytest.approx(max(times.values()) / min(times.values()) - 1, rel=1e-3)


def test_who_was_not_measured_is_not_ranked() -> None:
    timings = [timing(s, 10 * predicted_s(s), "ok" if n else "hang") for n, s in enumerate(SCHEDULES)]
    (one,) = study(collected(timings), corrected())
    assert (one.whole.candidates, one.whole.ranked) == (len(SCHEDULES), len(SCHEDULES) - 1)


def test_study_prints_a_line_for_all_and_one_for_the_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = collected([timing(s, 10 * predicted_s(s)) for s in SCHEDULES])
    header, whole, near = rows(study(found, corrected()))
    assert len(header) == len(whole) == len(near)
    assert whole[1:4] == ("all", str(len(SCHEDULES)), "1.000")
    records.write(tmp_path / "collected.json.gz", gzip.compress(records.canonical(found)))
    cli.app(["study", str(tmp_path), "--json"], standalone_mode=False)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["whole"]["tau_b"] == pytest.approx(1.0)
    cli.app(["study", str(tmp_path)], standalone_mode=False)
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(workload("sdpa:C").name) for line in printed) == 2
    assert "12 ok" in printed[1]
