"""LoopTrees whose branches share loops: each leaf becomes a kernel of its own, and the values stay attention's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theodolite.errors import RuleBroken, Unsupported
from theodolite.ir import interp
from theodolite.ir.check import check
from theodolite.ir.fission import fission, is_standard, unsound
from theodolite.ir.realise import fusion_label, realise
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Block, Compute, Loop, Node, Sequential, Spatial, Storage, Temporal, Tree, walk
from theodolite.lowering.lower import lower
from theodolite.workloads import entry, sdpa, workload

CASE_A = workload("sdpa:A")
HEAD = "abstract looptree on sdpa:b=1,h=8,l=128,s=128,d=64 for h200\n"

# What AccelForge's mapper likes: heads and query tiles shared by all, keys shared by scores and weights, one key and
# one element of the contraction an SM.
SHARED = (
    HEAD
    + """\
decisions view=accelforge
HBM Q K V O
temporal h/1
temporal l/32
L2 P
sequential
  branch
    L2 Q
    temporal s/8
    L2 S
    sequential
      branch
        temporal e/16
        spatial s/1 on SM
        spatial e/1 on SM
        SMEM K
        temporal l/1
        compute S on mma
      branch
        temporal l/1
        temporal s/1
        compute M P D on simd
  branch
    temporal f/8
    L2 V
    temporal l/16
    spatial l/1 on SM
    spatial f/1 on SM
    SMEM O
    temporal s/1
    compute A O on mma
"""
)


def values_are_attention(tree: Tree, what) -> None:
    arrays = entry(what.name).inputs(what, 0)
    realised = realise(tree, what)
    got = interp.values(realised, what, arrays, rounding=False)["O"]
    assert np.abs(got - entry(what.name).reference(what, arrays)["O"]).max() < 1e-12


def test_the_shared_tree_becomes_kernels_with_its_tiles_and_its_split():
    realised = realise(parse(SHARED), CASE_A)
    assert [k.name for k in realised.kernels] == ["qk", "qk_merge", "softmax", "av"]
    chosen = {k: v for k, v in realised.decisions.items() if "." in k}
    assert chosen == {
        "qk.bl": 32, "qk.bs": 1, "qk.be": 1, "qk.split": 16, "softmax.bl": 32, "av.bl": 1, "av.bf": 1, "av.bs": 128,
    }  # fmt: skip
    rules = [r.rule for r in realised.refinements]
    assert rules[:5] == ["fission", "complete-first", "slices", "whole-rows", "defaults"]
    values_are_attention(parse(SHARED), CASE_A)


def test_the_shared_tree_is_unsound_under_the_real_softmax_and_says_so():
    tree = parse(SHARED)
    assert unsound(tree, CASE_A) == "rule complete-before-read: P reads M under a shared loop over s"
    check(tree, CASE_A, 132)  # its view folds the row maximum away
    bare = parse(SHARED.replace("view=accelforge", "warps=4"))
    with pytest.raises(RuleBroken, match="complete-before-read"):
        check(bare, CASE_A, 132)
    with pytest.raises(RuleBroken, match="complete-before-read"):
        realise(bare, CASE_A)


def test_without_a_shared_loop_over_keys_the_tree_is_sound():
    lines = SHARED.splitlines()
    lines.remove("    temporal s/8")
    tree = parse("\n".join(lines))
    assert unsound(tree, CASE_A) is None
    assert "complete-first" not in [r.rule for r in realise(tree, CASE_A).refinements]


def test_handoffs_above_a_split_name_the_fusion():
    assert fusion_label(parse(SHARED)) == "split"
    on_chip = parse(SHARED.replace("    L2 S\n", "    SMEM S\n"))
    assert fusion_label(on_chip) == "on-chip"
    values_are_attention(on_chip, CASE_A)


def test_a_long_contraction_is_walked_and_said_to_be():
    long = workload("sdpa:b=1,h=8,l=128,s=1024,d=64")
    tree = parse(SHARED.replace("s=128", "s=1024"))
    realised = realise(tree, long)
    assert realised.decisions["av.bs"] == 128
    assert any(r.rule == "contraction" for r in realised.refinements)


@pytest.mark.parametrize("leaf", ["S M P D", "M P D A O", "S A"])
def test_a_leaf_that_is_no_single_step_names_what_it_computes(leaf):
    text = SHARED.replace("compute M P D on simd", f"compute {leaf} on simd")
    with pytest.raises(Unsupported, match=f"a leaf that computes {leaf}"):
        fission(parse(text), CASE_A)


# ---- drawn trees -------------------------------------------------------------------------------------------------
@st.composite
def looptrees(draw) -> tuple[Tree, object]:
    """A LoopTree of three leaves: loops above all, above scores and weights, and of each leaf, in random order."""
    what = sdpa(b=1, h=draw(st.sampled_from([1, 2])), l=16, s=32, d=16)
    sizes = dict(what.ranks)

    def loops(ranks: str, tiles: dict[str, int], spatial: bool) -> list[Node]:
        out: list[Node] = []
        for rank in draw(st.permutations(list(ranks))):
            tile = tiles.get(rank, sizes[rank])
            smaller = [t for t in (1, 2, 4, 8, 16) if t <= tile]
            if not draw(st.booleans()) or not smaller:
                continue
            tiles[rank] = draw(st.sampled_from(smaller))
            loop = (Loop(rank, tiles[rank]),)
            on_sms = spatial and draw(st.booleans())
            out.append(Spatial(loop, "SM") if on_sms else Temporal(loop))
        return out

    def leaf(ranks: str, tiles: dict[str, int], level: str, held: tuple[str, ...], compute: Compute) -> Block:
        above = loops(ranks, tiles, True)
        storage = [Storage(level, held)] if draw(st.booleans()) else []
        return (*above, *storage, *loops(ranks, tiles, False), compute)

    shared: dict[str, int] = {"h": 1}
    top = loops("l", shared, False)
    level = draw(st.sampled_from(["HBM", "L2", "SMEM"]))
    inner = dict(shared)
    between = loops("s", inner, False)
    chip = draw(st.sampled_from(["L2", "SMEM"]))
    scores = leaf("lse", dict(inner), chip, ("K",), Compute(("S",), "mma"))
    weights = leaf("ls", dict(inner), "SMEM", ("P",), Compute(("M", "P", "D"), "simd"))
    output = leaf("lsf", dict(shared), chip, ("V",), Compute(("A", "O"), "mma"))
    first = (*between, Storage(level, ("S",)), Sequential((scores, weights)))
    body = (
        Storage("HBM", ("Q", "K", "V", "O")),
        Temporal((Loop("h", 1),)),
        *top,
        Storage("L2", ("P",)),
        Sequential((first, output)),
    )
    return Tree("abstract", "looptree", what.name, "h200", {"view": "accelforge"}, body), what


@given(looptrees())
def test_every_drawn_looptree_computes_attention(drawn):
    tree, what = drawn
    assert parse(show(tree)) == tree
    realised = realise(tree, what)
    check(realised, what, 132)
    assert parse(show(realised)) == realised
    assert any(r.rule == "fission" for r in realised.refinements)
    values_are_attention(tree, what)
    lower(realised, what)


@given(looptrees())
def test_what_fission_returns_needs_none(drawn):
    tree, what = drawn
    split, _ = fission(tree, what)
    assert is_standard(split)
    assert not is_standard(tree)
    made = [e for n in walk(split.body) if isinstance(n, Compute) for e in n.einsums]
    assert sorted(made) == sorted(e.name for e in what.einsums)
