"""What `theodolite import` says of a mapping, and what becomes of the others where one fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from theodolite import cli

FILES = Path(__file__).parent / "data" / "accelforge"
ARCH, LOAD = FILES / "gpu_three_level.yaml", FILES / "sdpa.yaml"
SIZES = ("--set", "BH=8", "--set", "L=128", "--set", "E=64")
SCORES = """\
    - !Nested
      nodes:
      - !Temporal {rank_variable: l, tile_shape: 16}
      - !Spatial {rank_variable: l, tile_shape: 1, name: SM, component: SharedMemory}
      - !Storage {tensors: [K], component: SharedMemory}
      - !Temporal {rank_variable: s, tile_shape: 1}
      - !Temporal {rank_variable: e, tile_shape: 1}
      - !Compute {einsum: Scores, component: TensorCore}
"""
WEIGHTS = """\
    - !Nested
      nodes:
      - !Temporal {rank_variable: l, tile_shape: 1}
      - !Temporal {rank_variable: s, tile_shape: 1}
      - !Compute {einsum: Weights, component: ScalarUnit}
"""
OUTPUT = SCORES.replace("[K]", "[V]").replace("variable: e", "variable: f").replace("einsum: Scores", "einsum: O")
HEAD = """\
mapping:
  nodes:
  - !Storage {tensors: [Q, K, V, O], component: MainMemory}
  - !Temporal {rank_variable: bh, tile_shape: 1}
  - !Storage {tensors: [Scores, Weights], component: L2}
  - !Sequential
    nodes:
