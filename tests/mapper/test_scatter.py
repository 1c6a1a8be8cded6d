"""Schedules spread over the mapspace: feasible, different, and the same for the same seed."""

from __future__ import annotations

import itertools

import pytest

from theodolite.cost.model import corrected, evaluate
from theodolite.errors import TextError, UnknownName, Unsupported
from theodolite.gpus import gpu
from theodolite.mapper.scatter import at_random, check_least, in_order
from theodolite.mapper.shorthand import FAMILIES, Schedule, schedule
from theodolite.mapper.skeletons import mapping
from theodolite.workloads import workload

H200 = gpu("h200")
A, C = workload("sdpa:A"), workload("sdpa:C")


def feasible(point: Schedule) -> bool:
    return evaluate(mapping(point, C, H200), C, H200, corrected()).feasible


def first(family: str, count: int, seed: int = 0, of: object = C, **least: int) -> list[Schedule]:
    return list(itertools.islice(at_random(family, of, H200, seed, least), count))  # type: ignore[arg-type]


def test_a_grid_in_order_is_what_the_model_of_one_mapping_calls_feasible() -> None:
    """The oracle is `evaluate`, mapping by mapping, on a slice of the grid."""
    found = in_order("flash", C, H200, {"bm": 128, "bn": 128, "split": 128, "stages": 4})
    domains = {"bm": (128, 256), "bn": (128, 256), "split": (128, 256, 512), "warps": (4, 8, 2, 1), "stages": (4, 5)}
    points = [schedule("flash", dict(zip(domains, p, strict=True))) for p in itertools.product(*domains.values())]
    wanted = [p for p in points if feasible(p)]
    assert 0 < len(wanted) < len(points)
    assert found == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules_are_feasible_different_and_repeat_with_the_seed(family: str) -> None:
    found = first(family, 12)
    assert len(set(found)) == 12
    assert all(feasible(p) for p in found)
    assert found == first(family, 12)
    assert found != first(family, 12, seed=1)


def test_a_random_order_ends_with_the_whole_grid() -> None:
    least = {"bm": 128, "bn": 64, "split": 256}
    assert set(at_random("flash", C, H200, 3, least)) == set(in_order("flash", C, H200, least))


def test_workloads_share_schedules() -> None:
    """Both have room for nearly all of one order, which is the seed's alone."""
    mine, theirs = first("flash", 40), first("flash", 40, of=A)
    assert len(set(mine) & set(theirs)) > 25


def test_least_holds_and_is_checked() -> None:
    assert all(p.values["qk.bk"] >= 64 for p in first("pipeline", 8, **{"qk.bk": 64}))
    with pytest.raises(TextError, match=r"no bm of 512"):
        first("flash", 1, bm=512)
    with pytest.raises(UnknownName, match="no family has"):
        check_least({"bq": 1})
    with pytest.raises(Unsupported, match="draw from it"):
        in_order("pipeline", C, H200, {})
