"""The command line: one line and exit code 2 for a mistake, the same bytes for the same question."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE
from theodolite import cli
from theodolite.cost.model import evaluate
from theodolite.ir.text import parse, show
from theodolite.mapper.skeletons import mapping_of

Run = Callable[..., tuple[int, str, str]]
BIG = "flash:bm=256,bn=256,split=1,warps=8,stages=5"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, standard output, standard error) of a command line."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["theodolite", *words])
        monkeypatch.setattr(cli, "out", Console(width=200))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        got = capsys.readouterr()
        return int(ended.value.code or 0), got.out, got.err

    return call


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Tree files by what is wrong with them."""
    good = show(mapping_of(FLASH, CASE_A, H200))
    texts = {
        "good": good,
        "malformed": good.replace("temporal s/bn", "temporal s"),
        "breaks a rule": good.replace("carries M D A", "carries M D"),
        "another workload": good.replace("h=8", "h=4"),
        "another gpu": good.replace("for h200", "for rtx4090"),
        "realised": "realised" + good.removeprefix("abstract"),
        "unsupported": good.replace("gridfold=yes", "gridfold=no"),
        "empty": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    return {n: str(tmp_path / n) for n in (*texts, "binary", "missing")}


MISTAKES = {
    "an unknown workload": (("map", "conv:A"), "unknown workload 'conv'"),
    "an unknown case": (("map", "sdpa:Z"), "unknown rank or case of sdpa 'Z'"),
    "an unknown rank": (("map", "sdpa:b=1,h=8,l=128,s=128,z=64"), "unknown rank or case of sdpa 'z'"),
    "a rank left out": (("map", "sdpa:b=1,h=8,l=128,s=128"), "d missing"),
    "a rank twice": (("map", "sdpa:b=1,b=1,h=8,l=128,s=128,d=64"), "b is given twice"),
    "a size of zero": (("map", "sdpa:b=0,h=8,l=128,s=128,d=64"), "b=0 is below 1"),
    "a size that is none": (("map", "sdpa:b=one,h=8,l=128,s=128,d=64"), "is not a whole number"),
    "causal with too few keys": (("map", "sdpa:b=1,h=8,l=129,s=128,d=64,causal"), "l=129 > s=128"),
    "an unknown gpu": (("map", "sdpa:A", "--gpu", "h300"), "unknown gpu 'h300': use one of h200, rtx4090"),
    "an unknown term": (("map", "sdpa:A", "--model", "splitk,magic"), "unknown term 'magic'"),
    "no mapping": (("cost", "sdpa:A"), "give one of --schedule and --tree"),
    "an unknown family": (("cost", "sdpa:A", "--schedule", "ring:bm=1"), "unknown schedule family 'ring'"),
    "a malformed schedule": (("cost", "sdpa:A", "--schedule", "flash:bm=64,bn"), "does not read KEY=NUMBER"),
    "a tile that does not divide": (
        ("cost", "sdpa:b=1,h=8,l=100,s=128,d=64", "--model", "baseline", "--schedule", PIPELINE),
        "BASELINE cannot cost this mapping",
    ),
    "what baseline has no words for": (
        ("cost", "sdpa:A", "--model", "baseline", "--schedule", FLASH),
        "no counterpart in AccelForge",
    ),
    "too much shared memory": (("cost", "sdpa:C", "--schedule", BIG), "bytes of shared memory a CTA"),
    "no run": (("freeze", "nowhere"), "holds no draft.json"),
    "no manifest": (("verify", "nowhere"), "no manifest at"),
    "nothing to judge": (("judge", "nowhere"), "no manifest at"),
    "no run to measure": (("measure", "nowhere"), "no manifest at"),
    "no schedules": (("cost", "sdpa:A", "--schedules", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    "a schedule and schedules": (
        ("cost", "sdpa:A", "--schedules", "x", "--schedule", FLASH),
        "give one of --schedule, --tree and --schedules",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, what: str) -> None:
    words, message = MISTAKES[what]
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("theodolite: ")
    assert err.count("\n") == 1
    assert message in err


TREE_MISTAKES = {
    "missing": "cannot be read",
    "binary": "cannot be read",
    "empty": "the text ends too early",
    "malformed": "line 9: a loop reads RANK/SIZE",
    "breaks a rule": "rule carries-legal",
    "another workload": "is a tree of sdpa:b=1,h=4",
    "another gpu": "is a tree for rtx4090",
    "realised": "holds a realised tree",
    "unsupported": "gridfold=no",
}


@pytest.mark.parametrize("what", TREE_MISTAKES)
def test_a_mistake_in_a_tree_is_one_line_too(run: Run, files: dict[str, str], what: str) -> None:
    code, out, err = run("cost", "sdpa:A", "--tree", files[what])
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert TREE_MISTAKES[what] in err


def test_a_schedule_and_a_tree_are_one_too_many(run: Run, files: dict[str, str]) -> None:
    code, _, err = run("cost", "sdpa:A", "--tree", files["good"], "--schedule", FLASH)
    assert (code, err) == (2, "theodolite: give one of --schedule and --tree\n")


def test_the_installed_command_says_the_same() -> None:
    command = [sys.executable, "-m", "theodolite.cli", "cost", "sdpa:A", "--schedule", "ring:bm=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "theodolite: unknown schedule family 'ring': use one of flash, pipeline\n"


# ---- show --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_what_is_shown_parses_back_and_costs_the_same(run: Run, tmp_path: Path, text: str) -> None:
    code, out, err = run("show", "sdpa:A", "--schedule", text)
    assert (code, err) == (0, "")
    assert parse(out) == mapping_of(text, CASE_A, H200)
    path = tmp_path / "tree"
    path.write_text(out)
    assert run("show", "sdpa:A", "--tree", str(path))[1] == out
    by_tree, by_schedule = (
        json.loads(run("cost", "sdpa:A", "--json", *words)[1])
        for words in (("--tree", str(path)), ("--schedule", text))
    )
    assert {**by_tree, "id": ""} == {**by_schedule, "id": ""}
    realised = run("show", "sdpa:A", "--schedule", text, "--realised")[1]
    assert show(parse(realised)) == realised
    assert realised.startswith("realised ")


def test_every_schedule_s_tree_can_be_given_back(run: Run, tmp_path: Path) -> None:
    """A tile larger than its slice, a prime number of heads above the SMs, a tile larger than its rank."""
    path = tmp_path / "tree"
    for load, text in (
        ("sdpa:A", "flash:bm=64,bn=256,split=16,warps=4,stages=2"),
        ("sdpa:b=1,h=139,l=16,s=16,d=16", "flash:bm=256,bn=256,split=1,warps=4,stages=1"),
        ("sdpa:b=2,h=133,l=77,s=100,d=40,causal", PIPELINE.replace("qk.split=2", "qk.split=512")),
    ):
        out = run("show", load, "--schedule", text)[1]
        path.write_text(out)
        assert run("show", load, "--tree", str(path)) == (0, out, "")


# ---- JSON --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        ("map", "sdpa:A", "--json", "--top", "3"),
        ("map", "sdpa:A", "--json", "--top", "3", "--model", "baseline"),
        ("cost", "sdpa:B", "--json", "--schedule", FLASH),
        ("cost", "sdpa:A", "--json", "--model", "baseline", "--schedule", PIPELINE),
    ],
)
def test_json_is_the_same_bytes_again(run: Run, words: tuple[str, ...]) -> None:
    code, out, _ = run(*words)
    assert code == 0
    assert run(*words)[1] == out
    for line in out.splitlines():
        answer = json.loads(line)
        assert sum(answer["terms"].values()) == pytest.approx(answer["seconds"], rel=1e-12)
        if "tree" in answer:
            assert show(parse(answer["tree"])) == answer["tree"]


def test_map_ranks_by_seconds(run: Run) -> None:
    lines = [json.loads(x) for x in run("map", "sdpa:A", "--json", "--top", "4")[1].splitlines()]
    assert [x["rank"] for x in lines] == [1, 2, 3, 4]
    assert [x["seconds"] for x in lines] == sorted(x["seconds"] for x in lines)
    for line in lines:
        cost = evaluate(mapping_of(line["schedule"], CASE_A, H200), CASE_A, H200)
        assert cost.seconds == pytest.approx(line["seconds"], rel=1e-14)


def test_tables_are_for_people(run: Run) -> None:
    code, out, _ = run("map", "sdpa:A", "--top", "1", "--model", "baseline")
    assert code == 0
    assert "pipeline:" in out
    assert "mappings of flash cannot be said in BASELINE: counted, not ranked" in out
    assert "6.4873" in run("cost", "sdpa:A", "--schedule", FLASH)[1]


# ---- many at once ------------------------------------------------------------------------------------------------
def lines_of(tmp_path: Path, *entries: object) -> str:
    path = tmp_path / "schedules.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries) + "\n")
    return str(path)


def test_a_file_of_schedules_is_answered_in_order(run: Run, tmp_path: Path) -> None:
    path = lines_of(
        tmp_path,
        {"id": "one", "schedule": FLASH},
        {"id": 2, "schedule": BIG},
        "",
        {"id": None, "schedule": PIPELINE},
    )
    code, out, err = run("cost", "sdpa:C", "--schedules", path, "--json")
    assert (code, err) == (0, "")  # without room is an answer, not a mistake
    answers = [json.loads(x) for x in out.splitlines()]
    assert [a["id"] for a in answers] == ["one", 2, None]
    assert [a["feasible"] for a in answers] == [True, False, True]
    assert answers[1]["seconds"] is None
    assert "shared memory" in answers[1]["why_not"]
    assert answers[1]["terms"] == {}
    single = json.loads(run("cost", "sdpa:C", "--schedule", FLASH, "--json")[1])
    assert {**answers[0], "id": ""} == {**single, "id": ""}
    assert run("cost", "sdpa:C", "--schedules", path, "--json")[1] == out


def test_malformed_lines_are_answered_in_their_place_and_named_at_the_end(run: Run, tmp_path: Path) -> None:
    path = lines_of(
        tmp_path,
        {"id": "good", "schedule": FLASH},
        {"id": "unknown family", "schedule": "ring:bm=1"},
        "not JSON",
        {"schedule": FLASH},
        {"id": "no schedule"},
        {"id": "a number", "schedule": 3},
        [1, 2],
        {"id": "last", "schedule": PIPELINE},
    )
    code, out, err = run("cost", "sdpa:A", "--schedules", path, "--json")
    assert code == 2
    assert err.count("\n") == 1
    assert "6 of 8 lines are malformed, the first on line 2: unknown schedule family 'ring'" in err
    answers = [json.loads(x) for x in out.splitlines()]
    assert [a["id"] for a in answers] == ["good", "unknown family", None, None, "no schedule", "a number", None, "last"]
    assert [a["feasible"] for a in answers] == [True, *[False] * 6, True]
    assert all(a["why_not"] for a in answers if not a["feasible"])


def test_a_model_that_has_no_words_is_no_malformed_line(run: Run, tmp_path: Path) -> None:
    path = lines_of(tmp_path, {"id": 1, "schedule": FLASH}, {"id": 2, "schedule": PIPELINE})
    code, out, _ = run("cost", "sdpa:A", "--schedules", path, "--json", "--model", "baseline")
    assert code == 0
    assert [json.loads(x)["feasible"] for x in out.splitlines()] == [False, True]


# ---- a run, step by step -----------------------------------------------------------------------------------------
def test_lower_begins_a_run_and_does_not_overwrite_one(run: Run, tmp_path: Path) -> None:
    case, folder = "sdpa:b=1,h=2,l=32,s=32,d=16", str(tmp_path / "run")
    code, out, _ = run("lower", case, "--out", folder, "--schedule", FLASH, "--schedule", PIPELINE)
    assert code == 0
    assert "2 programs in" in out.replace("\n", " ")
    written = sorted((tmp_path / "run" / "kernels").glob("*.py"))
    assert len(written) == 2
    assert all("@triton.jit" in p.read_text() for p in written)
    code, _, err = run("lower", case, "--out", folder, "--schedule", FLASH)
    assert code == 2
    assert err.strip().endswith("already holds a run: give a new directory")
    code, out, _ = run("freeze", folder)
    assert code == 0
    assert (tmp_path / "run" / "bundle" / "run.py").exists()
    code, out, _ = run("verify", folder)
    assert code == 0
    assert "2 candidates, 0 ids that do not follow" in out
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    code, out, _ = run("verify", folder)
    assert code == 1
    assert "kernel_id is" in out
    code, _, err = run("measure", folder)
    assert code == 2
    assert "no longer gives its run_id" in err
