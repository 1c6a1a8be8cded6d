"""The text form: what is printed parses back equal, and what cannot be read is refused with its line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, realised, schedules, workloads
from theodolite.errors import TextError
from theodolite.ir.realise import realise
from theodolite.ir.text import parse, show
from theodolite.ir.tree import (
    Compute,
    HostLoop,
    Kernel,
    Key,
    Loop,
    Part,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    Workspace,
)
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import Schedule
from theodolite.mapper.skeletons import mapping, mapping_of

EXAMPLE = {"flash": FLASH, "pipeline": PIPELINE}


@pytest.mark.parametrize("family", EXAMPLE)
def test_the_worked_example_s_trees(family: str, golden: Callable[[str, str], None]) -> None:
    abstract = mapping_of(EXAMPLE[family], CASE_A, H200)
    golden(f"{family}.abstract.tree", show(abstract))
    golden(f"{family}.realised.tree", show(realise(abstract, CASE_A)))


@given(schedules(), workloads())
def test_what_is_printed_parses_back_equal(chosen: Schedule, load: Workload) -> None:
    abstract = mapping(chosen, load, H200)
    for tree in (abstract, realised(chosen, load)):
        again = parse(show(tree))
        assert again == tree
        assert again.decisions == tree.decisions
        assert show(again) == show(tree)


def test_nodes_that_no_schedule_makes_round_trip_too() -> None:
    kernel = Kernel("k", Key("warps"), 3, ("l", "h"), "tma", (Spatial((Loop("l", 16),), "grid"),))
    body = (
        Storage("HBM", ("Q",)),
        Workspace("W", "fp32", (3, "b", "l"), "partial", "A", "s"),
        Workspace("P_w", "fp16", ("b", "l"), "holds", "P / D"),
        HostLoop(Loop("h", Part("h", "n")), (kernel,)),
        Sequential(((Storage("L2", ("S",)), Temporal((Loop("s", 1),))), (Sequential(((Compute(("S",), "mma"),),)),))),
    )
    tree = Tree("realised", "odd", "sdpa:A", "h200", {"n": 2, "warps": 4, "gridfold": "no"}, body)
    assert parse(show(tree)) == tree


HEAD = "abstract t on sdpa:A for h200\n"
GOOD = HEAD + "decisions bm=64\nHBM Q\nspatial l/bm on SM\ncompute S on mma\n"
REALISED = "realised t on sdpa:A for h200\ndecisions\n"
MALFORMED = {
    "nothing at all": ("", 1, "ends too early"),
    "a head of another kind": ("virtual t on w for g\ndecisions\n", 1, "a tree begins with"),
    "a head without a GPU": ("abstract t on sdpa:A\ndecisions\n", 1, "a tree begins with"),
    "a head alone": (HEAD, 1, "ends too early"),
    "no decisions line": (HEAD + "HBM Q\n", 2, "the second line reads"),
    "a decision without a value": (HEAD + "decisions bm=\n", 2, "KEY=VALUE"),
    "a decision without a key": (HEAD + "decisions =4\n", 2, "KEY=VALUE"),
    "a decision twice": (HEAD + "decisions bm=1 bm=2\n", 2, "given twice"),
    "a refinement without a reason": (REALISED + "refinement gridfold\n", 3, "refinement RULE: REASON"),
    "an unknown node": (GOOD + "teleport l/1\n", 6, "no node reads like this"),
    "an unknown level": (GOOD + "L3 Q\n", 6, "no node reads like this"),
    "storage of nothing": (GOOD + "SMEM\n", 6, "no node reads like this"),
    "a loop without a size": (GOOD + "temporal l\n", 6, "RANK/SIZE"),
    "a loop of size zero": (GOOD + "temporal l/0\n", 6, "a size is"),
    "a negative size": (GOOD + "temporal l/-4\n", 6, "a size is"),
    "half a slice": (GOOD + "temporal l/(l/bm\n", 6, "a size is"),
    "an empty size": (GOOD + "temporal l/\n", 6, "a size is"),
    "temporal of nothing": (GOOD + "temporal\n", 6, "no node reads like this"),
    "spatial on nothing": (GOOD + "spatial l/1\n", 6, "no node reads like this"),
    "an unknown unit": (GOOD + "compute S on tpu\n", 6, "no node reads like this"),
    "compute of nothing": (GOOD + "compute on mma\n", 6, "no node reads like this"),
    "interleaved without carries": (GOOD + "interleaved over s\n", 6, "no node reads like this"),
    "a sequential without branches": (GOOD + "sequential\n", 6, "holds branches"),
    "a sequential of nodes": (GOOD + "sequential\n  HBM Q\n", 6, "holds branches"),
    "a branch without a sequential": (GOOD + "branch\n", 6, "no node reads like this"),
    "indentation under a leaf": (GOOD + "  compute M on simd\n", 6, "bad indentation"),
    "three spaces": (GOOD + "interleaved over s carries M\n   RF S\n", 7, "bad indentation"),
    "a tab": (GOOD + "interleaved over s carries M\n\tRF S\n", 7, "bad indentation"),
    "a gap in the middle": (GOOD.replace("HBM Q\n", "HBM Q\n\n"), 4, "no node reads like this"),
    "a workspace with spaces": (REALISED + "workspace W fp32 [2, b] holds A\n", 3, "extents read"),
    "a workspace without brackets": (REALISED + "workspace W fp32 2,b holds A\n", 3, "extents read"),
    "a workspace of nothing": (REALISED + "workspace W fp32 [b] holds\n", 3, "partial of TENSOR"),
    "a partial over nothing": (REALISED + "workspace W fp32 [b] partial of A\n", 3, "partial of TENSOR"),
    "a kernel without stages": (REALISED + "kernel k warps=4 order=l loads=pointer\n", 3, "a kernel reads"),
    "a kernel with unknown loads": (REALISED + "kernel k warps=4 stages=1 order=l loads=mail\n", 3, "a kernel reads"),
    "a kernel of no warps": (REALISED + "kernel k warps=0 stages=1 order=l loads=tma\n", 3, "a size is"),
    "a kernel of a slice of warps": (REALISED + "kernel k warps=(l/w) stages=1 order=l loads=tma\n", 3, "a number or"),
    "a host loop of two": (REALISED + "host h/1 b/1\n", 3, "no node reads like this"),
}  # fmt: skip


def test_the_text_that_the_malformed_ones_vary_is_good() -> None:
    assert show(parse(GOOD)) == GOOD
    assert parse(REALISED).body == ()


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_text_names_its_line(what: str) -> None:
    text, line, message = MALFORMED[what]
    with pytest.raises(TextError, match=rf"^the file, line {line}: ") as caught:
        parse(text, "the file")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
