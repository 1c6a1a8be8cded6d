"""`map` against plain search over a small space, and the draw."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.ir.drawn import CASE_A, H200
from theodolite.cost.model import Model, baseline, corrected, evaluate, model
from theodolite.gpus import gpu
from theodolite.ir.check import check
from theodolite.ir.text import show
from theodolite.ir.workload import Workload
from theodolite.mapper.search import draw, map_workload
from theodolite.mapper.shorthand import FAMILIES, Domain, Schedule, schedule
from theodolite.mapper.skeletons import mapping
from theodolite.mapper.space import FREE
from theodolite.pipeline import case_seed
from theodolite.workloads import workload

SMALL = {
    "flash": {"bm": (16, 64, 256), "bn": (32, 256), "split": (1, 2), "warps": (4, 8), "stages": (2, 5)},
    "pipeline": {
        "qk.bm": (16, 64),
        "qk.bn": (64,),
        "qk.bk": (8, 32),
        "qk.split": (1, 2),
        "sm.rows": (1, 4),
        "av.bm": (64,),
        "av.bs": (4, 64),
        "av.split": (1, 2),
        "warps": (4, 1),
        "stages": (2, 5),
    },
}
LOADS = ("sdpa:A", "sdpa:b=1,h=3,l=100,s=300,d=128,causal", "sdpa:b=2,h=4,l=256,s=256,d=256")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space small enough to be searched point by point."""
    for family, domains in SMALL.items():
        monkeypatch.setitem(FAMILIES, family, tuple(Domain(k, v) for k, v in domains.items()))  # type: ignore[arg-type]


def points() -> Iterator[tuple[tuple[object, ...], Schedule]]:
    """Every schedule of the small space with its place: family, which splits are above 1, positions in the domains."""
    for n, (family, domains) in enumerate(SMALL.items()):
        for at in itertools.product(*(range(len(v)) for v in domains.values())):
            values = {k: v[i] for (k, v), i in zip(domains.items(), at, strict=True)}
            above = tuple(v > 1 for k, v in values.items() if k.endswith("split"))
            yield (n, above, at), schedule(family, values)


def by_hand(load: Workload, some: Model, top: int) -> list[tuple[float, Schedule]]:
    """The best trees, each with its best free decisions; ties by place."""
    best: dict[tuple[object, ...], tuple[float, tuple[object, ...], Schedule]] = {}
    for place, chosen in points():
        cost = evaluate(mapping(chosen, load, H200), load, H200, some)
        if cost.seconds is None:
            continue
        tree = (chosen.family, *(kv for kv in chosen.decisions if kv[0] not in FREE))
        if tree not in best or (cost.seconds, place) < best[tree][:2]:
            best[tree] = (cost.seconds, place, chosen)
    return [(s, c) for s, _, c in sorted(best.values(), key=lambda b: b[:2])[:top]]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", LOADS)
@pytest.mark.parametrize("terms", ["corrected", "splitk", "waves,fragmentation"])
def test_the_best_are_those_of_plain_search(text: str, terms: str) -> None:
    load, some = workload(text), model(terms)
    found = map_workload(load, H200, some, 12)
    expected = by_hand(load, some, 40)
    assert [m.seconds for m in found.mapped] == pytest.approx([s for s, _ in expected[:12]], rel=1e-14)
    told = {c: s for s, c in expected}
    for mapped in found.mapped:  # the very mappings too: where seconds tie, one of those that tie
        assert mapped.schedule in told
        assert mapped.seconds == pytest.approx(told[mapped.schedule], rel=1e-14)
    clear = [c for (s, c), (after, _) in itertools.pairwise(expected[:13]) if after > s * (1 + 1e-12)]
    assert set(clear) <= {m.schedule for m in found.mapped}
    assert found.skipped == ()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", LOADS)
