"""A mapping that reads a reduction before it is complete is named by the rule that it breaks, and is not lowered."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from theodolite import cli
from theodolite.errors import RuleBroken, Unsupported
from theodolite.gpus import gpu
from theodolite.ir.check import check
from theodolite.ir.realise import realise
from theodolite.ir.text import parse, show
from theodolite.looptrees import import_mapping
from theodolite.workloads import workload

FILES = Path(__file__).parent / "data" / "accelforge"
USING = ("--using", str(FILES / "gpu_three_level.yaml"), "--using", str(FILES / "sdpa.yaml"))
SIZES = ("--set", "BH=8", "--set", "L=128", "--set", "E=64")
UNSOUND = [FILES / f"softmax_unsound.{part}.yaml" for part in ("mapping", "arch", "workload")]
H200 = gpu("h200")
RULE = "rule complete-before-read: P reads M under a shared loop over s"
Run = Callable[..., tuple[int, str, str]]

# What AccelForge's mapper returned for a softmax with its maximum (softmax_unsound), in the words of the real cascade
THEIRS = """\
abstract theirs on sdpa:b=1,h=1,l=16,s=64,d=4 for h200
decisions warps=4 stages=2
HBM Q K V O
temporal l/8
SMEM Q M D A
temporal s/1
SMEM S P
sequential
  branch
    temporal e/1
    SMEM K
    temporal l/1
    compute S on mma
  branch
    temporal l/1
    compute M on simd
  branch
    temporal l/1
    compute P D on simd
  branch
    temporal f/1
    SMEM V
    temporal l/1
    compute A O on mma
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, standard output, standard error) of a command line."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["theodolite", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        got = capsys.readouterr()
        return int(ended.value.code or 0), got.out, got.err

    return call


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """AccelForge's best mapping of case A as a tree of the real cascade: without the view that has softmax a copy."""
    using = tuple(map(Path, USING[1::2]))
    found = import_mapping(FILES / "case-a" / "000.yaml", using, {"BH": 8, "L": 128, "E": 64}, H200)
    text = show(found.tree)
    assert "decisions view=accelforge\n" in text
    path = tmp_path / "000.tree"
    path.write_text(text.replace(" view=accelforge", ""))
    return path


def test_import_names_the_rule(run: Run, tmp_path: Path) -> None:
    words = ("import", FILES / "case-a" / "000.yaml", *USING, *SIZES, "--out", tmp_path)
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert RULE in out
    assert json.loads(run(*words, "--json")[1])["unsound"] == RULE


def test_import_names_the_rule_of_what_is_no_attention_either(run: Run, tmp_path: Path) -> None:
    mapping, *using = UNSOUND
    words = [word for path in using for word in ("--using", path)]
    code, out, err = run("import", mapping, *words, "--set", "L=16", "--set", "S=64", "--out", tmp_path / "trees")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "it has not three Einsums; and the mapping is unsound: rule complete-before-read: P reads Mx" in err
    assert not (tmp_path / "trees").exists()


def test_a_sound_mapping_of_what_is_no_attention_breaks_no_rule() -> None:
    mapping, *using = (FILES / f"matmuls{part}.yaml" for part in ("_unfused", ""))
    with pytest.raises(Unsupported, match=r"it has not three Einsums$"):
        import_mapping(mapping, (FILES / "two_memories.yaml", *using), {"N": 2, "M": 64, "KN": 64}, H200)


@pytest.mark.parametrize(
    "words", [("show",), ("show", "--realised"), ("cost",), ("cost", "--json"), ("lower", "--out", "run")]
)
@pytest.mark.parametrize("tree", ["imported", "theirs"])
def test_no_verb_takes_its_tree(run: Run, imported: Path, tmp_path: Path, tree: str, words: tuple[str, ...]) -> None:
    """One line and exit code 2 where a real softmax is asked for; nothing is written."""
    path = imported
    if tree == "theirs":
        path = tmp_path / "theirs.tree"
        path.write_text(THEIRS)
    verb, *more = (str(tmp_path / w) if w == "run" else w for w in words)
    case = parse(path.read_text()).workload
    code, out, err = run(verb, case, "--tree", path, *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"theodolite: {RULE}")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_one_such_tree_is_not_lowered(run: Run, imported: Path, tmp_path: Path) -> None:
    code, out, err = run("lower", "sdpa:A", "--tree", imported.parent, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.startswith(f"theodolite: {RULE}")


def test_neither_does_python(imported: Path) -> None:
    """`check` and `realise` each refuse it by themselves; under the view it is completed, on record."""
    tree = parse(imported.read_text())
    work = workload(tree.workload)
    for refuse in (lambda: check(tree, work, H200.sms), lambda: realise(tree, work)):
        with pytest.raises(RuleBroken, match=RULE):
            refuse()
    viewed = parse(imported.read_text().replace("decisions", "decisions view=accelforge", 1))
    check(viewed, work, H200.sms)
    assert "complete-first" in {r.rule for r in realise(viewed, work).refinements}
