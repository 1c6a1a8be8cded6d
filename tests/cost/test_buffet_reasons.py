"""What the count refuses, and what waits where across a Sequential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from theodolite.cost.buffet import count, feasible, seconds, why_not
from theodolite.cost.buffet_path import inexpressible
from theodolite.errors import Infeasible, TheodoliteError, UnknownName
from theodolite.gpus import gpu
from theodolite.ir.tree import (
    Block,
    Compute,
    Interleaved,
    Kernel,
    Key,
    Loop,
    Part,
    Sequential,
    Spatial,
    Storage,
    Temporal,
)
from theodolite.ir.workload import Access, Einsum, Gather, View, ViewEinsum
from theodolite.workloads import sdpa

H200 = gpu("h200").accelforge()
SMALL = sdpa(b=1, h=2, l=8, s=16, d=4)
VIEW = SMALL.view("accelforge")


def t(*sizes: Any) -> Temporal:
    return Temporal(tuple(Loop(r, n) for r, n in zip(sizes[::2], sizes[1::2], strict=True)))


def sm(*sizes: Any) -> Spatial:
    return Spatial(t(*sizes).loops, "SM")


HBM = Storage("HBM", ("Q", "K", "V", "O", "S", "P"))
SCORES: Block = (t("b", 1, "h", 1, "l", 1, "s", 1, "e", 1), Compute(("S",), "mma"))
WEIGHTS: Block = (t("b", 1, "h", 1, "l", 1, "s", 1), Compute(("M", "P", "D"), "simd"))
OUT: Block = (t("b", 1, "h", 1, "l", 1, "s", 1, "f", 1), Compute(("A", "O"), "mma"))


def tree(scores: Block = SCORES, weights: Block = WEIGHTS, out: Block = OUT, above: Block = (HBM,)) -> Block:
    return (*above, Sequential((scores, weights, out)))


def reasons(body: Block, decisions: Mapping[str, Any] | None = None, load: Any = SMALL) -> dict[str, Any]:
    profiles = count(body, load, VIEW, H200, decisions or {})
    found = why_not(profiles)
    assert bool(found) == (not np.all(feasible(profiles)))
    assert np.all(np.isinf(seconds(profiles)) == ~np.asarray(feasible(profiles)))
    return found


def test_a_plain_tree_has_no_reason_against_it() -> None:
    assert reasons(tree()) == {}
    assert inexpressible(tree(), SMALL, VIEW, H200) is None


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ((t("l", 3, "l", 1), *SCORES), ["tile 3 of l does not divide 8"]),
        ((t("l", 16), *SCORES), ["tile 16 of l does not divide 8"]),
        ((t("s", Part("s", "n")), *SCORES), ["tile 6 of s does not divide 16", "split 3 of s does not divide 16"]),
        (
            (t("b", 1, "h", 1, "l", 2, "s", 1, "e", 1), SCORES[1]),
            ["Scores: l ends at 2; AccelForge wants loops down to 1"],
        ),
        ((t("f", 2), *SCORES), ["a loop over f: Scores has no such rank"]),
        ((sm("l", 1, "s", 1, "h", 1), *SCORES), ["Scores: spatial product 256 over the fanout of 132 SM"]),
        (
            (Storage("SMEM", ("K",)), t("s", 8), sm("s", 1), *SCORES),
            ["the spatial loop over s would cross a temporal one at K"],
        ),
    ],
)
def test_sizes_that_accelforge_refuses(scores: Block, said: list[str]) -> None:
    assert sorted(reasons(tree(scores), {"n": 3})) == sorted(said)


def test_a_tile_of_the_published_example() -> None:
    load = sdpa(b=1, h=1, l=100, s=16, d=4)
    assert "tile 64 of l does not divide 100" in reasons(tree((t("l", 64), *SCORES)), load=load)


def test_a_split_must_divide_even_where_its_slice_does() -> None:
    """ceil(9 / 4) = 3 divides 9, in three slices and not in four."""
    load = sdpa(b=1, h=1, l=8, s=9, d=4)
    assert list(reasons(tree((t("s", Part("s", "n")), *SCORES)), {"n": 4}, load)) == ["split 4 of s does not divide 9"]


def test_reasons_of_a_grid_say_where_they_hold() -> None:
    body = tree((t("l", Key("bm")), *SCORES))
    found = reasons(body, {"bm": np.array([[1], [3], [8], [64]])})
    assert {k: v.ravel().tolist() for k, v in found.items()} == {
        "tile bm of l does not divide 8": [False, True, False, True]
    }


def test_crossing_loops_are_refused_only_where_both_are_loops() -> None:
    body = tree((Storage("SMEM", ("K",)), t("s", Key("n")), sm("s", Key("m")), *SCORES))
    found = reasons(body, {"n": np.array([[16], [8]]), "m": np.array([[1, 8, 4]])})
    assert {k: np.broadcast_to(v, (2, 3)).tolist() for k, v in found.items()} == {
        "the spatial loop over s would cross a temporal one at K": [[False, False, False], [True, False, True]]
    }


def test_shared_memory_has_a_size() -> None:
    """233,472 bytes hold 116,736 values: 228 x 512 exactly, and not one more row."""
    load = sdpa(b=1, h=1, l=8, s=512, d=229)
    held = (t("b", 1), Storage("SMEM", ("K",)), *SCORES)
    assert list(reasons(tree(held), load=load)) == ["Scores: SharedMemory occupancy of 234,496 over 233,472 bytes"]
    assert reasons(tree(held), load=sdpa(b=1, h=1, l=8, s=512, d=228)) == {}


def test_the_l2_has_a_size_too() -> None:
    load = sdpa(b=8, h=32, l=512, s=512, d=4)
    l2 = (Storage("HBM", ("Q", "K", "V", "O", "P")), Storage("L2", ("S",)))
    assert list(reasons(tree(above=l2), load=load)) == [
        f"{e}: L2 occupancy of 134,217,728 over 62,914,560 bytes" for e in ("Scores", "Weights")
    ]


def flash() -> Block:
    step = (
        t("s", 4),
        Storage("SMEM", ("K", "V")),
        Storage("RF", ("S", "P")),
        Compute(("S",), "mma"),
        Compute(("M", "P", "D"), "simd"),
        Compute(("A",), "mma"),
    )
    return (
        Storage("HBM", ("Q", "K", "V", "O")),
        t("b", 1),
        sm("h", 1, "l", 4),
        Storage("RF", ("M", "D", "A")),
        Interleaved("s", ("M", "D", "A"), step),
        Compute(("O",), "simd"),
    )


QKV = ("Q", "K", "V", "O")
INEXPRESSIBLE = {
    "interleaved over s: no counterpart in AccelForge": flash(),
    "Kernel belongs to a realised tree: count the mapping that it came from": (
        Kernel("qk", 4, 2, ("l",), "pointer", SCORES),
    ),
    "spatial on warp: no counterpart in AccelForge's hierarchy; use SM": tree(
        (Spatial((Loop("l", 4),), "warp"), *SCORES)
    ),
    "K waits nowhere above Scores: give it a storage": tree(above=(Storage("HBM", ("Q", "V", "O", "S", "P")),)),
    "K starts at SharedMemory: it enters or leaves at MainMemory": tree(
        above=(Storage("HBM", ("Q", "V", "O", "S", "P")), Storage("SMEM", ("K",)))
    ),
    "S is handed over nowhere: store it above the steps that share it": tree(
        (Storage("L2", ("S",)), *SCORES), (Storage("L2", ("S",)), *WEIGHTS), above=(Storage("HBM", (*QKV, "P")),)
    ),
    "Weights must compute M P D, each once, in one leaf": tree(weights=(WEIGHTS[0], Compute(("M", "P"), "simd"))),
    "Weights is computed in two places: AccelForge has one leaf an Einsum": tree(
        weights=(Sequential(((WEIGHTS[0], Compute(("M",), "simd")), (WEIGHTS[0], Compute(("P", "D"), "simd")))),)
    ),
    "compute S M: AccelForge has one Einsum a leaf, not Scores Weights": tree((SCORES[0], Compute(("S", "M"), "mma"))),
    "Scores on ScalarUnit: it takes Einsums of 2 tensors, not 3": tree((SCORES[0], Compute(("S",), "simd"))),
    "K waits at L2 below SharedMemory: storages of a tensor go inward": tree(
        (Storage("SMEM", ("K",)), Storage("L2", ("K",)), *SCORES)
    ),
    "a loop over bh: AccelForge loops over one rank at a time; write one loop a rank": tree((t("bh", 1), *SCORES)),
}


@pytest.mark.parametrize("said", INEXPRESSIBLE)
def test_what_accelforge_cannot_say(said: str) -> None:
    with pytest.raises(Infeasible) as error:
        count(INEXPRESSIBLE[said], SMALL, VIEW, H200, {})
    assert str(error.value) == said
    assert inexpressible(INEXPRESSIBLE[said], SMALL, VIEW, H200) == said


def test_a_gather_is_not_counted_as_a_plain_read() -> None:
    scores = SMALL.einsum("S")
    key = Access("K", ("b", "h", Gather("idx", ("l", "s")), "e"))
    load = replace(SMALL, einsums=(replace(scores, inputs=(scores.inputs[0], key)), *SMALL.einsums[1:]))
    assert inexpressible(tree(), load, VIEW, H200) == "K is gathered through a tensor: no counterpart in AccelForge"


@pytest.mark.parametrize(
    ("body", "decisions", "kind"),
    [
        (tree((t("l", Key("bm")), *SCORES)), {}, UnknownName),
        (tree((t("l", Key("bm")), *SCORES)), {"bm": 0}, TheodoliteError),
        (tree((t("l", Key("bm")), *SCORES)), {"bm": np.array([2.5, 2.0])}, TheodoliteError),
        (tree((t("z", 1), *SCORES)), {}, UnknownName),
        (tree(above=(HBM, Storage("L2", ("X",)))), {}, UnknownName),
    ],
)
def test_what_does_not_exist_raises(body: Block, decisions: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        count(body, SMALL, VIEW, H200, decisions)


def test_registers_below_shared_memory_hold_nothing_of_their_own() -> None:
    shared = tree((t("b", 1), Storage("SMEM", ("S",)), *SCORES))
    both = tree((t("b", 1), Storage("SMEM", ("S",)), t("h", 1), Storage("RF", ("S",)), *SCORES))
    a, b = (count(body, SMALL, VIEW, H200, {})[0] for body in (shared, both))
    assert [(x.memory, x.tensor, x.kind, x.total_bits) for x in a.actions] == [
        (x.memory, x.tensor, x.kind, x.total_bits) for x in b.actions
    ]


def test_a_shared_read_and_a_spatial_reduction_are_free() -> None:
    """8 query tiles on 8 SMs read K once from HBM; 4 slices of e write one result."""
    one = count(tree((Storage("SMEM", ("Q", "K", "S")), *SCORES)), SMALL, VIEW, H200, {})[0]
    many = count(tree((sm("l", 1, "e", 1), Storage("SMEM", ("Q", "K", "S")), *SCORES)), SMALL, VIEW, H200, {})[0]
    outside = [
        {(a.tensor, a.kind): a.total_bits for a in p.actions if a.memory == "MainMemory" and a.total_bits}
        for p in (one, many)
    ]
    assert outside[0] == outside[1]
    assert many.macs_per_unit * 32 == one.macs_per_unit


def peak_values(body: Block, memory: str) -> list[float]:
    """16-bit values in a memory while each Einsum runs."""
    return [float(p.peak_bits.get(memory, 0.0)) / 16 for p in count(body, SMALL, VIEW, H200, {})]


def test_what_waits_outside_a_shared_loop_stays_while_the_others_run() -> None:
    """Under a shared loop over l, V and the handoffs' tiles of 2 rows stay put; K, inside it, does not."""
    above = (Storage("HBM", QKV), Storage("L2", ("V",)), t("l", 2), Storage("L2", ("S", "P")))
    body = tree((Storage("L2", ("K",)), *SCORES), above=above)
    v, handoff = 2 * 16 * 4, 2 * 2 * 16  # the loop over l does not touch V, so V's reservation stays above it
    k = 16 * 4  # lowered through its own rank h; stopped by l
    assert peak_values(body, "L2") == [v + k + handoff, v + 2 * handoff, v + handoff]


