"""The command line: one line and exit code 2 for a mistake, the same bytes for the same question."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE
from theodolite import cli, pipeline
from theodolite.auditing.manifest import GateResult
from theodolite.cost.model import evaluate
from theodolite.gpus import known
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
    "no mapping": (("cost", "sdpa:A"), "give one of --schedule, --tree and --schedules"),
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
    "a top of none": (("map", "sdpa:A", "--top", "0"), "'--top': Input should be greater than or equal to 1"),
    "a top of too many": (("map", "sdpa:A", "--top", "1001"), "'--top': Input should be less than or equal to 1000"),
    "negative jobs": (("audit", "sdpa:A", "--jobs", "-1"), "'--jobs': Input should be greater"),
    "fewer than no random ones": (("lower", "sdpa:A", "--out", "x", "--random", "-1"), "'--random': Input should be"),
    "an option that is none": (("map", "sdpa:A", "--nope"), "No such option: --nope"),
    "a verb that is none": (("mapp", "sdpa:A"), "No such command 'mapp'"),
    "no workload": (("map",), "Missing argument"),
    "nothing that fits": (
        ("map", "sdpa:b=1,h=8,l=97,s=97,d=64", "--model", "baseline", "--json"),
        "no mapping of the space is feasible under BASELINE on h200",
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


def test_a_file_that_cannot_be_read_is_said_in_words(run: Run, files: dict[str, str], tmp_path: Path) -> None:
    folder = str(tmp_path)
    for words, said in (
        (("cost", "sdpa:A", "--tree", files["missing"]), f"{files['missing']} cannot be read: no such file"),
        (("cost", "sdpa:A", "--tree", folder), f"{folder} cannot be read: it is a directory"),
        (("cost", "sdpa:A", "--tree", "/dev/zero"), "/dev/zero cannot be read: it has more than 262,144 bytes"),
        (("show", "sdpa:A", "--tree", files["binary"]), f"{files['binary']} cannot be read: it is no UTF-8 text"),
        (("cost", "sdpa:A", "--schedules", files["missing"]), f"{files['missing']} cannot be read: no such file"),
        (("cost", "sdpa:A", "--schedules", files["binary"]), f"{files['binary']} cannot be read: it is no UTF-8 text"),
        (("lower", "sdpa:A", "--schedule", FLASH, "--out", files["good"]), "cannot be written: "),
        (("gate", files["good"]), f"{files['good']} holds no draft.json"),
    ):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
        assert "Errno" not in err


def test_what_fails_elsewhere_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/mine")

    monkeypatch.setattr(pipeline, "verify", full)
    assert run("verify", "runs/mine") == (2, "", "theodolite: runs/mine: no space left on device\n")


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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sdpa:C", "--schedule", BIG), "bytes of shared memory a CTA"),
        (("sdpa:A", "--schedule", FLASH, "--model", "baseline"), "no counterpart in AccelForge"),
        (("sdpa:A", "--tree", "unsupported"), "gridfold=no"),
    ],
)
def test_json_answers_what_cannot_be_costed_and_the_exit_code_says_so(
    run: Run, files: dict[str, str], tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    asked = [files.get(word, word) for word in words]
    code, out, err = run("cost", *asked, "--json")
    assert (code, err.count("\n"), out.count("\n")) == (2, 1, 1)
    assert why in err
    answer = json.loads(out)
    assert (answer["id"], answer["seconds"], answer["feasible"], answer["terms"]) == (asked[2], None, False, {})
    assert why in answer["why_not"]
    if "--schedule" in words:  # the same line as a file of schedules gets
        path = lines_of(tmp_path, {"id": asked[2], "schedule": asked[2]})
        assert run("cost", asked[0], "--schedules", path, *asked[3:], "--json")[1] == out
    assert run("cost", *asked)[:2] == (2, "")


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


def test_what_a_user_writes_is_no_markup(run: Run, tmp_path: Path) -> None:
    idents = ["[/]", "[red]b[/red]", "c\\\\", "\ud800"]
    path = lines_of(tmp_path, *({"id": i, "schedule": FLASH} for i in idents), {"id": "[/b]", "schedule": "[/]ring"})
    code, out, err = run("cost", "sdpa:A", "--schedules", path)
    assert (code, err.count("\n")) == (2, 1)
    assert all(shown in out for shown in ("[/]", "[red]b[/red]", "c\\", "\\ud800", "[/b]", "not '[/]ring'"))
    tree = tmp_path / "[red]"
    tree.write_text(show(mapping_of(FLASH, CASE_A, H200)))
    code, out, _ = run("cost", "sdpa:A", "--tree", str(tree))
    assert (code, "[red]" in out) == (0, True)


def test_what_is_a_line_and_what_is_none(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "schedules.jsonl"
    good = json.dumps({"id": "one\u2028two\x85", "schedule": FLASH}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{good}\r\n{'[' * 100_000}\n{'1' * 5000}\n{good}".encode())
    code, out, err = run("cost", "sdpa:A", "--schedules", str(path), "--json")
    assert code == 2
    assert "2 of 4 lines are malformed, the first on line 2: nested too deeply to be read" in err
    assert [json.loads(x)["id"] for x in out.splitlines()] == ["one\u2028two\x85", None, None, "one\u2028two\x85"]
    for nothing in (b"", b"\n \n", b"\xef\xbb\xbf\n"):
        path.write_bytes(nothing)
        code, out, err = run("cost", "sdpa:A", "--schedules", str(path))
        assert (code, out, err) == (2, "", f"theodolite: {path} holds no schedules\n")


def test_a_pipe_is_wide_enough_unless_told(tmp_path: Path) -> None:
    """The longest line of a table whose last column needs all the room that there is."""
    path = lines_of(tmp_path, {"id": 1, "schedule": BIG})
    widths = []
    for columns in ({}, {"COLUMNS": "60"}):
        env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | columns | {"PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "theodolite.cli", "cost", "sdpa:C", "--schedules", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, encoding="utf-8")
        assert done.returncode == 0
        widths.append(max(map(len, done.stdout.splitlines())))
    assert 80 < widths[0] <= 140
    assert widths[1] <= 60


def test_help_names_every_gpu(run: Run) -> None:
    for verb in ("map", "collect", "pairs"):
        out = " ".join(run(verb, "--help")[1].split())
        assert f"one of {', '.join(known())}" in out


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
    assert "2 candidates, 0 faults" in out
    kernel = next((tmp_path / "run" / "bundle" / "kernels").glob("*.py"))
    whole = kernel.read_bytes()
    kernel.write_bytes(whole + b"#")
    code, out, _ = run("verify", folder)
    assert code == 1
    assert f"bundle/kernels/{kernel.name} is not what was frozen" in out.replace("\n", "")
    assert "2 candidates, 1 faults" in out
    kernel.write_bytes(whole)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    code, out, _ = run("verify", folder)
    assert code == 1
    assert "kernel_id is" in out
    code, _, err = run("measure", folder)
    assert code == 2
    assert "no longer gives its run_id" in err


def test_a_folder_of_trees_is_lowered_whole(run: Run, tmp_path: Path) -> None:
    case, folder = "sdpa:b=1,h=2,l=32,s=32,d=16", tmp_path / "trees"
    folder.mkdir()
    code, out, err = run("lower", case, "--tree", str(folder), "--out", str(tmp_path / "run"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{folder} holds no *.tree files" in err
    for name, schedule in (("b", FLASH), ("a", PIPELINE)):
        (folder / f"{name}.tree").write_text(run("show", case, "--schedule", schedule)[1])
    (folder / "notes.txt").write_text("no tree")
    assert run("lower", case, "--tree", str(folder), "--out", str(tmp_path / "run"))[0] == 0
    drawn = json.loads((tmp_path / "run" / "draft.json").read_text())
    assert [(c["origin"], c["schedule"]) for c in drawn["candidates"]] == [(["a"], PIPELINE), (["b"], FLASH)]
    (folder / "c.tree").write_text("abstract")
    code, _, err = run("lower", case, "--tree", str(folder), "--out", str(tmp_path / "again"))
    assert (code, err.count("\n"), "c.tree" in err) == (2, 1, True)
    assert not (tmp_path / "again").exists()


def test_a_gate_that_nothing_passes_is_no_success(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, folder = "sdpa:b=1,h=2,l=32,s=32,d=16", str(tmp_path / "run")
    assert run("lower", case, "--out", folder, "--schedule", FLASH, "--schedule", PIPELINE)[0] == 0
    for passed, expected in ((0, 1), (1, 0)):

        def gated(candidates: Any, *_: object, good: int = passed) -> list[Any]:
            return [replace(c, gates=(GateResult("[/]", n < good, "why", {}),)) for n, c in enumerate(candidates)]

        monkeypatch.setattr(pipeline, "gate_candidates", gated)
        code, out, _ = run("gate", folder)
        assert code == expected
        assert f"{passed} of 2 passed every gate" in out
        assert ("theodolite freeze" in out) == (passed > 0)
        assert out.count("[/]: why") == 2 - passed
