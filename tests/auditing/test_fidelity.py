"""Right kernels pass, and each way to be wrong fails with a line that names it."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.ttir_compiled import changed
from tests.auditing.ttir_programs import causal_program, flash_events, flash_program, tile
from theodolite.auditing.gates import fidelity as gate
from theodolite.auditing.gates.fidelity import compare, fidelity, stratified
from theodolite.auditing.ttir.evaluate import evaluate
from theodolite.auditing.ttir.footprint import Coverage, canonical, extremes
from theodolite.ir.events import Access, Axis, Events

pytest.importorskip("triton")


def events(*accesses, programs=2):
    zero = np.zeros(programs, np.int64)
    return Events(np.arange(programs), accesses, zero, {}, zero, zero, zero)


BOTH, FIRST, SECOND = np.array([True, True]), np.array([True, False]), np.array([False, True])


@pytest.mark.parametrize("full", [False, True])
def test_right_programs_pass(full):
    for make in (flash_program, causal_program):
        program, ttir, expected = make()
        result = fidelity(program, ttir, expected, full)
        assert result.passed, result.reason
        written = sum(b.role != "input" for b in program.buffers)
        assert result.figures["covered_buffers"] == written
        grids = [launch.grid[0] for launch in program.launches]
        assert result.figures["programs"] == sum(grids)
        assert result.figures["elementwise_programs"] >= sum(min(64, g) for g in grids) + full * sum(grids)


FLASH_MUTANTS = {
    "slice bound dropped": (("hi = tl.minimum(lo + S_SLICE, S)", "hi = S"), "trips: program 0 has 3, the tree says 2"),
    "first key block dropped": (("range(lo, hi, BN)", "range(lo + BN, hi, BN)"), "trips"),
    "doubled step": (("range(lo, hi, BN)", "range(lo, hi, 2 * BN)"), "trips: program 0 has 1, the tree says 2"),
    "twice the trips, the extra ones masked": (("range(lo, hi, BN)", "range(lo, 2 * hi - lo, BN)"), "trips: program 0"),
    "wrong head": (("K + i_bh * S * F", "K + i_l * S * F"), "load of K: program 1, access 1: .* moves from 1232"),
    "keys read as values": (("V + i_bh", "K + i_bh"), "load of V: program 0, access 1: the kernel moves nothing"),
    "wrong key tile": (("s = s0 + tl.arange", "s = s0 // 2 + tl.arange"), "load of K: program 0, access 2"),
    "unmasked keys": (
        ("v = tl.load(V + i_bh * S * F + s[:, None] * F + f[None, :], mask=s[:, None] < hi, other=0.0)",
         "v = tl.load(V + i_bh * S * F + s[:, None] * F + f[None, :])"),
        "load of V: program 0, access 2: the kernel moves from 512 x 512 of 512 by 1, the tree says from 512 x 112",
    ),
    "rescale of the sum omitted": (("d = d * r + tl.sum(p, 1)", "d = d + tl.sum(p, 1)"), "fp32: program 0 has"),
    "partials of other rows": (("row = (i_s * BH + i_bh) * L + l", "row = (i_bh * 2 + i_s) * L + l"), "store of A_p"),
    "every slice to the first": (("row = (i_s * BH + i_bh) * L + l", "row = i_bh * L + l"), "store of A_p: program 28"),
    "a maximum stored one row off": (("M_p + row, m", "M_p + row + 1, m"), "store of M_p: program 0, access 1"),
    "a sum stored by one program less": (
        ("tl.store(D_p + row, d, mask=l < L)", "tl.store(D_p + row, d, mask=(l < L) & (pid != 5))"),
        "store of D_p: program 5, access 1: the kernel moves nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FLASH_MUTANTS)
def test_a_wrong_flash_kernel_fails(what):
    edit, message = FLASH_MUTANTS[what]
    result = fidelity(*flash_program(source=changed(edit, kernel="flash")), full=False)
    assert not result.passed
    assert result.reason.startswith("launch 0 (flash): ")
    assert re.search(message, result.reason), result.reason


CAUSAL_MUTANTS = {
    "a bound that skips nothing": ("hi = tl.minimum(S, (i_l + 1) * BM + OFFSET)", "hi = S"),
    "a bound one tile too far": ("(i_l + 1) * BM + OFFSET", "(i_l + 3) * BM + OFFSET"),
    "a bound that forgets the alignment": ("(i_l + 1) * BM + OFFSET", "(i_l + 1) * BM"),
    "queries of the first tile": ("Q + i_bh * L * F + l[:, None]", "Q + i_bh * L * F + tl.arange(0, BM)[:, None]"),
}


@pytest.mark.parametrize("what", CAUSAL_MUTANTS)
def test_a_wrong_causal_kernel_fails(what):
    result = fidelity(*causal_program(source=changed(CAUSAL_MUTANTS[what], kernel="causal")), full=False)
    assert not result.passed
    assert ("load of Q" if "queries" in what else "trips") in result.reason


def test_a_wrong_merge_fails():
    for edit, message in (
        (("row += BH * L", "row += L"), "load of M_p: program 0, access 2"),
        (("range(0, SPLIT)", "range(0, SPLIT - 1)"), "trips: program 0 has 1, the tree says 2"),
    ):
        result = fidelity(*flash_program(source=changed(edit, kernel="flash_merge")), full=False)
        assert not result.passed
        assert message in result.reason


def test_what_cannot_be_read_fails_the_gate():
    program, ttir, expected = flash_program()
    missing = fidelity(program, {"flash": ttir["flash"]}, expected, False)
    assert (missing.passed, missing.reason) == (
        False,
        "launch 1 (flash_merge): there is no compiled text of this kernel",
    )
    broken = ttir | {"flash": ttir["flash"].replace("math.exp2", "math.exp", 1)}
    assert "math.exp: no rule" in fidelity(program, broken, expected, False).reason


def believed(program, ttir):
    """An expectation that agrees with whatever the kernels do: only the checks of stores are left to fail."""

    def expected(index, programs):
        launch = program.launches[index]
        return evaluate(ttir[launch.kernel], launch.args, programs, launch.grid)

    return expected


def test_stores_that_meet_or_miss_fail_even_where_the_tree_agrees():
    twice, ttir, _ = flash_program(source=changed(("(i_s * BH + i_bh) * L + l", "i_bh * L + l"), kernel="flash"))
    assert "element 0 is stored to twice" in fidelity(twice, ttir, believed(twice, ttir), False).reason
    program, ttir, _ = flash_program()
    first, merge = program.launches
    short = replace(program, launches=(first, replace(merge, grid=(27, 1, 1))))
    reason = fidelity(short, ttir, believed(short, ttir), False).reason
    assert reason == f"store of O: element {(3 * 100 + 6 * 16) * 16} is never stored to"
    beyond = replace(program, launches=(first, replace(merge, grid=(29, 1, 1))))
    assert "load of M_p" in fidelity(beyond, ttir, believed(beyond, ttir), False).reason


def test_launches_of_a_host_loop_may_share_a_buffer():
    program, ttir, _ = flash_program(bh=2)
    first, merge = program.launches
    source = changed(("def flash_merge(A_p, M_p, D_p, O, BH,", "def flash_merge(A_p, M_p, D_p, O, AT, BH,"),
                     ("pid = tl.program_id(0)", "pid = tl.program_id(0) + AT"), kernel="flash_merge")  # fmt: skip
    ttir = ttir | {"flash_merge": flash_program(bh=2, source=source)[1]["flash_merge"]}
    parts = [replace(merge, grid=(7, 1, 1), args={**merge.args, "AT": at}) for at in (0, 7)]
    whole = replace(program, launches=(first, *parts))
    assert fidelity(whole, ttir, believed(whole, ttir), False).passed
    again = replace(program, launches=(first, parts[0], parts[0]))
    assert "store of O: element 0 is stored to twice" in fidelity(again, ttir, believed(again, ttir), False).reason


def test_a_launch_with_too_many_stretches_is_counted_and_says_so(monkeypatch):
    monkeypatch.setattr(gate, "MAX_RUNS", 0)
    program, ttir, expected = flash_program()
    result = fidelity(program, ttir, expected, False)
    assert result.passed
    assert (result.figures["covered_buffers"], result.figures["counted_buffers"]) == (0, 4)
    short = replace(program, launches=(program.launches[0], replace(program.launches[1], grid=(27, 1, 1))))
    assert "only 6336 of 6400 elements" in fidelity(short, ttir, expected, False).reason


def test_chunks_do_not_change_the_answer(monkeypatch):
    monkeypatch.setattr(gate, "CHUNK_ELEMENTS", 1)
    program, ttir, expected = flash_program(bh=9)
    result = fidelity(program, ttir, expected, False)
    assert result.passed, result.reason
    assert result.figures["programs"] == 9 * 7 * 3


def test_equal_footprints_in_other_factors_are_equal():
    flat = tile("load", "X", BOTH, [0, 64], (1, 64, [64, 32]))
    rows = tile("load", "X", BOTH, [0, 64], (1, 16, 16), (16, 4, [4, 2]))
    assert compare(events(flat), events(rows), (0, 1)) is None
    ragged = tile("load", "X", BOTH, [0, 64], (16, 4, [4, 2]), (1, 16, 15))
    assert "access 1" in compare(events(flat), events(ragged), ())


def test_lockstep_does_not_matter_but_order_does():
    def one(active, base):
        return tile("load", "X", active, base, (1, 8, 8))

    together = events(one(BOTH, [0, 100]), one(BOTH, [8, 108]))
    apart = events(one(FIRST, [0, 0]), one(FIRST, [8, 0]), one(SECOND, [0, 100]), one(SECOND, [0, 108]))
    assert compare(together, apart, (0, 1)) is None
    swapped = events(one(BOTH, [8, 100]), one(BOTH, [0, 108]))
    assert compare(together, swapped, ()) == (
        "load of X: program 0, access 1: the kernel moves from 0 x 8 of 8 by 1, the tree says from 8 x 8 of 8 by 1"
    )


def test_an_access_that_moves_nothing_is_none():
    empty = tile("load", "X", BOTH, [5, 6], (1, 8, 0))
    assert compare(events(empty), events(), (0, 1)) is None
    half = tile("load", "X", BOTH, [0, 7], (1, 8, [8, 0]))
    assert compare(events(half), events(tile("load", "X", FIRST, [0, 9], (1, 8, 8))), (0, 1)) is None
    assert "moves nothing" in compare(events(empty), events(half), ())


def test_each_count_is_compared():
    base = flash_events(np.arange(8), 16, 32, 16, 1, 64, 64, 32)
    for name in ("trips", "exp2", "fp32", "reductions"):
        other = replace(base, **{name: getattr(base, name) + (np.arange(8) == 3)})
        assert compare(base, other, ()).startswith(f"{name}: program 3 has ")
    dots = {(16, 32, 16): base.dots[16, 32, 16]}
    assert compare(base, replace(base, dots=dots), ()) == "dots of 16 x 16 x 32: program 0 has 1, the tree says 0"
    assert "different programs" in compare(base, replace(base, programs=np.arange(1, 9)), ())


def test_stratified_programs_hold_the_ends():
    assert stratified(5).tolist() == [0, 1, 2, 3, 4]
    marks = stratified(100_000)
    assert (marks[0], marks[-1], len(marks)) == (0, 99_999, 64)


def axis():
    return st.tuples(st.sampled_from([0, 1, 2, 4, 8, 16, -3]), st.integers(1, 4), st.integers(0, 4))


@settings(max_examples=150, deadline=None)
@given(st.lists(axis(), max_size=3), st.lists(st.integers(0, 200), min_size=3, max_size=3), st.integers(0, 7))
def test_canonical_form_and_coverage_keep_every_element(axes, bases, active):
    on = np.array([bool(active >> i & 1) for i in range(3)])
    valid = [np.clip([v, v + 1, n], 0, n) for _, n, v in axes]
    full = tuple(Axis(s, n, v) for (s, n, _), v in zip(axes, valid, strict=True))
    access = Access("store", "X", on, np.array(bases) + 20, full)
    same = canonical(access)
    for p in range(3):
        assert same.offsets(p).tolist() == access.offsets(p).tolist()
    touched = np.concatenate([access.offsets(p) for p in range(3)])
    assert extremes(access) == ((touched.min(), touched.max()) if touched.size else None)
    times = np.bincount(touched, minlength=1)
    stored = Coverage(int(times.size), exact=True)
    stored.add(access)
    assert (stored.twice() is None) == (times.max() <= 1)
    if stored.twice() is None:
        assert (stored.missing() is None) == bool((times == 1).all())


def test_a_large_launch_takes_seconds():
    program, ttir, expected = flash_program(bh=1024, l=1024, s=64, split=1)
    start = time.perf_counter()
    result = fidelity(program, ttir, expected, full=False)
    assert result.passed, result.reason
    assert result.figures["programs"] == 2 * 65_536
    assert time.perf_counter() - start < 10
