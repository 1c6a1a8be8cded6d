"""The recorded runs, re-derived and re-judged without a GPU."""

import itertools
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from theodolite import pipeline, records
from theodolite.auditing.bench.bundle import read_manifest, read_results
from theodolite.auditing.judge import judge
from theodolite.mapper.shorthand import parse_schedule

DATA = Path(__file__).parent.parent / "data"
RUNS = sorted(p.parent for p in DATA.rglob("manifest.json"))
FROZEN = {r.joinpath("manifest.json").read_bytes(): r for r in reversed(RUNS)}  # a run timed twice is frozen once


def test_there_is_a_recording_to_judge():
    assert [r for r in RUNS if read_manifest(r / "manifest.json").gpu == "h200"]


@pytest.mark.parametrize("run", sorted(FROZEN.values()), ids=lambda r: r.name)
def test_every_id_of_a_recording_follows_from_what_is_kept_with_it(run):
    assert pipeline.verify(run) == []


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.name)
def test_samples_belong_to_the_manifest_and_are_all_kept(run):
    manifest = read_manifest(run / "manifest.json")
    samples = read_results(run / "samples.json.gz", manifest)
    assert samples.environment["exclusive"] is True
    assert 0 < samples.environment["event_tick_s"] < 1e-6
    rounds = samples.environment["protocol"]["rounds"]
    fewer = samples.environment["rounds"]
    for timing in samples.timings:
        if timing.status == "ok":
            assert len(timing.samples_s) == fewer.get(timing.candidate, rounds), timing.candidate
            assert all(g.passed for g in timing.gates), timing.candidate


def measured_of(run, case):
    manifest = read_manifest(run / "manifest.json")
    samples = read_results(run / "samples.json.gz", manifest)
    good = {t.candidate for t in samples.timings if t.status == "ok"}
    return [parse_schedule(c.schedule) for c in manifest.candidates if c.case == case and c.id in good and c.schedule]


@pytest.mark.parametrize("case", ["sdpa:A", "sdpa:B", "sdpa:C", "sdpa:D"])
def test_the_spine_holds_enough_of_every_kind_of_mapping(case):
    schedules = measured_of(DATA / "h200-2026-11-30", case)
    tiles_of_one = [s for s in schedules if any(v == 1 for k, v in s.decisions if k in ("qk.bk", "sm.rows", "av.bs"))]
    splits = [s for s in schedules if any(v > 1 for k, v in s.decisions if k.split(".")[-1] == "split")]
    assert len(schedules) >= 14
    assert sum(s.family == "pipeline" for s in schedules) >= 5
    assert len(splits) >= 2
    assert tiles_of_one


def test_the_recording_judged_again_says_what_the_audit_of_four_shapes_found():
    run = DATA / "h200-2026-11-30"
    manifest = read_manifest(run / "manifest.json")
    judgement = judge(manifest, read_results(run / "samples.json.gz", manifest), recorded=False)
    assert judgement.provenance == "predicted before"
    for case in manifest.cases:
        base, corrected = judgement.ranking(case, "BASELINE"), judgement.ranking(case, "CORRECTED")
        # BASELINE cannot say the fused family at all, and its own five best are one tie
        assert base.ranked < base.measured
        assert base.pick.regret > 2
        assert corrected.ranked == corrected.measured
        assert corrected.tau_b > 0.4
        assert corrected.pick.regret < base.pick.regret


def test_a_changed_sample_file_of_another_run_is_refused(tmp_path):
    run = DATA / "h200-2026-11-30"
    manifest = read_manifest(run / "manifest.json")
    samples = read_results(run / "samples.json.gz", manifest)
    with pytest.raises(Exception, match="run"):
        judge(manifest, replace(samples, run_id="000000000000"), recorded=False)


def test_the_manifest_reads_back_byte_for_byte():
    path = DATA / "h200-2026-11-30" / "manifest.json"
    assert records.dump(read_manifest(path)) == path.read_text()


def test_a_second_run_of_the_same_candidates_keeps_their_order():
    first, second = DATA / "h200-2026-11-30", DATA / "repeats" / "h200-2026-11-30-again"
    manifest = read_manifest(first / "manifest.json")
    case = {c.id: c.case for c in manifest.candidates}
    runs = [read_results(run / "samples.json.gz") for run in (first, second)]
    medians = [{t.candidate: statistics.median(t.samples_s) for t in run.timings if t.samples_s} for run in runs]
    clear = agree = 0
    for a, b in itertools.combinations([c for c in case if c in medians[0] and c in medians[1]], 2):
        slow, fast = max(medians[0][a], medians[0][b]), min(medians[0][a], medians[0][b])
        if case[a] == case[b] and slow / fast > 1.03:
            clear += 1
            agree += (medians[0][a] < medians[0][b]) == (medians[1][a] < medians[1][b])
    assert clear > 500
    assert agree == clear
