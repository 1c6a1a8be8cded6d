"""Values that are read before they are complete, however the tree hides it."""

from __future__ import annotations

import pytest

from theodolite.errors import RuleBroken
from theodolite.gpus import gpu
from theodolite.ir.check import check
from theodolite.ir.soundness import read_too_early
from theodolite.ir.text import parse
from theodolite.workloads import workload

SDPA = "sdpa:b=1,h=8,l=128,s=128,d=64"
WORK = workload(SDPA)
HEAD = f"""abstract hidden on {SDPA} for h200
decisions bm=64 bn=32 warps=4 stages=2
HBM Q K V O
temporal b/1
spatial h/1 l/bm on SM
SMEM Q
RF M D A
"""
CARRIED = """interleaved over s carries M D A
  temporal s/bn
  SMEM K V
  RF S P
  compute S on mma
  compute M P D on simd
  compute A on mma
"""


def early(text: str) -> set[tuple[str, str, str]]:
    return {(e.reader, e.tensor, e.rank) for e in read_too_early(parse(text), WORK)}


def refused(text: str) -> None:
    with pytest.raises(RuleBroken, match=r"^rule complete-before-read: "):
        check(parse(text), WORK, gpu("h200").sms)


def test_what_a_loop_carries_may_be_read_in_it_and_after_it() -> None:
    text = HEAD + CARRIED + "compute O on simd\n"
    assert early(text) == set()
    check(parse(text), WORK, gpu("h200").sms)


def test_slices_of_a_carried_state_are_merged() -> None:
    assert early(HEAD.replace("l/bm on", "l/bm s/64 on") + CARRIED + "compute O on simd\n") == set()


def test_an_outer_loop_over_the_carried_rank_does_not_carry() -> None:
    """O divides by a sum over the part of the row that the outer loop has come to."""
    text = HEAD + "temporal s/64\n" + CARRIED + "compute O on simd\n"
    assert ("O", "D", "s") in early(text)
    refused(text)


def test_several_leaves_of_one_block_share_its_loops() -> None:
    nest = "temporal s/bn\nSMEM K V\nRF S P\ncompute S on mma\ncompute M P D on simd\ncompute A O on mma\n"
    assert {("P", "M", "s"), ("O", "D", "s")} <= early(HEAD + nest)
    refused(HEAD + nest)


def test_one_leaf_by_itself_takes_its_row_whole() -> None:
    nest = "temporal s/bn\ncompute S M P D A O on simd\n"
    assert early(HEAD + nest) == set()


def test_an_interleaved_elsewhere_hides_nothing() -> None:
    """The scores' own maximum is read under a loop that carries only the sums after it."""
    text = (HEAD + CARRIED + "compute O on simd\n").replace("carries M D A", "carries D A")
    assert ("P", "M", "s") in early(text)


def test_a_carried_loop_over_another_rank_carries_nothing_over_this_one() -> None:
    text = (HEAD + CARRIED + "compute O on simd\n").replace("over s carries", "over l carries").replace("s/bn", "s/32")
    assert ("P", "M", "s") in early(text)


LOOPTREE = f"""abstract looptree on {SDPA} for h200
decisions view=accelforge
HBM Q K V O
temporal h/1 l/32
temporal s/8
L2 S P
sequential
  branch
    temporal e/16
    spatial s/1 e/1 on SM
    compute S on mma
  branch
    temporal l/1 s/1
    compute M P D on simd
  branch
    temporal f/8 s/1
    compute A O on mma
"""


def test_a_loop_above_a_handed_tensor_is_shared_under_a_view() -> None:
    assert ("P", "M", "s") in early(LOOPTREE)


def test_a_loop_below_what_is_handed_over_is_each_leafs_own_under_a_view() -> None:
    """Scores and weights wait whole: nobody reads a row before it is complete."""
    whole = LOOPTREE.replace("temporal s/8\nL2 S P\n", "L2 S P\ntemporal s/8\n")
    assert early(whole) == set()
    assert ("P", "M", "s") in early(whole.replace(" view=accelforge", "")), "where a loop holds for its whole block"


def test_a_loop_of_one_trip_is_none() -> None:
    assert early(LOOPTREE.replace("temporal s/8", "temporal s/128")) == set()
    assert early(LOOPTREE.replace("temporal s/8", "temporal s/128").replace(" view=accelforge", "")) == set()
