"""What an architecture's expressions come to, held against what AccelForge 1.0.467 says of the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.ours import Table, ours

ARCH = """arch:
  nodes:
  - !Memory
    name: Main
    size: 1e9
    leak_power: 0.5
    actions:
    - {name: read, energy: 2, throughput: 8}
    - {name: write, energy: 3, throughput: 4}
  - !Memory
    name: Buf
    size: 1e6
    leak_power: 0.25
    actions:
    - {name: read, energy: 1, throughput: 16}
    - {name: write, energy: 1, throughput: 16}
  - !Compute
    name: MAC
    leak_power: 0
    actions:
    - {name: compute, energy: 1, throughput: 1}
"""
LOAD = """workload:
  rank_sizes: {M: 8, K: 4, N: 6}
  bits_per_value: {All: 8}
  einsums:
  - "T1[m, n] = T0[m, k] * W0[k, n]"
"""
TREE = """mapping:
  nodes:
  - !Storage {tensors: [T0, W0, T1], component: Main}
  - !Temporal {rank_variable: m, tile_shape: 2}
  - !Storage {tensors: [T0, T1], component: Buf}
  - !Temporal {rank_variable: k, tile_shape: 1}
  - !Storage {tensors: [W0], component: Buf}
  - !Temporal {rank_variable: n, tile_shape: 1}
  - !Temporal {rank_variable: m, tile_shape: 1}
  - !Compute {einsum: T1, component: MAC}
"""


def table(folder: Path, arch: str = ARCH) -> Table:
    files = []
    for name, text in (("arch", arch), ("workload", LOAD), ("mapping", TREE)):
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(text)
    return ours(tuple(files), {})


def with_field(component: str, field: str) -> str:
    return ARCH.replace(f"name: {component}\n", f"name: {component}\n    {field}\n")


@pytest.mark.parametrize(("bits", "reads"), [("4.5", 144), ("9 / 2", 144), ("0.5", 16), ("8", 256)])
def test_a_component_may_keep_part_of_a_bit(bits: str, reads: float, tmp_path: Path) -> None:
    found = table(tmp_path, with_field("Main", f"bits_per_value: {{T0: {bits}}}"))
    assert found["action|T1|Main|T0|read"] == pytest.approx(reads)
    assert found["usage|T1|Main|T0"] == pytest.approx(32 * reads / 32 / 1e9)


@pytest.mark.parametrize("nothing", ["0", "0.0", "'0'", "false", "3 - 3"])
def test_a_component_may_take_no_time(nothing: str, tmp_path: Path) -> None:
    plain, found = table(tmp_path), table(tmp_path, with_field("Buf", f"total_latency: {nothing}"))
    assert (plain["total|latency"], found["total|latency"]) == (448, 224)  # Main takes over
    assert "latency|T1|Buf" not in found
    assert (plain["energy|T1|Main||leak"], found["energy|T1|Main||leak"]) == (224, 112)


def test_variables_may_use_later_ones_and_their_namesakes_outside(tmp_path: Path) -> None:
    priced = ARCH.replace("energy: 2,", "energy: x,")
    plain = table(tmp_path, ARCH.replace("energy: 2,", "energy: 6,"))
    inside = "arch:\n  variables: {%s}\n"
    assert table(tmp_path, priced.replace("arch:\n", inside % "x: y * 2, y: 3")) == plain
    assert table(tmp_path, priced.replace("arch:\n", inside % "x: len(All) * 2")) == plain
    assert table(tmp_path, "variables: {x: y * 2, y: 3}\n" + priced) == plain
    assert table(tmp_path, "variables: {x: 3}\n" + priced.replace("arch:\n", inside % "x: x * 2")) == plain


@pytest.mark.parametrize(("word", "reads"), [("0", 1), ("no", 1), ("1", 0), ("true", 0)])
def test_an_output_starts_from_nothing_in_any_word_for_it(word: str, reads: int, tmp_path: Path) -> None:
    found = table(tmp_path, with_field("Main", f"skip_initial_output_write: {word}"))
    assert ("action|T1|Main|T1|read" in found) is bool(reads)


@pytest.mark.parametrize("field", ["throughput: 8", "throughput: 4"])
def test_a_rate_may_be_without_end(field: str, tmp_path: Path) -> None:
    assert table(tmp_path, ARCH.replace(field, "throughput: inf"))["latency|T1|Main"] > 0
