"""What a mapping becomes: refinements are recorded, and what no rule covers is refused by the rule's name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, realised, schedules, workloads
from theodolite.errors import Unsupported
from theodolite.ir.realise import fusion_label, realise, realise_skeleton
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Key, Storage, Tree, substitute, walk
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import Schedule, parse_schedule
from theodolite.mapper.skeletons import mapping, mapping_of
from theodolite.workloads import sdpa

UNSPLIT_FLASH = FLASH.replace("split=2", "split=1")
UNSPLIT_PIPELINE = PIPELINE.replace("split=2", "split=1")


def rules(tree: Tree) -> list[str]:
    return [r.rule for r in tree.refinements]


def test_without_slices_there_are_no_partials_and_no_merge() -> None:
    flash = realise(mapping_of(UNSPLIT_FLASH, CASE_A, H200), CASE_A)
    assert [k.name for k in flash.kernels] == ["flash"]
    assert flash.workspaces == ()
    assert rules(flash) == ["gridfold", "placement", "dtype"]
    pipeline = realise(mapping_of(UNSPLIT_PIPELINE, CASE_A, H200), CASE_A)
    assert [k.name for k in pipeline.kernels] == ["qk", "softmax", "av"]
    assert [w.name for w in pipeline.workspaces] == ["S_w", "P_w"]
    assert "partials" not in rules(pipeline)


def test_a_wish_for_the_cache_becomes_global_memory_and_is_recorded() -> None:
    text = show(mapping_of(PIPELINE, CASE_A, H200)).replace("HBM Q K V O S P", "HBM Q K V O\nL2 S P")
    tree = realise(parse(text), CASE_A)
    told = [r for r in tree.refinements if r.rule == "handoff"]
    assert [r.reason for r in told] == ["a cache is not addressable; S and P wait in global memory"]
    assert not any(isinstance(n, Storage) and n.level == "L2" for n in walk(tree.body))
    assert tree.body == realise(mapping_of(PIPELINE, CASE_A, H200), CASE_A).body


def test_a_narrow_contraction_and_skipped_tiles_are_recorded() -> None:
    causal = sdpa(b=1, h=2, l=64, s=64, d=64, causal=True)
    narrow = realised(parse_schedule(PIPELINE.replace("qk.bk=32", "qk.bk=8")), causal)
    assert [r.reason for r in narrow.refinements if r.rule == "simd"] == [
        "a contraction tile of 8 over e is below 16: multiplied and summed, not a dot"
    ]
    assert "domain" not in rules(narrow)  # the pipeline skips no tile
    assert "domain" in rules(realised(parse_schedule(FLASH), causal))
    assert "domain" not in rules(realised(parse_schedule(FLASH), CASE_A))


def test_the_mask_moves_to_the_merge_and_is_recorded() -> None:
    causal = sdpa(b=1, h=2, l=64, s=64, d=64, causal=True)
    tree = realised(parse_schedule(PIPELINE), causal)
    assert tree.refinements[0].reason.endswith("kernel qk_merge adds them and applies the scale and the mask")


@given(schedules(), workloads())
def test_a_realised_tree_keeps_its_mapping_and_is_its_skeleton_s(chosen: Schedule, load: Workload) -> None:
    tree = realised(chosen, load)
    assert tree.mapping == mapping(chosen, load, H200)
    skeleton = realise_skeleton(tree.mapping, load)
    assert substitute(skeleton.body, chosen.values) == substitute(tree.body, chosen.values)
    merged = {k.removesuffix("split") for k, v in chosen.values.items() if k.endswith("split") and v > 1}
    assert rules(tree).count("partials") == len(merged)
    assert sum(k.name.endswith("_merge") for k in tree.kernels) == len(merged)
    left = {n.name for n in _keys(tree.body)}
    assert not any(k.split(".")[-1] in ("warps", "stages") for k in left)


def _keys(value: object) -> list[Key]:
    if isinstance(value, Key):
        return [value]
    if isinstance(value, tuple):
        return [k for v in value for k in _keys(v)]
    return [k for v in vars(value).values() for k in _keys(v)] if hasattr(value, "__dataclass_fields__") else []


def test_the_fusion_field() -> None:
    assert fusion_label(mapping_of(FLASH, CASE_A, H200)) == "single-kernel"
    assert fusion_label(mapping_of(PIPELINE, CASE_A, H200)) == "split"


HEAD = "abstract t on sdpa:A for h200\ndecisions bm=16 bs=32 n=2 m=2 gridfold={}\nHBM Q K V O S P\n"
BRANCH = "  branch\n    spatial l/bm on SM\n    compute {} on simd\n"
UNSUPPORTED = {
    "gridfold=no": (HEAD.format("no") + "spatial l/bm on SM\ncompute S M P D A O on simd\n", "gridfold=no"),
    "a shared loop": (
        HEAD.format("yes") + "temporal l/bm\nsequential\n" + BRANCH.format("S") + BRANCH.format("M P D A O"),
        "fission has no rule for a leaf that computes M P D A O",
    ),
    "a split in a split": (
        HEAD.format("yes")
        + "sequential\n  branch\n    sequential\n      branch\n        spatial l/bm on SM\n        compute S on mma\n"
        + BRANCH.format("M P D A O"),
        "fission has no rule for a leaf that computes M P D A O",
    ),
    "no compute": (HEAD.format("yes") + "sequential\n  branch\n    spatial l/bm on SM\n", "a branch without a compute"),
    "no grid": (HEAD.format("yes") + "temporal l/bm\ncompute S M P D A O on simd\n", "a branch without a Spatial"),
    "storage above the grid": (
        HEAD.format("yes") + "SMEM Q\nspatial l/bm on SM\ncompute S M P D A O on simd\n",
        "storage above a kernel's grid",
    ),
    "a second grid": (
        HEAD.format("yes") + "spatial l/bm on SM\nspatial h/1 on SM\ncompute S M P D A O on simd\n",
        "a second Spatial",
    ),
    "a reduction over CTAs that is no slice": (
        HEAD.format("yes") + "spatial l/bm s/bs on SM\ncompute S M P D A O on simd\n",
        "not written in slices",
    ),
    "two reductions in slices": (
        HEAD.format("yes") + "spatial l/bm s/(s/n) e/(e/m) on SM\ncompute S M P D A O on simd\n",
        "two reduction ranks",
    ),
    "a slice of several results": (
        HEAD.format("yes")
        + "sequential\n"
        + BRANCH.format("S").replace("l/bm", "l/bm")
        + BRANCH.format("M P D A O").replace("l/bm", "l/bm s/(s/n)"),
        "no merge rule",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_no_rule_covers_is_named(what: str) -> None:
    text, message = UNSUPPORTED[what]
    with pytest.raises(Unsupported, match=message):
        realise(parse(text), CASE_A)


def test_the_same_tree_with_the_fault_mended_is_realised() -> None:
    good = mapping_of(FLASH, CASE_A, H200)
    assert realise(good, CASE_A).kernels
    with pytest.raises(Unsupported, match="gridfold=no"):
        realise(replace(good, decisions={**good.decisions, "gridfold": "no"}), CASE_A)
