from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite.cost.buffet import EinsumProfile, count, feasible, seconds, why_not
from theodolite.gpus import gpu
from theodolite.ir.tree import Block, Compute, Key, Loop, Node, Part, Sequential, Size, Spatial, Storage, Temporal
from theodolite.workloads import sdpa, workload

H200 = gpu("h200").accelforge()
CASE_A = workload("sdpa:A")
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "buffet_expected.json").read_text())["cases"]
WORKED = {"qk.bm": 64, "qk.bn": 32, "qk.bk": 32, "qk.split": 2, "sm.rows": 4, "av.bm": 64, "av.bs": 32, "av.split": 2}


def loops(**sizes: Size) -> tuple[Loop, ...]:
    return tuple(Loop(rank, size) for rank, size in sizes.items())


def pipeline(handoff: Any) -> Block:
    """The worked example's three branches, for case A."""
    scores = (
        Temporal(loops(b=1)),
        Spatial(loops(h=1, l=Key("qk.bm"), s=Key("qk.bn"), e=Part("e", "qk.split")), "SM"),
        Storage("RF", ("S",)),
        Temporal(loops(e=Key("qk.bk"))),
        Storage("SMEM", ("Q", "K")),
        Temporal(loops(l=1, s=1, e=1)),
        Compute(("S",), "mma"),
    )
    weights = (
        Temporal(loops(b=1, h=4)),
        Spatial(loops(h=1, l=Key("sm.rows")), "SM"),
        Storage("RF", ("S", "P", "M", "D")),
        Temporal(loops(l=1, s=1)),
        Compute(("M", "P", "D"), "simd"),
    )
    out = (
        Temporal(loops(b=1)),
        Spatial(loops(h=1, l=Key("av.bm"), s=Part("s", "av.split")), "SM"),
        Storage("RF", ("A",)),
        Temporal(loops(s=Key("av.bs"))),
        Storage("SMEM", ("P", "V")),
        Temporal(loops(l=1, f=1, s=1)),
        Compute(("A", "O"), "mma"),
    )
    return (Storage("HBM", ("Q", "K", "V", "O")), Storage(handoff, ("S", "P")), Sequential((scores, weights, out)))


def counted(body: Block, decisions: Mapping[str, Any], load: Any = CASE_A) -> tuple[EinsumProfile, ...]:
    return count(body, load, load.view("accelforge"), H200, decisions)


def moved(profile: EinsumProfile, memory: str, which: str) -> dict[tuple[str, str], float]:
    """16-bit values that a memory moves, zeros left out."""
    return {
        (a.tensor, a.kind): getattr(a, which) / 16 for a in profile.actions if a.memory == memory and a.total_bits != 0
    }


# The worked example, by hand: MainMemory values, SharedMemory values a unit, units, MACs a unit, us by component
TABLE: tuple[Any, ...] = (
    (
        {("Q", "read"): 65536, ("K", "read"): 65536, ("S", "write"): 131072},
        {("Q", "read"): 65536, ("Q", "write"): 2048, ("K", "read"): 65536, ("K", "write"): 1024}
        | {("S", "read"): 65536, ("S", "write"): 65536},
        128,
        65536,
        {"MainMemory": 0.13107, "SharedMemory": 2.36125, "TensorCore": 0.01823},
        10240,
    ),
    (
        {("S", "read"): 131072, ("P", "write"): 131072},
        {("S", "read"): 1024, ("S", "write"): 1024, ("P", "read"): 1024, ("P", "write"): 1024},
        128,
        1024,
        {"MainMemory": 0.13107, "SharedMemory": 0.03647, "ScalarUnit": 0.0},
        1026,
    ),
    (
        {("P", "read"): 131072, ("V", "read"): 65536, ("O", "write"): 65536},
        {("P", "read"): 262144, ("P", "write"): 4096, ("V", "read"): 262144, ("V", "write"): 4096}
        | {("O", "read"): 262144, ("O", "write"): 262144},
        32,
        262144,
        {"MainMemory": 0.13107, "SharedMemory": 9.40855, "TensorCore": 0.07293},
        16384,
    ),
)