"""
SOUND = HEAD + SCORES + WEIGHTS + OUTPUT
BROKEN = {
    "made-before-read": (HEAD + WEIGHTS + SCORES + OUTPUT, "M reads S, which is not computed yet"),
    "ends-off-chip": (SOUND.replace("[Q, K, V, O]", "[K, V, O]"), "Q needs storage at HBM"),
    "fanout-fits": (
        SOUND.replace(
            "      - !Temporal {rank_variable: s, tile_shape: 1}\n      - !Temporal {rank_variable: e",
            "      - !Spatial {rank_variable: s, tile_shape: 1, name: SM, component: SharedMemory}\n"
            "      - !Temporal {rank_variable: e",
        ),
        "2048 units on SM, of which there are 132",
    ),
}  # fmt: skip
Import = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Import:
    """(exit code, lines of standard output, lines of standard error) for mappings by name, into `trees`."""

    def call(mappings: dict[str, str], *more: str, arch: str = "", load: str = "") -> tuple[int, list[str], list[str]]:
        words = ["theodolite", "import", *more]
        for name, text in mappings.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
            words.append(str(tmp_path / name))
        (tmp_path / "arch.yaml").write_text(arch or ARCH.read_text())
        (tmp_path / "sdpa.yaml").write_text(load or LOAD.read_text())
        words += ["--using", str(tmp_path / "arch.yaml"), "--using", str(tmp_path / "sdpa.yaml"), *SIZES]
        monkeypatch.setattr(sys, "argv", [*words, "--out", str(tmp_path / "trees")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        got = capsys.readouterr()
        return int(ended.value.code or 0), got.out.splitlines(), got.err.splitlines()

    return call


def trees(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "trees").glob("*"))


# ---- what is said of a mapping -----------------------------------------------------------------------------------
def test_a_sound_mapping_is_costed_and_written(imported: Import, tmp_path: Path) -> None:
    code, (line, last), err = imported({"sound.yaml": SOUND})
    assert (code, err, trees(tmp_path)) == (0, [], ["sound.tree"])
    assert line.startswith("sound.yaml: split; BASELINE 18.724 us, CORRECTED 11.547 us; sound; h200 in place of")
    assert last.endswith(f"next: theodolite lower sdpa:b=1,h=8,l=128,s=128,d=64 --tree {tmp_path / 'trees'} --out RUN")


@pytest.mark.parametrize("rule", BROKEN)
def test_a_mapping_that_breaks_a_rule_is_no_tree_and_has_no_time(imported: Import, tmp_path: Path, rule: str) -> None:
    text, said = BROKEN[rule]
    code, (line,), (last,) = imported({"broken.yaml": text})
    assert (code, trees(tmp_path)) == (2, [])
    assert line.startswith(f"broken.yaml: split; no tree: rule {rule}: {said}")
    assert not any(word in line for word in (" us", "sound"))
    assert last == f"theodolite: 0 of 1 mappings became trees in {tmp_path / 'trees'}: 1 broke a rule"
    row = json.loads(imported({"broken.yaml": text}, "--json")[1][0])
    assert row["broken"].startswith(f"rule {rule}: {said}")
    assert (row["tree"], row["seconds"], row["why_not"]) == (None, {}, {})


def test_a_mapping_that_baseline_cannot_cost_says_why(imported: Import) -> None:
    unfinished = SOUND.replace("e, tile_shape: 1", "e, tile_shape: 2")
    why = "Scores: e ends at 2; AccelForge wants loops down to 1"
    line = imported({"unfinished.yaml": unfinished})[1][0]
    assert f"; BASELINE - ({why}), CORRECTED 11.547 us; sound;" in line
    row = json.loads(imported({"unfinished.yaml": unfinished}, "--json")[1][0])
    assert (row["seconds"]["BASELINE"], row["why_not"], row["elsewhere"]) == (None, {"BASELINE": why}, why)


def test_an_einsum_that_is_missing_has_the_name_of_the_file(imported: Import, tmp_path: Path) -> None:
    code, out, (line,) = imported({"missing.yaml": HEAD + SCORES + OUTPUT})
    assert (code, out) == (2, [])
    assert line.startswith(
        f"theodolite: {tmp_path / 'missing.yaml'}, line 2: rule computed-once: Einsum Weights is never computed"
    )


# ---- what a tree does not carry ----------------------------------------------------------------------------------
def test_widths_that_become_fp16_are_named(imported: Import) -> None:
    load = LOAD.read_text().replace("{All: 16}", "{All: 8}")
    arch = ARCH.read_text().replace("name: L2\n", "name: L2\n    bits_per_value: {K: 4.5}\n")
    line = imported({"a.yaml": SOUND}, arch=arch, load=load)[1][0]
    assert "; sound; Q K Scores Weights V O of 8 bits: fp16 here; K of 4.5 bits in L2: fp16 here; h200" in line


def test_sizes_and_fanouts_that_are_not_the_gpus_are_named(imported: Import) -> None:
    arch = ARCH.read_text().replace("{name: SM, fanout: 128}", "{name: SM, fanout: 132}, {name: X, fanout: 2}")
    notes = json.loads(imported({"a.yaml": SOUND}, "--json", arch=arch)[1][0])["notes"]
    assert notes == [
        "h200 in place of the architecture: its rates, no X for 2, MainMemory 141,000,000,000 for inf bytes, "
        "L2 62,914,560 for 75,497,472 bytes, SharedMemory 233,472 for 102,400 bytes"
    ]


def test_habits_that_are_not_the_gpus_are_named(imported: Import) -> None:
    arch = ARCH.read_text().replace("name: SM, fanout: 128", "name: SM, fanout: 132, may_reuse: Inputs")
    arch = arch.replace("name: L2\n", "name: L2\n    skip_initial_output_write: no\n")
    (note,) = json.loads(imported({"a.yaml": SOUND}, "--json", arch=arch)[1][0])["notes"]
    assert "its rates, SM may reuse every tensor, " in note
    assert ", L2 reads no output before its first write, " in note


def test_a_unit_that_the_file_forbids_is_named(imported: Import) -> None:
    line = imported({"a.yaml": SOUND.replace("ScalarUnit", "TensorCore")})[1][0]
    assert "no cost on its own architecture: compute on mma" in line
    assert "; Weights on TensorCore: on simd here; " in line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("size: 72*1024*1024*8", "size: nonsense**2", "line 13: size of L2: unknown name 'nonsense'"),
        ("arch:\n", "arch:\n  variables: {x: 1 / 0}\n", "line 2: variable x: '1 / 0' has no value"),
        ("throughput: 512 * 2.52e9", "energy_scale: 1", "TensorCore has no throughput of compute"),
    ],
)
def test_an_architecture_is_evaluated(imported: Import, tmp_path: Path, old: str, new: str, said: str) -> None:
    code, out, (line,) = imported({"a.yaml": SOUND, "b.yaml": SOUND}, arch=ARCH.read_text().replace(old, new))
    assert (code, out, trees(tmp_path)) == (2, [], [])
    assert line.startswith(f"theodolite: {tmp_path / 'arch.yaml'}, line ")
    assert said in line


def test_memories_without_a_word_in_a_tree_are_refused(imported: Import, tmp_path: Path) -> None:
    code, out, (line,) = imported({"a.yaml": SOUND.replace("L2", "Buf")}, arch=ARCH.read_text().replace("L2", "Buf"))
    assert (code, out, trees(tmp_path)) == (2, [], [])
    assert line.endswith("a.yaml: Buf: a GPU's memories are MainMemory, L2, SharedMemory and Register")


# ---- several mappings --------------------------------------------------------------------------------------------
def test_two_mappings_of_one_name_are_refused_before_anything_is_written(imported: Import, tmp_path: Path) -> None:
    code, out, (line,) = imported({"a.yaml": SOUND, "d/b.yaml": SOUND, "d/a.yaml": SOUND})
    assert (code, out, trees(tmp_path)) == (2, [], [])
    assert line.startswith(f"theodolite: {tmp_path / 'a.yaml'} and {tmp_path / 'd/a.yaml'} would both be a.tree: ")


def test_a_file_that_fails_keeps_no_other_from_becoming_a_tree(imported: Import, tmp_path: Path) -> None:
    mappings = {"a.yaml": SOUND, "b.yaml": "nothing: 1", "c.yaml": BROKEN["made-before-read"][0], "d.yaml": SOUND}
    code, out, err = imported(mappings)
    assert (code, trees(tmp_path)) == (2, ["a.tree", "d.tree"])
    assert [line.partition(":")[0] for line in out] == ["a.yaml", "c.yaml", "d.yaml"]
    assert err[0].startswith(f"theodolite: {tmp_path / 'b.yaml'}, line 1: a file has no field 'nothing'")
    said = f"2 of 4 mappings became trees in {tmp_path / 'trees'}: 1 broke a rule, 1 not read or not costed"
    assert err[1:] == [f"theodolite: {said}"]
    assert [json.loads(line)["file"] for line in imported(mappings, "--json")[1]] == ["a.yaml", "c.yaml", "d.yaml"]
