"""The examples run, and what README shows is what comes out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from theodolite import batch, evaluate, gpu, mapping_of, workload
from theodolite.cost.model import baseline, corrected
from theodolite.ir.text import parse, show

ROOT = Path(__file__).parent.parent
README, QUICKSTART = ROOT / "README.md", ROOT / "examples" / "quickstart.py"
CONSOLE = re.compile(r"```console\n\$ theodolite ((?:map|show|cost) [^\n]*)\n(.*?)```", re.DOTALL)
COLUMNS = "120"


def run(*command: str) -> str:
    """Standard output, without blanks at the ends of lines, of a command that ends well."""
    env = {**os.environ, "COLUMNS": COLUMNS, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


def block(kind: str, text: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)
    assert found, f"README has no {kind} block"
    return found[1]


def test_readme_shows_what_its_commands_print(request: pytest.FixtureRequest) -> None:
    text = README.read_text()

    def printed(match: re.Match[str]) -> str:
        out = run(sys.executable, "-m", "theodolite.cli", *shlex.split(match[1]))
        return f"```console\n$ theodolite {match[1]}\n{out}```"

    now, count = CONSOLE.subn(printed, text)
    assert count == 5
    if request.config.getoption("--update-goldens"):
        README.write_text(now)
    else:
        assert now == text, "if that is meant, run pytest --update-goldens"


def test_readme_holds_the_quickstart_and_its_output(request: pytest.FixtureRequest) -> None:
    text, out = README.read_text(), run(sys.executable, str(QUICKSTART))
    code = QUICKSTART.read_text().split("\n\n", 1)[1]  # without its docstring
    if request.config.getoption("--update-goldens"):
        text = text.replace(f"```python\n{block('python', text)}```", f"```python\n{code}```")
        README.write_text(text.replace(f"```text\n{block('text', text)}```", f"```text\n{out}```"))
    else:
        assert block("python", text) == code
        assert block("text", text) == out


def test_the_example_tree_is_the_schedule_that_its_decisions_name() -> None:
    tree = parse((ROOT / "examples" / "flash.tree").read_text())
    what, machine = workload(tree.workload), gpu(tree.gpu)
    named = mapping_of("flash:bm=64,bn=32,split=1,warps=4,stages=2", what, machine)
    assert evaluate(tree, what, machine).seconds == evaluate(named, what, machine).seconds
    # a slice of one is the whole rank: a person leaves it out
    assert show(tree).splitlines()[2:4] == show(named).splitlines()[2:4]


def test_the_models_disagree_on_the_example_pair() -> None:
    what, machine = workload("sdpa:A"), gpu("h200")
    entries = {e.ident: e for e in batch.read(ROOT / "examples" / "schedules.jsonl")}
    assert not [e for e in entries.values() if e.fault]

    def seconds(ident: str, model) -> float | None:
        cost, fault = batch.cost(entries[ident], what, machine, model)
        assert fault is None
        return cost.seconds

    whole, cut = "pipeline", "pipeline, AV 4"
    assert seconds(cut, baseline()) < seconds(whole, baseline())
    assert seconds(cut, corrected()) > seconds(whole, corrected())
    assert seconds("flash", baseline()) is None
    assert seconds("huge tiles", corrected()) is None


def test_every_make_target_and_file_that_readme_names_exists() -> None:
    text = README.read_text()
    targets = set(re.findall(r"`?make (\w+)", text))
    defined = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"audit", "test", "setup"} <= targets <= defined
    for path in re.findall(r"\b(?:examples|docs)/[\w.]+\.\w+|CONTRIBUTING\.md", text):
        assert (ROOT / path).exists(), path
