"""A grid scored whole says of each point what the point's own mapping costs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.drawn import CASE_A, H200, schedules, workloads
from theodolite.cost.model import Model, baseline, corrected, evaluate, model
from theodolite.ir.check import check
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Spatial, Temporal, walk
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule
from theodolite.mapper.skeletons import GRIDS, fill, fills, mapping, schedule_of, skeleton
from theodolite.mapper.space import Grid, smallest_sums, variants
from theodolite.workloads import sdpa, workload

GRIDS_BY_MODEL = {
    (name, load): [Grid(v, workload(load), H200, model(name)) for f in FAMILIES for v in variants(f)]
    for name in ("baseline", "corrected", "splitk,launch")
    for load in ("sdpa:A", "sdpa:b=2,h=3,l=100,s=384,d=80,causal")
}


def test_variants_are_the_family_s_grid_each_point_once() -> None:
    for family, domains in FAMILIES.items():
        whole = math.prod(len(d.values) for d in domains)
        parts = list(variants(family))
        assert sum(v.size for v in parts) == whole
        combinations = {tuple(vals for k, vals in v.domains.items() if k.endswith("split")) for v in parts}
        assert len(combinations) == len(parts)
        assert all((1 in split) == (split == (1,)) for chosen in combinations for split in chosen)


@given(st.data())
def test_a_grid_says_what_its_points_cost(data: st.DataObject) -> None:
    """Seconds to the last bits (kernels may be added in another order), feasibility exactly."""
    key = data.draw(st.sampled_from(sorted(GRIDS_BY_MODEL)))
    grid = data.draw(st.sampled_from(GRIDS_BY_MODEL[key]))
    index = tuple(data.draw(st.integers(0, len(v) - 1)) for v in grid.variant.domains.values())
    tree = mapping(grid.variant.at(index), grid.workload, H200)
    cost = evaluate(tree, grid.workload, H200, grid.model)
    assert (grid.why_not(index) is None) == cost.feasible
    assert grid.expressible == cost.expressible
    if cost.feasible:
        assert grid.seconds(index) == pytest.approx(cost.seconds, rel=1e-14)


@settings(max_examples=15)
@given(workloads(longest=300, widest=130), st.data())
def test_the_best_of_a_grid_is_the_least_of_its_points(load: Workload, data: st.DataObject) -> None:
    """Flash's whole grid (1,000 points a variant) by plain search."""
    some: Model = data.draw(st.sampled_from([corrected(), model("splitk"), model("launch,waves")]))
    variant = data.draw(st.sampled_from(list(variants("flash"))))
    grid = Grid(variant, load, H200, some)
    shape = tuple(len(v) for v in variant.domains.values())
    seconds = np.broadcast_to(sum(np.asarray(s) for s in grid.score.steps_s), shape)
    allowed = np.broadcast_to(grid.score.feasible, shape)
    by_tree: dict[tuple[int, ...], float] = {}
    for index in zip(*np.nonzero(allowed), strict=True):
        tree = tuple(int(i) for i in index[:-2])
        by_tree[tree] = min(by_tree.get(tree, math.inf), float(seconds[index]))
    best = grid.best(6)
    assert [s for s, _ in best] == pytest.approx(sorted(by_tree.values())[:6], rel=1e-14)
    for took, index in best:
        assert took == pytest.approx(by_tree[index[:-2]], rel=1e-14)
    assert len({index[:-2] for _, index in best}) == len(best)


# ---- the fill rule -----------------------------------------------------------------------------------------------
@given(schedules(), workloads(longest=900), st.integers(1, 200))
def test_the_fill_rule_by_hand(chosen: Schedule, load: Workload, sms: int) -> None:
    """From the innermost rank outward, each takes the largest divisor of its trips that there is room for."""
    values = chosen.values
    for label, grid in GRIDS[chosen.family].items():
        room, expected = sms, {}
        for loop in reversed(grid):
            extent = load.ranks[loop.rank]
            if hasattr(loop.tile, "key"):
                trips = values[loop.tile.key]
                tile = -(-extent // trips)
            else:
                tile = loop.tile if isinstance(loop.tile, int) else values[loop.tile.name]
                trips = -(-extent // tile)
            units = max(n for n in range(1, room + 1) if trips % n == 0)
            expected[f"fill.{label}.{loop.rank}"] = tile * units
            room //= units
        assert fill(label, grid, load, values, sms) == expected


@given(schedules(), workloads(longest=900))
def test_filled_trees_fit_and_name_their_schedule(chosen: Schedule, load: Workload) -> None:
    tree = mapping(chosen, load, H200)
    check(tree, load, H200.sms)
    assert schedule_of(tree, load, H200) == chosen
    assert schedule_of(parse(show(tree)), load, H200) == chosen
    if chosen.values["warps"] == 4:
        moved = parse(show(tree).replace("HBM Q K V O", "HBM K Q V O"))
        assert schedule_of(moved, load, H200) is None


def test_the_skeleton_s_loops_are_the_mapping_s() -> None:
    """One-trip loops that a mapping leaves out are all that the skeleton's loops have besides."""
    load = sdpa(b=2, h=12, l=512, s=512, d=64)
    for family, domains in FAMILIES.items():
        values = {d.key: d.values[1] for d in domains}
        full = skeleton(family, load, H200, values)
        assert {k: v for k, v in full.decisions.items() if k.startswith("fill.")} == fills(family, load, values, 132)
        kinds = [type(n) for n in walk(full.body) if isinstance(n, (Temporal, Spatial))]
        assert kinds.count(Spatial) == len(GRIDS[family])


# ---- sums --------------------------------------------------------------------------------------------------------
@given(
    st.lists(st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=5).map(sorted), min_size=1, max_size=4)
)
def test_smallest_sums_are_the_sorted_product(lists: list[list[float]]) -> None:
    given_lists = [[(s, {n: i}) for i, s in enumerate(some)] for n, some in enumerate(lists)]
    got = list(smallest_sums(given_lists))
    picks = itertools.product(*(range(len(some)) for some in lists))
    expected = sorted((_sum(lists, at), at) for at in picks)
    assert [s for s, _ in got] == [s for s, _ in expected]
    chosen = [tuple(part[n] for n, part in enumerate(parts)) for _, parts in got]
    assert sorted(chosen) == sorted(at for _, at in expected)
    assert all(_sum(lists, at) == s for (s, _), at in zip(got, chosen, strict=True))


def _sum(lists: list[list[float]], at: tuple[int, ...]) -> float:
    total = 0.0
    for some, i in zip(lists, at, strict=True):
        total += some[i]
    return total


def test_smallest_sums_break_ties_by_position() -> None:
    lists = [[(1.0, {0: 0}), (1.0, {0: 1})], [(2.0, {1: 0}), (2.0, {1: 1})]]
    assert [tuple(p[n] for n, p in enumerate(parts)) for _, parts in smallest_sums(lists)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_baseline_has_no_words_for_flash() -> None:
    grids = [Grid(v, CASE_A, H200, baseline()) for v in variants("flash")]
    assert not any(g.expressible for g in grids)
    assert all(g.best(3) == [] for g in grids)
