"""Pairs: one decision apart and no more, with everything that it moves and nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite.cost.model import corrected, evaluate, model
from theodolite.cost.profile import KernelProfile
from theodolite.cost.profiles import profile_of
from theodolite.cost.terms import terms
from theodolite.errors import Infeasible, TextError
from theodolite.gpus import gpu
from theodolite.ir.text import show
from theodolite.mapper.pairs import LAUNCHES, Pair, moved, neighbours, pairs, pick, unpriced
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule
from theodolite.mapper.skeletons import fills, mapping, schedule_of
from theodolite.workloads import workload

H200 = gpu("h200")
CASE_A, RAGGED = workload("sdpa:A"), workload("sdpa:b=2,h=3,l=77,s=100,d=32,causal")
FLASH = "flash:bm=64,bn=32,split=2,warps=4,stages=2"
PIPELINE = "pipeline:qk.bm=64,qk.bn=32,qk.bk=32,qk.split=2,sm.rows=4,av.bm=64,av.bs=32,av.split=2,warps=4,stages=2"
COUNTS = [f.name for f in fields(KernelProfile) if f.name not in ("name", "loads", "stores")]


def field(pair: Pair, name: str) -> tuple[float, float] | None:
    return next(((m.a, m.b) for m in pair.moved if m.field == name), None)


def one(found: tuple[Pair, ...], decision: str, value: int) -> Pair:
    (pair,) = (p for p in found if p.decision == decision and p.values[1] == value)
    return pair


# ---- one decision apart ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_neighbours_are_all_there_is_one_decision_away(text: str) -> None:
    base = parse_schedule(text)
    found = list(neighbours(base))
    assert len(found) == sum(len(d.values) - 1 for d in FAMILIES[base.family])
    assert len({s for _, s in found}) == len(found)
    for decision, other in found:
        assert {k for k in base.values if base.values[k] != other.values[k]} == {decision}


@pytest.mark.parametrize("load", [CASE_A, RAGGED], ids=["A", "ragged"])
@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_the_trees_of_a_pair_differ_in_one_decision_and_derived_ones_follow(load, text: str) -> None:
    for pair in pairs(text, load, H200):
        a, b = (mapping(s, load, H200) for s in (pair.a, pair.b))
        assert {k for k in a.decisions if a.decisions[k] != b.decisions[k]} == {pair.decision}
        assert a.decisions.keys() == b.decisions.keys()
        assert show(a) != show(b)
        # each member is exactly the tree that its own schedule names: no derived field was carried over
        assert (schedule_of(a, load, H200), schedule_of(b, load, H200)) == (pair.a, pair.b)


def test_the_derived_decisions_do_move_with_the_named_one() -> None:
    """More slices of s fill SMs that heads filled before: a stale fill would leave h where it was."""
    before, after = (
        fills("flash", CASE_A, {**parse_schedule(FLASH).values, "split": split}, H200.sms) for split in (2, 128)
    )
    assert before["fill.flash.h"] != after["fill.flash.h"]
    pair = one(pairs(FLASH, CASE_A, H200), "split", 128)
    assert show(mapping(pair.b, CASE_A, H200)).count("temporal b/1 h/1 l/bm") == 1


def test_a_split_written_by_hand_has_every_value_of_the_domain_as_neighbour() -> None:
    base = parse_schedule(FLASH.replace("split=2", "split=3"))
    splits = [s.values["split"] for k, s in neighbours(base) if k == "split"]
    assert splits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


# ---- room and predictions ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["corrected", "baseline"])
def test_both_members_fit_and_cost_what_evaluate_says(name: str) -> None:
    chosen = model(name)
    found = pairs(PIPELINE, CASE_A, H200, chosen)
    assert {p.decision for p in found} == {d.key for d in FAMILIES["pipeline"]}
    for pair in found:
        for schedule, seconds in ((pair.a, pair.a_s), (pair.b, pair.b_s)):
            tree = mapping(schedule, CASE_A, H200)
            assert name == "corrected" or evaluate(tree, CASE_A, H200, corrected()).feasible
            assert evaluate(tree, CASE_A, H200, chosen).seconds == seconds
        if pair.gap is not None:
            assert pair.gap == pytest.approx(max(pair.a_s, pair.b_s) / min(pair.a_s, pair.b_s) - 1, abs=1e-8)


def test_a_neighbour_without_room_is_left_out_and_a_base_without_room_raises() -> None:
    big = workload("sdpa:b=1,h=4,l=1024,s=1024,d=256")
    base = parse_schedule("flash:bm=64,bn=64,split=1,warps=4,stages=2")
    found = {(p.decision, p.values[1]) for p in pairs(base, big, H200)}
    fits = {(k, s.values[k]) for k, s in neighbours(base) if evaluate(mapping(s, big, H200), big, H200).feasible}
    assert found == fits
    assert len(fits) < len(list(neighbours(base)))
    with pytest.raises(Infeasible, match="shared memory"):
        pairs("flash:bm=256,bn=256,split=1,warps=8,stages=5", big, H200)
    with pytest.raises(TextError):
        pairs("flash:bm=48", CASE_A, H200)


def test_baseline_has_no_words_for_flash_and_says_so() -> None:
    found = pairs(FLASH, CASE_A, H200, model("baseline"))
    assert len(found) == len(pairs(FLASH, CASE_A, H200))
    assert {(p.a_s, p.b_s, p.gap) for p in found} == {(None, None, None)}
    assert all("interleaved" in p.why_not for p in found)
    assert pick(found, 0.0) == ()


# ---- what a decision moves ---------------------------------------------------------------------------------------
@settings(max_examples=15)
@given(st.sampled_from([FLASH, PIPELINE]), st.sampled_from([CASE_A, RAGGED]), st.data())
def test_moved_is_what_a_plain_comparison_of_the_profiles_says(text: str, load, data: st.DataObject) -> None:
    pair = data.draw(st.sampled_from(pairs(text, load, H200)))
    a, b = (
        {
            k.name: {n: float(getattr(k, n)) for n in COUNTS}
            for k in profile_of(mapping(s, load, H200), load, H200).kernels
        }
        for s in (pair.a, pair.b)
    )
    both = a.keys() & b.keys()
    for name in COUNTS:
        totals = tuple(sum(kernel[name] for kernel in side.values()) for side in (a, b))
        if any(a[k][name] != b[k][name] for k in both):
            assert field(pair, name) is not None, name
        elif a.keys() == b.keys():
            assert field(pair, name) is None, name
        if name in ("programs", "flops", "loaded_bytes", "partial_bytes", "exp2") and totals[0] != totals[1]:
            assert field(pair, name) == totals
    assert field(pair, LAUNCHES) == ((len(a), len(b)) if len(a) != len(b) else None)


def test_by_hand_what_a_split_moves() -> None:
    """flash on case A, split 2 to 1: the merge goes, with its partials; warps, stages and FLOP stay as they were."""
    pair = one(pairs(FLASH, CASE_A, H200), "split", 1)
    assert field(pair, LAUNCHES) == (2, 1)
    assert field(pair, "merge") == (1, 0)
    assert field(pair, "partial_bytes") == (2 * 540_672, 0)  # written once and read once
    assert field(pair, "programs") == (32 + 64, 16)
    assert not {"warps", "stages", "flops", "flops_wgmma"} & {m.field for m in pair.moved}
    assert field(pair, "stored_bytes") == (131_072, 131_072)  # O, stored by another kernel
    assert pair.unpriced == ()


def test_two_changes_that_cancel_in_the_sum_are_both_seen() -> None:
    profile = profile_of(mapping(parse_schedule(PIPELINE), CASE_A, H200), CASE_A, H200)
    first, second, *rest = profile.kernels
    other = replace(
        profile,
        kernels=(replace(first, programs=first.programs + 7), replace(second, programs=second.programs - 7), *rest),
    )
    (found,) = moved(profile, other, corrected())
    assert (found.field, found.a == found.b) == ("programs", True)
    assert moved(profile, profile, corrected()) == ()


@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_unpriced_is_what_no_term_reads(text: str) -> None:
    for name in ("corrected", "traffic,compute", "splitk", "launch", "baseline"):
        chosen = model(name)
        read = set().union(*(terms()[t].fields for t in chosen.term_names)) if name != "baseline" else set()
        for pair in pairs(text, CASE_A, H200, chosen)[::3]:
            names = {m.field for m in pair.moved}
            launches = {LAUNCHES} if LAUNCHES in names and not read & {"first", "merge"} else set()
            assert set(pair.unpriced) == (names - read - {LAUNCHES}) | launches
            assert unpriced(pair.a, pair.b, CASE_A, H200, chosen) == pair.unpriced


def test_a_decision_that_moves_nothing_priced_is_a_predicted_tie() -> None:
    """The use of a pair: traffic and compute alone read nothing that stages move, and so cannot tell these apart."""
    found = [p for p in pairs(FLASH, CASE_A, H200, model("traffic,compute")) if p.decision in ("warps", "stages")]
    assert {p.gap for p in found} == {0.0}
    assert all("stages" in p.unpriced for p in found if p.decision == "stages")
    assert all(m.priced is False for p in found for m in p.moved)
    assert pick(found, 0.0) == ()


# ---- picking -----------------------------------------------------------------------------------------------------
def made_up(decision: str, value: int, b_s: float | None, base: str = FLASH) -> Pair:
    a = parse_schedule(base)
    b = Schedule(a.family, tuple((k, value if k == decision else v) for k, v in a.decisions))
    return Pair(a, b, decision, (), 1.0, b_s, None)


def test_picks_take_turns_between_decisions_and_ends() -> None:
    found = [made_up("split", v, 1 + v / 100) for v in (4, 8, 16, 32)] + [
        made_up("bm", 16, 1.5),
        made_up("bn", 64, 0.5),
    ]
    assert [(p.decision, p.values[1]) for p in pick(found, 0.05)] == [
        ("bm", 16),
        ("bn", 64),
        ("split", 8),
        ("split", 32),
        ("split", 16),
    ]
    assert pick(found, 0.05, 2) == pick(found, 0.05)[:2]
    assert pick(found, 1.0) == ()  # bn is exactly 100 % apart: the gap is strict
    assert len(pick(found, 0.999)) == 1


@given(
    st.lists(st.tuples(st.sampled_from([16, 32, 128, 256]), st.sampled_from([None, 0.5, 1.0, 1.04, 1.06, 2.0]))),
    st.randoms(),
)
def test_picks_do_not_depend_on_the_order_and_hold_no_pair_twice(rows, random) -> None:
    found = [made_up("bm", value, b_s) for value, b_s in dict(rows).items()]
    turned = [replace(p, a=p.b, b=p.a, a_s=p.b_s, b_s=p.a_s) for p in found]
    shuffled = list(found)
    random.shuffle(shuffled)
    picked = pick(found, 0.05)
    assert pick(shuffled, 0.05) == picked
    assert {p.b for p in picked} == {p.b for p in found if p.b_s in (0.5, 1.06, 2.0)}
    assert len(pick([*found, *turned], 0.05)) == len(picked)


def test_real_picks_are_clear_and_cover_the_decisions_that_have_a_clear_gap() -> None:
    found = pairs(PIPELINE, CASE_A, H200)
    clear = {p.decision for p in found if p.gap is not None and p.gap > 0.05}
    assert len(clear) >= 4
    picked = pick(found, 0.05, len(clear))
    assert {p.decision for p in picked} == clear
    assert all(p.gap > 0.05 for p in picked)
