"""AccelForge's sections into records: what comes in, and one line for what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.cases import CASE_A, DATA, drawn, stored
from theodolite.errors import RuleBroken, TextError, TheodoliteError, Unsupported
from theodolite.gpus.accelforge import hierarchies
from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of, write_mapping
from theodolite.ir.check import check
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Storage, Temporal
from theodolite.ir.workload import Access, Einsum

SDPA = (DATA / "gpu_three_level.yaml", DATA / "sdpa.yaml", DATA / "case-a" / "000.yaml")


def test_attention_comes_in_as_a_cascade() -> None:
    cascade = cascade_of(load(*SDPA, variables=CASE_A))
    load_ = cascade.workload
    assert load_.name == "sdpa:bh=8,l=128,e=64,s=128,f=64"
    assert (load_.inputs, load_.outputs) == (("Q", "K", "V"), ("O",))
    scores = Einsum(
        Access("Scores", ("bh", "l", "s")), (Access("Q", ("bh", "l", "e")), Access("K", ("bh", "s", "e"))), "mul", "sum"
    )
    assert load_.einsum("Scores") == scores
    assert (load_.einsum("Weights").map, load_.einsum("Weights").reduce) == ("copy", None)
    assert load_.shape("V") == (8, 128, 64)
    assert cascade.bits == dict.fromkeys(("Q", "K", "Scores", "Weights", "V", "O"), 16)
    sets = cascade.symbols["O"]
    assert {n: set(sets[n].members) for n in ("input", "weight", "output", "Intermediates", "Scores")} == {
        "input": {"Weights"}, "weight": {"V"}, "output": {"O"}, "Intermediates": {"Weights"}, "Scores": set()
    }  # fmt: skip


def test_a_gpu_comes_in_with_its_words() -> None:
    sections = load(*SDPA, variables=CASE_A)
    arch = arch_of(sections)
    names = names_of(arch)
    machine = hierarchies(arch, cascade_of(sections), names)
    assert [m.levels for m in machine["O"].memories] == [("HBM",), ("L2",), ("SMEM",)]
    assert [u.name for u in machine["O"].units] == ["TensorCore"]  # the scalar unit takes Einsums of two tensors
    assert [u.name for u in machine["Weights"].units] == ["ScalarUnit"]
    shared = machine["O"].memory("SharedMemory")
    assert (shared.size_bits, shared.fanout) == (100 * 1024 * 8, ("SM", 128))
    assert shared.read.per_s == 8 * 128 * 2.52e9
    assert shared.write.joules == 0.3e-12


def test_a_mapping_comes_in_as_a_tree_that_prints() -> None:
    sections = load(*SDPA, variables=CASE_A)
    tree = mapping_of(sections, arch_of(sections), cascade_of(sections))
    assert parse(show(tree)) == tree
    assert tree.body[0] == Storage("HBM", ("Q", "K", "V", "O"))
    assert [type(n) for n in tree.body[1:3]] == [Temporal, Storage]
    assert "spatial s/1 e/1 on SM" in show(tree)


def test_a_dimension_that_two_components_share_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "arch.yaml"
    file.write_text(
        "arch: {nodes: [!Memory {name: A, size: 1}, !Memory {name: B, size: 1, spatial: [{name: x, fanout: 2}]},"
        " !Compute {name: C, spatial: [{name: x, fanout: 3}, {name: y, fanout: 4}]}]}"
    )
    assert names_of(arch_of(load(file))).dims == {("B", "x"): "B.x", ("C", "x"): "C.x", ("C", "y"): "y"}


@pytest.mark.parametrize("case", list(stored()), ids=lambda c: c.name)
def test_a_stored_mapping_is_written_and_read_back_equal(case: object, tmp_path: Path) -> None:
    _round_trip(case.files, case.variables, tmp_path)  # type: ignore[attr-defined]


def test_a_drawn_mapping_is_written_and_read_back_equal(tmp_path: Path) -> None:
    for seed in range(60):
        _round_trip(drawn(seed, tmp_path).files, {}, tmp_path)


def _round_trip(files: tuple[Path, ...], variables: dict[str, object], folder: Path) -> None:
    sections = load(*files, variables=variables)
    arch, cascade = arch_of(sections), cascade_of(sections)
    tree = mapping_of(sections, arch, cascade)
    written = folder / f"{tree.name}.yaml"
    written.write_text(write_mapping(tree, arch, cascade, names_of(arch)))
    assert mapping_of(load(written), arch, cascade).body == tree.body


def test_the_unsound_mapping_is_named() -> None:
    """AccelForge's mapper returns it and its model prices it at 414,080 J and 10,240 s: see docs/accelforge.md."""
    files = tuple(DATA / f"softmax_unsound.{what}.yaml" for what in ("arch", "workload", "mapping"))
    sections = load(*files, variables={"L": 16, "S": 64})
    arch, cascade = arch_of(sections), cascade_of(sections)
    tree = mapping_of(sections, arch, cascade)
    with pytest.raises(RuleBroken, match="rule complete-before-read: P reads Mx under a shared loop over s"):
        check(tree, cascade.workload, 1)