@pytest.mark.parametrize("row", range(3))
def test_the_worked_example(row: int) -> None:
    main, shared, units, macs, latencies_us, shared_bytes = TABLE[row]
    profile = counted(pipeline("HBM"), WORKED)[row]
    assert moved(profile, "MainMemory", "total_bits") == main
    assert moved(profile, "SharedMemory", "unit_bits") == shared
    assert moved(profile, "SharedMemory", "total_bits") == {k: v * units for k, v in shared.items()}
    assert (profile.units, profile.macs_per_unit) == (units, macs)
    assert {k: v * 1e6 for k, v in profile.latencies_s.items()} == pytest.approx(latencies_us, abs=6e-6)
    assert profile.latency_s == max(profile.latencies_s.values())
    assert profile.peak_bits["SharedMemory"] == 8 * shared_bytes


# The last three digits come from AccelForge's own evaluate_mapping: float32, hence the tolerance
@pytest.mark.parametrize(
    ("handoff", "change", "us", "rel"),
    [
        ("HBM", {}, 11.9008728, 1e-6),
        ("L2", {}, 11.8222297, 1e-6),
        ("HBM", {"av.split": 4}, 7.1966, 1e-5),
    ],
)
def test_the_worked_example_in_seconds(handoff: str, change: dict[str, int], us: float, rel: float) -> None:
    profiles = counted(pipeline(handoff), {**WORKED, **change})
    assert seconds(profiles) * 1e6 == pytest.approx(us, rel=rel)
    assert why_not(profiles) == {}


def block(nodes: list[Any]) -> Block:
    """The nodes of a recorded tree."""
    return tuple(_node(*n) for n in nodes)


def _node(kind: str, word: str | None, rest: Any) -> Node:
    match kind:
        case "storage":
            return Storage(word, tuple(rest))  # type: ignore[arg-type]
        case "temporal":
            return Temporal(tuple(Loop(*x) for x in rest))
        case "spatial":
            return Spatial(tuple(Loop(*x) for x in rest), word or "")
        case "compute":
            return Compute(tuple(rest), word)  # type: ignore[arg-type]
        case _:
            return Sequential(tuple(block(b) for b in rest))


@pytest.mark.parametrize("case", RECORDED, ids=lambda c: c["kind"])
def test_the_recorded_trees(case: Any) -> None:
    """Numbers of an independent implementation and of AccelForge itself: the file says which."""
    profiles = counted(block(case["tree"]), {}, sdpa(**case["sizes"]))
    assert [p.einsum for p in profiles] == [e["einsum"] for e in case["expected"]]
    for profile, expected in zip(profiles, case["expected"], strict=True):
        got = [[a.memory, a.tensor, a.kind, a.total_bits, a.unit_bits] for a in profile.actions if a.total_bits]
        assert sorted(got) == sorted(expected["actions"])
        assert sorted([r.memory, r.tensor, r.bits] for r in profile.reserved) == expected["reserved"]
        assert {k: float(v) for k, v in profile.latencies_s.items()} == pytest.approx(
            expected["latencies_s"], rel=1e-12
        )
        assert profile.latency_s == pytest.approx(expected["latency_s"], rel=1e-12)
    memories = {m for p in profiles for m in p.peak_bits}
    assert {m: max(p.peak_bits.get(m, 0) for p in profiles) for m in memories} == case["peak_bits"]


def with_one_trip_loops(nodes: Block, sizes: Mapping[str, int], draw: Any) -> Block:
    """The same tree with loops of one trip, temporal and spatial, put in wherever `draw` says."""
    left, out = dict(sizes), []
    for node in nodes:
        if draw(st.booleans()):
            loop = Loop(rank := draw(st.sampled_from(sorted(left))), left[rank])
            out.append(Temporal((loop,)) if draw(st.booleans()) else Spatial((loop,), "SM"))
        if isinstance(node, Temporal | Spatial):
            left |= {x.rank: x.tile for x in node.loops}  # type: ignore[misc]
        if isinstance(node, Sequential):
            node = Sequential(tuple(with_one_trip_loops(b, left, draw) for b in node.branches))
        out.append(node)
    return tuple(out)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_loop_of_one_trip_is_no_loop(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(RECORDED))
    load, tree = sdpa(**case["sizes"]), block(case["tree"])
    plain = counted(tree, {}, load)
    padded = counted(with_one_trip_loops(tree, load.ranks, data.draw), {}, load)
    for a, b in zip(plain, padded, strict=True):
        assert flat(a) == flat(b)


