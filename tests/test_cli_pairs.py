"""The verbs on a run of pairs, from freezing to verdicts and the page; what was tampered with is found out."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.auditing.made_up import FAILED
from tests.test_pair_audit import CASE, FLASH, as_predicted, measured, with_samples
from theodolite import cli, cli_pairs, pair_audit, pipeline, records
from theodolite.auditing.bench.bundle import read_manifest
from theodolite.auditing.manifest import Candidate, Manifest
from theodolite.auditing.pairs import FrozenPairs, PairJudgement
from theodolite.mapper.shorthand import parse_schedule
from theodolite.pair_audit import PAIRS, VERDICTS, read_pairs, verify_pairs

Run = Callable[..., tuple[int, str, str]]


def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["theodolite", *words])
    monkeypatch.setattr(cli, "out", Console(width=200))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    got = capsys.readouterr()
    return int(ended.value.code or 0), got.out, got.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, standard output, standard error) of a command line."""
    return lambda *words: called(monkeypatch, capsys, *words)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pairs round one mapping, frozen by the verb."""
    directory = tmp_path_factory.mktemp("verb") / "run"
    words = ["pairs", CASE, "--schedule", FLASH, "--freeze", str(directory), "--count", "3", "--gap", "0.06"]
    done = CliRunner().invoke(cli.app, [*words, "--jobs", "2"])
    assert done.exit_code == 0, done.output
    return directory


@pytest.fixture
def judged_run(frozen: Path, tmp_path: Path) -> Path:
    """A copy with samples that take what CORRECTED predicts."""
    return with_samples(frozen, tmp_path / "run", measured(read_manifest(frozen / "manifest.json"), as_predicted))


def refrozen(run: Path, to: Path, pairs: FrozenPairs, candidates: tuple[Candidate, ...] | None = None) -> Manifest:
    """The run with other pairs or candidates, frozen by all the rules: every digest follows."""
    old = read_manifest(run / "manifest.json")
    space = {"pairs": {"digest": records.digest(pairs), "count": len(pairs.pairs)}}
    new = replace(old, run_id="", space=space, candidates=candidates or old.candidates)
    new = replace(new, run_id=records.digest(new)[:12])
    records.write(to / PAIRS, records.dump(pairs))
    pipeline.write_run(new, to)
    return new


# ---- freeze ------------------------------------------------------------------------------------------------------
def test_what_the_verb_freezes_are_clear_pairs_of_that_mapping_in_a_whole_run(frozen: Path) -> None:
    manifest = read_manifest(frozen / "manifest.json")
    kept = read_pairs(frozen, manifest)
    by_id = {c.id: c for c in manifest.candidates}
    assert (kept.model, kept.gap, len(kept.pairs)) == ("CORRECTED", 0.06, 3)
    assert {by_id[p.a].schedule for p in kept.pairs} == {FLASH}
    for p in kept.pairs:
        a_s, b_s = (by_id[name].prediction("CORRECTED").seconds for name in (p.a, p.b))
        assert max(a_s, b_s) / min(a_s, b_s) > 1.06
    assert sorted(p.name for p in frozen.iterdir()) == ["bundle", "manifest.json", PAIRS]
    assert [p.name for p in frozen.parent.iterdir()] == ["run"]


def test_an_interrupt_while_the_run_is_written_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(manifest: Manifest, directory: Path) -> None:
        records.write(directory / "bundle" / "run.py", "half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "gate_candidates", lambda candidates, *_: candidates)
    monkeypatch.setattr(pair_audit, "_some_passed", lambda *_: None)
    monkeypatch.setattr(pipeline, "write_run", interrupted)
    monkeypatch.setattr(cli.os, "_exit", sys.exit)
    code, out, err = run("pairs", CASE, "--schedule", FLASH, "--freeze", str(tmp_path / "run"), "--count", "1")
    assert (code, out) == (130, "")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_pair_that_passed_its_gates_nothing_is_frozen(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "gate_candidates", lambda found, *_: [replace(c, gates=FAILED) for c in found])
    code, out, err = run("pairs", CASE, "--schedule", FLASH, "--freeze", str(tmp_path / "run"), "--count", "1")
    assert (code, out) == (2, "")
    assert "0 of 1 pairs passed every gate" in err
    assert "fidelity: dots differ" in err
    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "nothing to do": ((CASE,), "give one workload and --schedule to list pairs, or --freeze RUN"),
    "two workloads to list": ((CASE, "sdpa:A", "--schedule", FLASH), "give one workload and --schedule"),
    "a count to list": ((CASE, "--schedule", FLASH, "--count", "3"), "--count goes with --freeze RUN"),
    "a mapping and bases": ((CASE, "--schedule", FLASH, "--freeze", "x", "--bases", "2"), "one of --schedule and"),
    "JSON of a run": ((CASE, "--freeze", "x", "--json"), "--json lists pairs"),
    "too many": ((CASE, "--freeze", "x", "--count", "5000"), "not 5000: ask for fewer, a smaller gap or more bases"),
    "too large a gap": (
        (CASE, "--freeze", "x", "--schedule", FLASH, "--gap", "1e6"),
        "0 pairs have a gap above 100000000.0%, not one: ask for fewer, a smaller gap",
    ),
    "a file": ((CASE, "--freeze", "here"), "here holds another run, or something else: give a new directory"),
    "where one stands": ((CASE, "--freeze", "."), "give a new directory"),
    "below a file": ((CASE, "--freeze", "here/run"), "here/run cannot be written"),
    "no schedule": ((CASE, "--freeze", "x", "--schedule", "ring:bm=1"), "unknown schedule family 'ring'"),
    "no room": (
        ("sdpa:C", "--freeze", "x", "--schedule", "flash:bm=256,bn=256,split=1,warps=8,stages=5"),
        "does not fit h200",
    ),
    "no workload": (("conv:A", "--freeze", "x"), "unknown workload 'conv'"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").write_text("")
    words, message = MISTAKES[what]
    code, out, err = run("pairs", *words)
    assert (code, out) == (2, "")
    assert err.startswith("theodolite: ")
    assert err.count("\n") == 1
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["here"]


# ---- judge and report --------------------------------------------------------------------------------------------
def test_judge_prints_and_keeps_the_verdicts_of_pairs(run: Run, judged_run: Path) -> None:
    code, out, err = run("judge", str(judged_run))
    assert (code, err) == (0, "")
    rows = [line.split("│")[1:-1] for line in out[out.index("3 pairs, predicted before") :].splitlines() if "│" in line]
    counts = {(r[0].strip(), r[1].strip()): [c.strip() for c in r[2:]] for r in rows}
    assert counts["CORRECTED", "all"] == ["3", "0", "0", "0"]
    assert counts["BASELINE", "all"] == ["0", "0", "3", "0"]
    kept = records.load(PairJudgement, (judged_run / VERDICTS).read_bytes(), VERDICTS)
    assert kept.counts("CORRECTED")["RIGHT"] == 3
    code, out, _ = run("judge", str(judged_run), "--json")
    ranking, pairs = (json.loads(line) for line in out.splitlines())
    assert "rankings" in ranking
    assert records.load(PairJudgement, json.dumps(pairs), "json") == kept


def test_report_shows_the_section_measured_or_not(run: Run, judged_run: Path, frozen: Path, tmp_path: Path) -> None:
    code, out, _ = run("report", str(judged_run))
    page = judged_run / "report.html"
    assert (code, out.strip()) == (0, str(page))
    assert 'id="pairs"' in page.read_text()
    assert "3 predicted before" in page.read_text()
    (judged_run / "samples.json.gz").unlink()
    (judged_run / VERDICTS).unlink()
    (judged_run / pipeline.VERDICTS).unlink()
    assert run("report", str(judged_run))[0] == 0
    assert "below are the pairs and what was predicted of them" in page.read_text()
    assert not (judged_run / VERDICTS).exists()


def test_a_run_of_no_pairs_has_none_of_it(run: Run, judged_run: Path) -> None:
    (judged_run / PAIRS).unlink()
    old = read_manifest(judged_run / "manifest.json")
    plain = replace(old, run_id="", space={})
    plain = replace(plain, run_id=records.digest(plain)[:12])
    there = judged_run.parent / "plain"
    pipeline.write_run(plain, there)
    with_samples(there, there.parent / "measured", measured(plain, as_predicted))
    code, out, _ = run("judge", str(there.parent / "measured"), "--json")
    assert (code, out.count("\n")) == (0, 1)
    assert run("verify", str(there)) == (0, "4 candidates, 0 faults\n", "")


def test_a_member_that_failed_a_gate_makes_its_pairs_unmeasured(run: Run, frozen: Path, tmp_path: Path) -> None:
    old = read_manifest(frozen / "manifest.json")
    kept = read_pairs(frozen, old)
    lost = kept.pairs[0].b
    candidates = tuple(replace(c, gates=FAILED) if c.id == lost else c for c in old.candidates)
    manifest = refrozen(frozen, tmp_path / "new", kept, candidates)
    console = Console(width=300, record=True, file=io.StringIO())
    cli_pairs.say_frozen(console, tmp_path / "new")
    lines = console.export_text().splitlines()
    assert lines[0].startswith(f"not to be measured: pair {kept.pairs[0].id}: {lost}: fidelity: dots differ")
    assert f"run {manifest.run_id} frozen: 2 of 3 pairs passed every gate, 4 candidates; next: " in lines[1]
    there = with_samples(tmp_path / "new", tmp_path / "run", measured(manifest, as_predicted))
    assert run("judge", str(there))[0] == 0
    judged = records.load(PairJudgement, (there / VERDICTS).read_bytes(), VERDICTS)
    outcomes = {j.pair.id: j.verdict.outcome for j in judged.of("CORRECTED")}
    assert [outcomes[p.id] for p in kept.pairs] == ["UNMEASURED", "RIGHT", "RIGHT"]
    assert run("report", str(there))[0] == 0
    assert "fidelity" in (there / "report.html").read_text()


# ---- verify ------------------------------------------------------------------------------------------------------
def test_a_frozen_run_and_its_bundle_verify(run: Run, frozen: Path) -> None:
    assert run("verify", str(frozen)) == (0, "4 candidates, 0 faults\n", "")
    assert verify_pairs(frozen / "bundle") == []


@pytest.mark.parametrize("what", ["one less", "swapped", "another value", "gone", "no JSON"])
def test_tampered_pairs_are_refused_by_every_verb(run: Run, judged_run: Path, what: str) -> None:
    path = judged_run / PAIRS
    kept = read_pairs(judged_run, read_manifest(judged_run / "manifest.json"))
    first, *rest = kept.pairs
    changed = {
        "one less": rest,
        "swapped": [replace(first, a=first.b, b=first.a), *rest],
        "another value": [replace(first, b_value=3), *rest],
    }
    if what == "gone":
        path.unlink()
    else:
        text = records.dump(replace(kept, pairs=tuple(changed[what]))) if what in changed else "{"
        path.write_text(text)
    message = "holds no pairs.json" if what == "gone" else "is not"
    for verb in ("measure", "judge", "report"):
        code, out, err = run(verb, str(judged_run))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert not any((judged_run / name).exists() for name in (VERDICTS, pipeline.VERDICTS, "report.html"))
    code, out, _ = run("verify", str(judged_run))
    assert code == 1
    assert out.endswith("4 candidates, 1 faults\n")
    assert message in out


def test_swapped_members_frozen_as_such_follow_and_flip_the_sign_alone(frozen: Path, tmp_path: Path) -> None:
    old = read_manifest(frozen / "manifest.json")
    kept = read_pairs(frozen, old)
    turned = tuple(replace(p, a=p.b, b=p.a, a_value=p.b_value, b_value=p.a_value) for p in kept.pairs)
    manifest = refrozen(frozen, tmp_path / "new", replace(kept, pairs=turned))
    assert verify_pairs(tmp_path / "new") == []
    there, back = (
        pair_audit.judge_pairs(with_samples(d, tmp_path / name, measured(m, as_predicted)))
        for d, m, name in ((frozen, old, "there"), (tmp_path / "new", manifest, "back"))
    )
    for x, y in zip(there.judged, back.judged, strict=True):
        assert (x.verdict, x.provenance, x.pair.id) == (y.verdict, y.provenance, y.pair.id)
        assert {x.measured_faster, y.measured_faster} == {"A", "B"}
        assert (x.predicted_a_s, x.predicted_b_s) == (y.predicted_b_s, y.predicted_a_s)


def test_pairs_that_are_none_are_found_though_every_digest_follows(frozen: Path, tmp_path: Path) -> None:
    """What only the mappings can show: two decisions at once, another decision's name, values, ids, schedules."""
    old = read_manifest(frozen / "manifest.json")
    kept = read_pairs(frozen, old)
    first, second, third = kept.pairs
    by_id = {c.id: c for c in old.candidates}
    two = {
        k
        for k, v in parse_schedule(by_id[first.b].schedule).values.items()
        if v != parse_schedule(by_id[second.b].schedule).values[k]
    }
    assert len(two) == 2
    cases = {
        f"differ in {', '.join(sorted(two))}, not in {first.decision} alone": replace(first, a=second.b),
        f"differ in nothing, not in {first.decision} alone": replace(first, a=first.b),
        f"differ in {first.decision}, not in warps alone": replace(first, decision="warps"),
        f"{first.decision} is {first.a_value} and {first.b_value}": replace(first, b_value=3),
        "its id does not follow": replace(first, id="sdpa.A-split-00000000"),
        "no candidate 'nobody'": replace(first, b="nobody"),
        "2 pairs are called": replace(first, id=second.id),
    }
    for n, (message, wrong) in enumerate(cases.items()):
        there = tmp_path / str(n)
        pairs = replace(kept, pairs=(wrong, second, third))
        space = {"pairs": {"digest": records.digest(pairs), "count": 3}}
        records.write(there / PAIRS, records.dump(pairs))
        records.write(there / "manifest.json", records.dump(replace(old, space=space)))
        faults = verify_pairs(there)
        assert any(message in fault for fault in faults), (message, faults)
    lied = tuple(replace(c, schedule=by_id[first.a].schedule) if c.id == first.b else c for c in old.candidates)
    there = tmp_path / "lied"
    records.write(there / PAIRS, records.dump(kept))
    records.write(there / "manifest.json", records.dump(replace(old, candidates=lied)))
    assert any("is not that of its mapping" in fault for fault in verify_pairs(there))