# ---- what is refused ---------------------------------------------------------------------------------------------
ARCH = "arch:\n  nodes:\n  - !Memory {name: M, size: 8}\n  - !Memory {name: B, size: 8}\n  - !Compute {name: C}\n"
LOAD = 'workload:\n  rank_sizes: {L: 4, S: 6}\n  bits_per_value: {All: 8}\n  einsums:\n  - "O[l] = A[l, s]"\n'
TREE = """mapping:
  nodes:
  - !Storage {tensors: [A, O], component: M}
  - !Temporal {rank_variable: l, tile_shape: 1}
  - !Temporal {rank_variable: s, tile_shape: 1}
  - !Compute {einsum: O, component: C}
"""


def _read(folder: Path, arch: str = ARCH, workload: str = LOAD, tree: str = TREE) -> None:
    """Everything of three texts; the hierarchies too, since expressions wait until then."""
    for name, text in (("arch", arch), ("workload", workload), ("mapping", tree)):
        (folder / f"{name}.yaml").write_text(text)
    sections = load(*(folder / f"{n}.yaml" for n in ("arch", "workload", "mapping")))
    spec, cascade = arch_of(sections), cascade_of(sections)
    mapping_of(sections, spec, cascade)
    hierarchies(spec, cascade, names_of(spec))


