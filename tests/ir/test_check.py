"""Each named rule is broken by a tree made for it, is named in the error, and passes every tree that we generate."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, realised, schedules, workloads
from theodolite.errors import RuleBroken
from theodolite.ir.carries import update_of
from theodolite.ir.check import RULES, check
from theodolite.ir.realise import realise
from theodolite.ir.text import parse, show
from theodolite.ir.workload import Access, Einsum, Workload
from theodolite.mapper.shorthand import Schedule
from theodolite.mapper.skeletons import mapping, mapping_of

TEXT = {
    "flash": show(mapping_of(FLASH, CASE_A, H200)),
    "pipeline": show(mapping_of(PIPELINE, CASE_A, H200)),
    "realised flash": show(realise(mapping_of(FLASH, CASE_A, H200), CASE_A)),
    "realised pipeline": show(realise(mapping_of(PIPELINE, CASE_A, H200), CASE_A)),
}
# rule -> (tree, text to replace, replacement, a piece of the message)
SHARED = """abstract shared on sdpa:A for h200
decisions bs=32
HBM Q K V O
temporal s/bs
sequential
  branch
    compute S on mma
    compute M on simd
  branch
    compute P D on simd
  branch
    compute A O on mma
"""
BROKEN = [
    ("known-names", "flash", "temporal s/bn", "temporal z/bn", "unknown rank 'z'"),
    ("known-names", "flash", "temporal b/1", "temporal bh/1", "unknown rank 'bh'"),
    ("known-names", "realised flash", "spatial b/1 h/1 l/16", "spatial b/1 xh/1 l/16", "unknown rank 'xh'"),
    ("known-names", "flash", "SMEM K V", "SMEM K W", "unknown tensor 'W'"),
    ("known-names", "flash", "carries M D A", "carries M D B", "unknown tensor 'B'"),
    ("known-names", "flash", "compute A on", "compute B on", "unknown Einsum 'B'"),
    ("holes-filled", "flash", "bm=64 ", "", "bm=NUMBER"),
    ("holes-filled", "flash", "bm=64 ", "bm=wide ", "not wide"),
    ("holes-filled", "flash", "split=2 ", "", "split=NUMBER"),
    ("holes-filled", "flash", "bn=32", "bn=0", "not 0"),
    ("holes-filled", "realised flash", "kernel flash warps=4", "kernel flash warps=many", "many=NUMBER"),
    ("holes-filled", "flash", "s/(s/split)", "s/(l/split)", "cannot step by a slice of l"),
    ("tiles-shrink", "flash", "temporal b/1\n", "temporal l/32\n", "grows from 32 to 64"),
    ("fanout-fits", "flash", "bm=64", "bm=1", "2048 units on SM"),
    ("ends-off-chip", "flash", "HBM Q K V O", "HBM Q K O", "V needs storage"),
    ("ends-off-chip", "flash", "HBM Q K V O", "L2 Q K V O", "Q needs storage"),
    ("decisions-make-sense", "flash", "warps=4", "warps=3", "warps=3 is none of 1, 2, 4"),
    ("decisions-make-sense", "flash", "stages=2", "stages=0", "stages=0 is none of"),
    ("decisions-make-sense", "flash", "gridfold=yes", "gridfold=maybe", "gridfold=maybe is none of"),
    (
        "decisions-make-sense",
        "flash",
        "gridfold=yes",
        "gridfold=yes foo=3",
        "nothing in the tree reads the decision foo",
    ),
    ("decisions-make-sense", "flash", "bm=64", "bm=99999999999999999999", "is above"),
    (
        "made-before-read",
        "flash",
        "S on mma\n  compute M P D on simd",
        "M P D on simd\n  compute S on mma",
        "M reads S",
    ),
    ("made-before-read", "flash", "compute M P D", "compute M D P", "D reads P"),
    (
        "made-before-read",
        "flash",
        "compute M P D on simd\n  compute A on mma",
        "compute A on mma\n  compute M P D on simd",
        "A reads P",
    ),
    ("units-fit", "flash", "compute M P D on simd", "compute M P D on mma", "runs on simd, not on mma"),
    ("units-fit", "flash", "compute S on mma", "compute S on simd", "S runs on mma, not on simd"),
    ("units-fit", "flash", "on SM", "on XX", "stands on SM, not on XX"),
    ("computed-once", "flash", "\ncompute O on simd", "", "O is never computed"),
    ("computed-once", "pipeline", "compute M P D", "compute M P D D", "D is computed 2 times"),
    ("computed-once", "realised flash", "    compute S on mma\n", "", "S is never computed"),
    ("carries-legal", "flash", "carries M D A", "carries M D", "A is reduced over s and not carried"),
    ("carries-legal", "flash", "carries M D A", "carries M D A P", "no known homomorphism carries P"),
    ("carries-legal", "realised flash", "over s carries M D A", "over s carries D A", "M is reduced over s"),
    ("kernels-whole", "realised flash", "kernel flash_merge warps", "kernel flash warps", "share a name"),
    ("kernels-whole", "realised flash", "\n  SMEM Q", "\n  HBM Q", "global storage stands inside"),
    ("kernels-whole", "realised flash", "HBM Q K V O", "SMEM Q K V O", "on-chip storage stands above"),
    ("kernels-whole", "realised flash", "HBM Q K V O", "temporal b/1", "only storage, workspaces"),
    ("grids-ordered", "realised flash", "order=l,h,b,s", "order=l,h,s", "does not name the grid's ranks"),
    ("grids-ordered", "realised flash", "order=l,h,b,s", "order=l,h,b,s,s", "does not name the grid's ranks"),
    ("grids-ordered", "realised pipeline", "order=f,l,h,b", "order=l,h,b", "does not name the grid's ranks"),
]


@pytest.mark.parametrize("tree", TEXT)
def test_the_trees_that_the_broken_ones_vary_are_good(tree: str) -> None:
    check(parse(TEXT[tree]), CASE_A, H200.sms)


@pytest.mark.parametrize(("rule", "tree", "old", "new", "message"), BROKEN)
def test_a_broken_rule_is_named(rule: str, tree: str, old: str, new: str, message: str) -> None:
    assert old in TEXT[tree]
    with pytest.raises(RuleBroken, match=rf"^rule {rule}: ") as caught:
        check(parse(TEXT[tree].replace(old, new, 1)), CASE_A, H200.sms)
    assert message in str(caught.value)


def test_a_value_read_before_it_is_complete_is_refused() -> None:
    with pytest.raises(RuleBroken, match=r"^rule complete-before-read: P reads M under a shared loop over s") as caught:
        check(parse(SHARED), CASE_A, H200.sms)
    assert "temporal s/bs > [sequential]" in str(caught.value)
    check(parse(SHARED.replace("temporal s/bs", "temporal l/bs")), CASE_A, H200.sms)


def test_a_tree_without_kernels_is_refused() -> None:
    bare = "realised t on sdpa:A for h200\ndecisions\nHBM Q K V O\n"
    with pytest.raises(RuleBroken):
        check(parse(bare), CASE_A, H200.sms)
    only = next(r for r in RULES if r.name == "kernels-whole")
    objections = [o.what for o in only.find(parse(bare), CASE_A, H200.sms)]
    assert objections == ["a realised tree holds at least one kernel"]


def test_every_rule_is_broken_above() -> None:
    assert {r.name for r in RULES} == {b[0] for b in BROKEN} | {"complete-before-read"}


def test_an_objection_shows_the_neighbourhood() -> None:
    with pytest.raises(RuleBroken, match=r"temporal b/1 > \[spatial h/1 l/bm s/\(s/split\) on SM\] > SMEM Q"):
        check(parse(TEXT["flash"].replace("bm=64", "bm=1")), CASE_A, H200.sms)


@given(schedules(), workloads())
def test_generated_trees_pass(chosen: Schedule, load: Workload) -> None:
    check(mapping(chosen, load, H200), load, H200.sms)
    check(realised(chosen, load), load, H200.sms)


# ---- carries -----------------------------------------------------------------------------------------------------
def test_the_updates_of_attention() -> None:
    assert {n: update_of(CASE_A, n, "s") for n in "MDA"} == {
        "M": "running max",
        "D": "rescaled sum",
        "A": "rescaled sum of products",
    }


@pytest.mark.parametrize(("name", "rank"), [("S", "s"), ("S", "e"), ("P", "s"), ("O", "s"), ("M", "l"), ("A", "f")])
def test_what_no_homomorphism_carries_raises(name: str, rank: str) -> None:
    with pytest.raises(RuleBroken, match=f"no known homomorphism carries {name} .* over {rank}"):
        update_of(CASE_A, name, rank)


def _with(einsum: Einsum) -> Workload:
    einsums = tuple(einsum if e.name == einsum.name else e for e in CASE_A.einsums)
    return Workload(CASE_A.name, CASE_A.ranks, CASE_A.tensors, einsums, CASE_A.inputs, CASE_A.outputs)


def _at(tensor: str) -> Access:
    return Access(tensor, CASE_A.tensor(tensor).ranks)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (Einsum(_at("M"), (_at("S"),), "copy", "sum"), "M"),  # a sum of scores: no exponential to rescale
        (Einsum(_at("D"), (_at("S"),), "copy", "sum"), "D"),
        (Einsum(_at("A"), (_at("S"), _at("V")), "mul", "sum"), "A"),
        (Einsum(_at("A"), (_at("P"), _at("V")), "mul", "max"), "A"),
        (Einsum(_at("M"), (_at("S"),), "copy", "sum"), "D"),  # exp(S - sum S) is no difference from the maximum
    ],
)
def test_an_unknown_reduction_is_not_taken_for_a_known_one(changed: Einsum, name: str) -> None:
    with pytest.raises(RuleBroken, match=f"no known homomorphism carries {name}"):
        update_of(_with(changed), name, "s")