def test_the_best_of_baseline_are_those_of_plain_search(text: str) -> None:
    """Warps and stages have no price there: the first pair that the GPU has room for, or the tree is skipped."""
    load = workload(text)
    found = map_workload(load, H200, baseline(), 12)
    ranked, without_room = [], []
    for seconds, chosen in by_hand(load, baseline(), 10_000):
        values = chosen.values
        options = itertools.product(*(SMALL[chosen.family][k] for k in FREE))
        tried = [schedule(chosen.family, {**values, **dict(zip(FREE, o, strict=True))}) for o in options]
        fitting = [t for t in tried if evaluate(mapping(t, load, H200), load, H200, corrected()).feasible]
        if fitting:
            ranked.append((seconds, fitting[0]))
        else:
            without_room.append(str(chosen))
        if len(ranked) == 12:
            break
    assert [m.seconds for m in found.mapped] == pytest.approx([s for s, _ in ranked], rel=1e-14)
    assert {m.schedule for m in found.mapped} == {c for _, c in ranked}
    assert [name for name, _ in found.skipped] == without_room
    assert found.inexpressible == {"flash": 48, "pipeline": 0}
    assert found.size == {"flash": 48, "pipeline": 256}


@pytest.mark.usefixtures("small")
def test_asking_for_all_of_them_gives_each_tree_once() -> None:
    load = workload(LOADS[1])
    found = map_workload(load, H200, corrected(), 10_000)
    assert len(found.mapped) == len(by_hand(load, corrected(), 10_000))


@pytest.mark.parametrize(
    ("some", "machine"),
    [(baseline(), "h200"), (corrected(), "h200"), (corrected(), "rtx4090"), (model("launch"), "h200")],
    ids=lambda x: getattr(x, "name", x),
)
def test_what_is_found_is_sorted_distinct_valid_and_the_same_again(some: Model, machine: str) -> None:
    load, card = workload("sdpa:b=1,h=4,l=96,s=160,d=64"), gpu(machine)
    found = map_workload(load, card, some, 8)
    assert len(found.mapped) == 8
    seconds = [m.seconds for m in found.mapped]
    assert seconds == sorted(seconds)
    trees = [show(m.tree) for m in found.mapped]
    assert len({t.replace(" ".join(t.split("\n")[1].split()[-3:]), "") for t in trees}) == 8
    for mapped in found.mapped:
        check(mapped.tree, load, card.sms)
        assert mapped.tree == mapping(mapped.schedule, load, card)
        assert mapped.cost.seconds == pytest.approx(mapped.seconds, rel=1e-14)
        assert evaluate(mapped.tree, load, card, corrected()).feasible
    again = map_workload(load, card, some, 8)
    assert [(m.seconds, m.schedule) for m in again.mapped] == [(m.seconds, m.schedule) for m in found.mapped]
    fewer = map_workload(load, card, some, 3)
    assert [m.schedule for m in fewer.mapped] == [m.schedule for m in found.mapped[:3]]


# ---- the draw ----------------------------------------------------------------------------------------------------
def test_the_draw_is_the_same_again_feasible_and_without_repeats() -> None:
    load = workload("sdpa:b=1,h=4,l=256,s=256,d=256")
    drawn = draw(load, H200, 40, 7)
    assert drawn == draw(load, H200, 40, 7)
    assert drawn[:10] == draw(load, H200, 10, 7)
    assert len(set(drawn)) == 40
    assert all(evaluate(mapping(c, load, H200), load, H200).feasible for c in drawn)
    assert drawn != draw(load, H200, 40, 8)
    assert draw(load, H200, 0, 7) == ()


def test_cases_draw_each_their_own() -> None:
    other = workload("sdpa:B")
    seeds = {case_seed(CASE_A, 0), case_seed(other, 0), case_seed(CASE_A, 1)}
    assert len(seeds) == 3
    assert draw(CASE_A, H200, 5, case_seed(CASE_A, 0)) != draw(other, H200, 5, case_seed(other, 0))


@pytest.mark.usefixtures("small")
def test_the_draw_is_uniform_within_a_family() -> None:
    """All feasible points come up; and the first of many draws by seed is as often flash as not."""
    load = workload(LOADS[1])
    feasible = {c for _, c in points() if evaluate(mapping(c, load, H200), load, H200).feasible}
    flash = {c for c in feasible if c.family == "flash"}
    assert 0 < len(flash) < 48
    assert len(feasible) > 100
    drawn = draw(load, H200, len(feasible), 3)
    assert set(drawn) == feasible
    first = Counter(draw(load, H200, 1, seed)[0] for seed in range(200))
    of_flash = sum(n for c, n in first.items() if c.family == "flash")
    assert 58 < of_flash < 142  # six standard deviations about one half
    assert max(first[c] for c in flash) < 8 * of_flash / len(flash)
