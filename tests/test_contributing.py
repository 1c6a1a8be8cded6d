"""Every example of CONTRIBUTING.md works when it is pasted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCK = r"\n\n```(?:python|text)\n(.*?)```"
NEW = re.compile(r"^`([\w./]+)`, new:" + BLOCK, re.DOTALL | re.MULTILINE)
BEFORE = re.compile(r"^`([\w./]+)`, before `([^`]+)`:" + BLOCK, re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ theodolite (.*)$", re.MULTILINE)


def pasted(section: str, folder: Path) -> str:
    """A copy of the package with a section's examples in it; returns the section's text."""
    text = TEXT[TEXT.index(f"\n## {section}") :].split("\n## ", 2)[1]
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path, body in NEW.findall(text):
        assert not (folder / path).exists(), f"{path} is taken"
        (folder / path).write_text(body)
    for path, anchor, body in BEFORE.findall(text):
        old = (folder / path).read_text()
        assert old.count(f"\n{anchor}") == 1, f"{path}: {anchor!r} is not one place"
        (folder / path).write_text(old.replace(f"\n{anchor}", f"\n{body}{anchor}"))
    return text


def theodolite(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "120"}
    command = (sys.executable, "-m", "theodolite.cli", *words)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


# What the last command of each section prints only if the example is in the package.
SECTIONS = {
    "A cost term": r"launch ┃ *rows",
    "A GPU": r", toy \(",
    "A workload": r"CORRECTED on matmul:m=128",
    "A gate": r"report: runs/",
    "A lowering rule": r"1 of 1 passed every gate",
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_works_when_pasted(section: str, tmp_path: Path) -> None:
    text = pasted(section, tmp_path)
    commands = COMMAND.findall(text)
    assert commands, "the section shows no command"
    for command in commands:
        done = theodolite(tmp_path, *command.split())
        assert done.returncode == 0, done.stderr
    assert re.search(SECTIONS[section], done.stdout), done.stdout
    if section == "A gate":
        manifest = next(tmp_path.glob("runs/*/manifest.json")).read_text()
        assert '"gate": "room"' in manifest
    if section == "A lowering rule":
        kernel = next(tmp_path.glob("streamed/kernels/*.py")).read_text()
        assert kernel.count('cache_modifier=".cs"') == 3  # A, M and D of a slice, and not O


def test_the_check_rule_objects(tmp_path: Path) -> None:
    text = pasted("A check rule", tmp_path)
    tree = (ROOT / "examples" / "flash.tree").read_text()
    (tmp_path / "odd.tree").write_text(tree.replace("warps=4", "warps=32"))
    (tmp_path / "good.tree").write_text(tree)
    assert theodolite(tmp_path, "show", "sdpa:A", "--tree", "good.tree").returncode == 0
    odd = theodolite(tmp_path, "show", "sdpa:A", "--tree", "odd.tree")
    assert odd.returncode == 2
    promised = re.search(r"ends with `([^`]+)`", text)
    assert promised
    assert promised[1] in odd.stderr


def test_pasted_files_are_clean(tmp_path: Path) -> None:
    """What people copy passes the project's own lint."""
    for n, section in enumerate((*SECTIONS, "A check rule")):
        pasted(section, tmp_path / str(n))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for verb in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [ruff, *verb, "--no-cache", "."], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