def test_the_plain_texts_lack_prices_alone(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="has no throughput of read: write the number"):
        _read(tmp_path)
    _read(tmp_path, ARCH.replace("name: ", "component_class: Dummy, name: "))


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("!Memory {name: B", "!Toll {name: B", Unsupported, "arch.yaml, line 4: !Toll in an architecture"),
        ("!Memory {name: B", "!Network {name: B", Unsupported, "line 4: !Network in an architecture"),
        ("!Memory {name: B", "!Fork {name: B", Unsupported, "line 4: !Fork in an architecture"),
        ("!Memory {name: B", "{name: B", Unsupported, "line 4: a node without a tag"),
        ("name: B, size: 8", "name: B", TextError, "line 4: !Memory needs 'size'"),
        ("name: B", "name: M", TextError, "two nodes share a name: M M C"),
        ("name: B", "name: 3", TextError, "line 4: a node's name is a name, not '3'"),
        ("name: B", "nam: B", TextError, "line 4: !Memory has no field 'nam'"),
        ("name: B", "name: B, leak_power: 1 if", Unsupported, "line 4: leak_power of B: '1 if' is no expression"),
        ("name: B", "name: B, spatial: [{name: x, fanout: 0}]", Unsupported, "line 4: fanout of B is 0: it is above 0"),
        (
            "name: B",
            "name: B, spatial: [{name: x, fanout: 2, power_gateable: true}]",
            Unsupported,
            "line 4: power gating",
        ),
        ("name: B", "name: B, total_latency: 3", Unsupported, "line 4: B: total_latency '3': read are 0, and sum"),
        (
            "name: B",
            "name: B, bits_per_value: {All: 4, Outputs: 16}",
            Unsupported,
            "line 4: bits_per_value of B gives O twice, by 'Outputs' again",
        ),
        (
            "name: B",
            "name: B, values_per_action: {A: 4, ~O: 4}",
            Unsupported,
            "line 4: values_per_action of B gives A twice, by '~O' again",
        ),
        ("name: B", "name: B, bits_per_value: {A: inf}", Unsupported, "line 4: bits_per_value of B is infinite"),
        ("name: B", "name: B, actions_scale: .inf", Unsupported, "line 4: actions_scale of B is infinite"),
        ("name: B", "name: B, actions: [{name: read, energy: inf}]", Unsupported, "line 4: energy of read of B is inf"),
        (
            "name: B",
            "name: B, actions: [{name: read, energy: -1}]",
            Unsupported,
            "line 4: energy of read of B is -1: i",
        ),
        (
            "name: B",
            "name: B, actions: [{name: read, energy: 2^3}]",
            Unsupported,
            "^ on numbers: a power is written **",
        ),
        ("name: B", "name: B, spatial: [{name: x, fanout: inf}]", Unsupported, "line 4: fanout of B is infinite"),
        ("name: B", "name: B, skip_initial_output_write: 2", TextError, "line 4: skip_initial_output_write is true or"),
        ("arch:\n", "variables: {x: len(All)}\narch:\n", Unsupported, "line 1: variable x: unknown name 'All'"),
        ("arch:\n", "arch:\n  variables: {x: y, y: 2 * x}\n", Unsupported, "line 2: variables that need each other: x"),
        ("arch:\n", "arch:\n  variables: {x: 1 +}\n", Unsupported, "line 2: variable x: '1 +' is no expression"),
        ("name: B", "name: B, actions: [{name: read, latency: 0}]", Unsupported, "line 4: latency of an action"),
        ("name: B", "name: B, actions: [{name: hop}]", Unsupported, "line 4: action hop of a Memory"),
        ("  - !Compute {name: C}\n", "", TextError, "an architecture needs a Compute"),
    ],
)
def test_an_architecture_that_is_not_read(old: str, new: str, kind: type[TheodoliteError], said: str,
                                           tmp_path: Path) -> None:  # fmt: skip
    assert old in ARCH
    dummy = ARCH.replace(old, new).replace("{name: ", "{component_class: Dummy, name: ").replace(
        "[{component_class: Dummy, ", "[{")  # fmt: skip
    with pytest.raises(kind) as caught:
        _read(tmp_path, dummy)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("A[l, s]", "A[l + s]", Unsupported, "workload.yaml, line 5: index 'l+s': a dimension is indexed by one"),
        ("A[l, s]", "exp(A[l, s])", Unsupported, "line 5: Einsum 'O[l] = exp(A[l, s])': read is"),
        ("A[l, s]", "A[l, s] + B[l]", Unsupported, "line 5: Einsum"),
        ("A[l, s]", "A[L, s]", TextError, "line 5: rank variable 'L' begins with a capital letter"),
        ("A[l, s]", "A[l, t]", TextError, "line 5: no size for rank T"),
        ("A[l, s]", "A[l, s] * A[l, s]", Unsupported, "line 5: Einsum O accesses a tensor twice"),
        ("A[l, s]", "A[S:l]", Unsupported, "line 5: l has sizes 4 and 6"),
        ("A[l, s]", "A[l, S:l]", Unsupported, "line 5: l indexes two ranks of A: one rank variable a rank is read"),
        (
            '"O[l] = A[l, s]"',
            "{name: O, tensor_accesses: [{name: A, projection: {L: l, S: l}}, {name: O, projection: [l], output: 1}]}",
            Unsupported,
            "line 5: l indexes two ranks of A",
        ),
        ("{All: 8}", "{Nothing: 8}", TextError, "line 5: no bits_per_value for A"),
        ("{All: 8}", "{All: 8, O: 4}", TextError, "line 3: bits_per_value of O is given twice"),
        ("{All: 8}", "{All: 0.5}", TextError, "line 3: bits_per_value is a whole number from 1"),
        ("{All: 8}", "{All: 4 * 2}", Unsupported, "line 3: bits_per_value is a plain number, not '4 * 2'"),
        ("{All: 8}", "{All: '8'}", Unsupported, "line 3: bits_per_value is a plain number, not '8'"),
        ("{All: 8}", "{All: !!str 8}", Unsupported, "line 3: tag '!!str': write the value without it"),
        ("{L: 4", "{L: 8 / 2", Unsupported, "line 2: the size of L is 4.0, a float: divide whole numbers by //"),
        ("{All: 8}", "{3 + 4: 8}", TextError, "line 3: bits_per_value of '3 + 4', which is no set"),
        ("{L: 4", "{L: 0", TextError, "line 2: the size of L is a whole number from 1"),
        ("{L: 4", "{L: 10 ** 30", TextError, "line 2: the size of L has more than 18 digits"),
        (
            '"O[l] = A[l, s]"',
            "{einsum: 'O[l] = A[l, s]', is_copy_operation: true}",
            Unsupported,
            "line 5: a copy Einsum",
        ),
        ('"O[l] = A[l, s]"', "{einsum: 'O[l] = A[l, s]', n_instances: 2}", Unsupported, "line 5: n_instances"),
        (
            '"O[l] = A[l, s]"',
            '"O[l] = A[l, s]"\n  - "A[l, s] = B[l, s]"',
            TextError,
            "line 5: O reads A before it is made",
        ),
        ("  einsums", "  persistent_tensors: All\n  einsums", Unsupported, "line 4: persistent tensors"),
    ],
)
def test_a_workload_that_is_not_read(old: str, new: str, kind: type[TheodoliteError], said: str,
                                      tmp_path: Path) -> None:  # fmt: skip
    assert old in LOAD
    with pytest.raises(kind) as caught:
        _read(tmp_path, workload=LOAD.replace(old, new, 1))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("s, tile_shape: 1", "s, tile_shape: 4", Unsupported, "mapping.yaml, line 5: an imperfect factor: tile 4 of s"),
        ("s, tile_shape: 1", "s, tile_shape: 2 - 1", Unsupported, "line 5: tile_shape is a plain number, not '2 - 1'"),
        ("s, tile_shape: 1", "s, tile_shape: '1'", Unsupported, "line 5: tile_shape is a plain number, not '1'"),
        ("s, tile_shape: 1", "s, tile_shape: !!int 1", Unsupported, "line 5: tag '!!int': write the value without it"),
        ("s, tile_shape: 1", "s, tile_shape: 1, initial_tile_shape: 3", Unsupported, "line 5: initial_tile_shape"),
        ("rank_variable: s", "rank_variable: [s, l]", Unsupported, "line 5: a loop over several rank variables"),
        ("rank_variable: s", "rank_variable: q", TextError, "line 5: unknown rank variable 'q'"),
        ("!Temporal {rank_variable: s", "!Toll {rank_variable: s", Unsupported, "line 5: !Toll in a mapping"),
        ("!Temporal {rank_variable: s", "!Pipeline {rank_variable: s", Unsupported, "line 5: !Pipeline in a mapping"),
        ("!Temporal {rank_variable: s", "{rank_variable: s", TextError, "line 5: a node of a mapping has a tag"),
        ("!Temporal {rank_variable: s", "!Spatial {name: x, component: B, rank_variable: s", TextError,
         "line 5: B has no dimension 'x'"),
        ("component: M", "component: C", TextError, "line 3: 'C' is no Memory of the architecture: use M B"),
        ("[A, O]", "[A, X]", TextError, "line 3: unknown tensor 'X'"),
        ("component: M", "component: M, persistent: true", Unsupported, "line 3: a persistent storage"),
        ("einsum: O", "einsum: P", TextError, "line 6: unknown Einsum 'P'"),
        ("  - !Compute {einsum: O, component: C}\n", "", TextError, "a list of nodes ends with !Compute"),
        ("  - !Temporal {rank_variable: s", "  - !Compute {einsum: O, component: C}\n  - !Temporal {rank_variable: s",
         TextError, "line 5: !Compute is the last node of its list"),
    ],
)  # fmt: skip
def test_a_mapping_that_is_not_read(old: str, new: str, kind: type[TheodoliteError], said: str,
                                     tmp_path: Path) -> None:  # fmt: skip
    assert old in TREE
    with pytest.raises(kind) as caught:
        _read(tmp_path, tree=TREE.replace(old, new, 1))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mapping_of_some_einsums_alone_is_refused(tmp_path: Path) -> None:
    two = LOAD + '  - "P[l] = O[l]"\n'
    with pytest.raises(RuleBroken, match=r"mapping.yaml, line 2: rule computed-once: Einsum P is never computed"):
        _read(tmp_path, workload=two)


def test_a_section_comes_from_one_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(ARCH)
    with pytest.raises(TextError, match=r"arch is given in .*a\.yaml already"):
        load(tmp_path / "a.yaml", tmp_path / "b.yaml")
    with pytest.raises(TextError, match="none of the files has a section 'workload'"):
        cascade_of(load(tmp_path / "a.yaml"))
    with pytest.raises(TextError, match="cannot be read"):
        load(tmp_path / "none.yaml")