def flat(profile: EinsumProfile, at: Any = ()) -> dict[Any, float]:
    """Every number of a profile by what it is, at one point of the grid."""
    pick = lambda v: float(np.broadcast_to(v, np.broadcast_shapes(np.shape(v), (1,) * len(at)))[clipped(v, at)])  # noqa: E731
    return (
        {(a.memory, a.tensor, a.kind, "total"): pick(a.total_bits) for a in profile.actions}
        | {(a.memory, a.tensor, a.kind, "unit"): pick(a.unit_bits) for a in profile.actions}
        | {(r.memory, r.tensor): pick(r.bits) for r in profile.reserved}
        | {("peak", m): pick(v) for m, v in profile.peak_bits.items()}
        | {("latency", m): pick(v) for m, v in profile.latencies_s.items()}
        | {"units": pick(profile.units), "macs": pick(profile.macs_per_unit), "latency": pick(profile.latency_s)}
        | {"feasible": pick(profile.feasible)}
    )


def clipped(value: Any, at: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a grid point in a value that may lack axes (or have them at length 1)."""
    shape = (1,) * (len(at) - np.ndim(value)) + np.shape(value)
    return tuple(i if n > 1 else 0 for i, n in zip(at, shape, strict=True))


# Values that divide, that make one-trip loops (128, 64, 1) and that do not fit (48, 3, 256)
DOMAINS = {
    "qk.bm": (16, 48, 64, 128),
    "qk.bn": (32, 128, 256),
    "qk.bk": (8, 32, 64),
    "qk.split": (1, 2, 3),
    "sm.rows": (1, 4, 128),
    "av.bm": (1, 64, 128),
    "av.bs": (1, 32, 64, 128),
    "av.split": (1, 2, 3, 4),
}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_grid_counts_as_its_points_one_by_one(data: st.DataObject) -> None:
    keys = tuple(DOMAINS)
    values = {k: data.draw(st.lists(st.sampled_from(v), min_size=1, max_size=3), k) for k, v in DOMAINS.items()}
    mesh = dict(zip(keys, np.ix_(*(np.array(values[k]) for k in keys)), strict=True))
    grid = counted(pipeline("L2"), mesh)
    at = tuple(data.draw(st.integers(0, len(values[k]) - 1), k) for k in keys)
    point = counted(pipeline("L2"), {k: values[k][i] for k, i in zip(keys, at, strict=True)})
    for one, many in zip(point, grid, strict=True):
        assert flat(many, at) == flat(one, (0,) * len(keys))
    total = np.broadcast_to(seconds(grid), tuple(len(values[k]) for k in keys))
    assert total[at] == seconds(point)


def test_one_trip_is_decided_element_by_element() -> None:
    """O's reservation passes `s/bs` only where that is no loop: l is O's own rank, s is not."""
    body = (
        Storage("HBM", ("Q", "K", "V", "O", "S", "P")),
        Sequential(
            (
                (Temporal(loops(b=1, h=1, l=1, s=1, e=1)), Compute(("S",), "mma")),
                (Temporal(loops(b=1, h=1, l=1, s=1)), Compute(("M", "P", "D"), "simd")),
                (
                    Temporal(loops(b=1, h=1, f=1)),
                    Storage("SMEM", ("O",)),
                    Temporal((*loops(s=Key("bs"), l=1), Loop("s", 1))),
                    Compute(("A", "O"), "mma"),
                ),
            )
        ),
    )
    bits = counted(body, {"bs": np.array([32, 128])})[2].reserved[-1].bits
    assert bits.tolist() == [128 * 16, 16]


def test_quantities_have_only_the_axes_that_they_depend_on() -> None:
    mesh = dict(zip(DOMAINS, np.ix_(*(np.array(v) for v in DOMAINS.values())), strict=True))
    scores, weights, out = counted(pipeline("HBM"), mesh)
    sizes = dict(zip(DOMAINS, (len(v) for v in DOMAINS.values()), strict=True))
    assert np.size(scores.latency_s) == math.prod(n for k, n in sizes.items() if k.startswith("qk"))
    assert np.size(weights.latency_s) == sizes["sm.rows"]
    assert np.size(out.latency_s) == math.prod(n for k, n in sizes.items() if k.startswith("av"))
    assert np.shape(seconds((scores, weights, out))) == tuple(sizes.values())
    assert feasible((scores, weights, out)).any()
    assert not feasible((scores, weights, out)).all()