def test_a_shared_loop_of_one_trip_keeps_nothing() -> None:
    above = (Storage("HBM", QKV), Storage("L2", ("V",)), t("l", Key("bl")), Storage("L2", ("S", "P")))
    profiles = count(tree(above=above), SMALL, VIEW, H200, {"bl": np.array([2, 8])})
    values = profiles[0].peak_bits["L2"] / 16
    assert values.tolist() == [2 * 16 * 4 + 2 * 2 * 16, 2 * 8 * 16]


def test_without_a_shared_loop_each_einsum_frees_its_own() -> None:
    above = (Storage("HBM", QKV), Storage("L2", ("S", "P")), Storage("L2", ("V",)))
    handoff, v = 2 * 8 * 16, 16 * 4  # V is lowered through its own rank h; stopped by l
    assert peak_values(tree(above=above), "L2") == [handoff, 2 * handoff, handoff + v]


def test_a_handoff_is_kept_past_the_einsums_that_do_not_touch_it() -> None:
    """S = Q K^T; A = P V with P an input; then M = copy of S: S waits in the L2 while A is made."""
    at = {x.name: Access(x.name, x.ranks) for x in SMALL.tensors}
    copy = Einsum(Access("D", ("b", "h", "l", "s")), (at["S"],), "copy")
    load = replace(
        SMALL,
        tensors=tuple(replace(x, ranks=("b", "h", "l", "s")) if x.name == "D" else x for x in SMALL.tensors),
        einsums=(SMALL.einsum("S"), SMALL.einsum("A"), copy),
        inputs=("Q", "K", "V", "P"),
        outputs=("A", "D"),
    )
    view = View(
        "late",
        (
            ViewEinsum("S", ("S",), "S", ("Q", "K")),
            ViewEinsum("A", ("A",), "A", ("P", "V")),
            ViewEinsum("D", ("D",), "D", ("S",)),
        ),
    )
    branches = (SCORES, (OUT[0], Compute(("A",), "mma")), (WEIGHTS[0], Compute(("D",), "simd")))
    body = (Storage("HBM", ("Q", "K", "V", "P", "A", "D")), Storage("L2", ("S",)), Sequential(branches))
    profiles = count(body, load, view, H200, {})
    assert [p.peak_bits["L2"] for p in profiles] == [2 * 8 * 16 * 32] * 3  # A and D are fp32: 32 bits a value
