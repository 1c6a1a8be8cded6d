"""The evaluator against the numbers of a case worked by hand, and against running single programs on whole arrays."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.auditing.ttir_compiled import changed, compiled
from tests.auditing.ttir_naive import Naive
from theodolite.auditing.ttir.evaluate import evaluate
from theodolite.errors import TheodoliteError, Unsupported

pytest.importorskip("triton")
FLASH = {"BM": 64, "BN": 32, "F": 64}
SMALL = {"BM": 16, "BN": 16, "F": 16}


def names(kernel_args: str, **numbers):
    return {n: n for n in kernel_args.split()} | numbers


def flash_args(bh, l, s, split):  # noqa: E741
    return names("Q K V A_p M_p D_p", scale=0.18, BH=bh, L=l, S=s, S_SLICE=-(-s // split))


def summed(events):
    fields = {k: int(getattr(events, k).sum()) for k in ("trips", "exp2", "fp32", "reductions")}
    return fields | {"dots": {shape: int(n.sum()) for shape, n in events.dots.items()}}


def against_oracle(text, args, programs, grid=None):
    """Every count and every element of each program, in order."""
    events = evaluate(text, args, np.array(programs), grid)
    for p, pid in enumerate(programs):
        naive = Naive(text, args, pid, grid or (1 << 31, 1, 1))
        counts = {k: int(getattr(events, k)[p]) for k in ("trips", "exp2", "fp32", "reductions")}
        assert counts == {k: naive.n[k] for k in counts}
        assert {k: int(n[p]) for k, n in events.dots.items() if n[p]} == dict(naive.dots)
        got = [(a.kind, a.buffer, tuple(a.offsets(p))) for a in events.accesses]
        want = [(kind, buffer, tuple(at)) for kind, buffer, at in naive.accesses]
        assert [x for x in got if x[2]] == [x for x in want if x[2]]
    return events


def test_flash_gives_the_numbers_worked_by_hand():
    events = evaluate(compiled("flash", FLASH, ("L", "S", "S_SLICE")), flash_args(8, 128, 128, 2), np.arange(32))
    assert summed(events) == {
        "trips": 64,
        "dots": {(64, 32, 64): 64, (64, 64, 32): 64},
        "exp2": 135_168,
        "fp32": 802_816,
        "reductions": 128,
    }
    assert events.flops == 33_554_432
    assert {k: 2 * n for k, n in events.elements("load").items()} == dict.fromkeys("QKV", 262_144)
    assert {k: 4 * n for k, n in events.elements("store").items()} == {"A_p": 524_288, "M_p": 8_192, "D_p": 8_192}


def test_flash_merge_gives_the_numbers_worked_by_hand():
    args = names("A_p M_p D_p O", BH=8, L=128, SPLIT=2)
    events = evaluate(compiled("flash_merge", {"ROWS": 16, "F": 64}, ("L",)), args, np.arange(64))
    assert summed(events) == {"trips": 128, "dots": {}, "exp2": 4_096, "fp32": 471_040, "reductions": 0}
    assert {k: 4 * n for k, n in events.elements("load").items()} == {"A_p": 524_288, "M_p": 8_192, "D_p": 8_192}
    assert {k: 2 * n for k, n in events.elements("store").items()} == {"O": 131_072}


def test_qk_gives_the_numbers_worked_by_hand():
    args = names("Q K S_p", BH=8, L=128, S=128, E=64, E_SLICE=32)
    text = compiled("qk", {"BM": 64, "BN": 32, "BK": 32}, ("L", "S", "E", "E_SLICE"))
    events = evaluate(text, args, np.arange(128))
    assert summed(events) == {"trips": 128, "dots": {(64, 32, 32): 128}, "exp2": 0, "fp32": 0, "reductions": 0}
    assert {k: 2 * n for k, n in events.elements("load").items()} == {"Q": 524_288, "K": 262_144}
    assert {k: 4 * n for k, n in events.elements("store").items()} == {"S_p": 1_048_576}


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 90), st.integers(1, 5))
def test_flash_program_by_program(bh, l, s, split):  # noqa: E741
    grid = -(-l // 16) * bh * split
    against_oracle(compiled("flash", SMALL), flash_args(bh, l, s, split), sorted({0, grid // 2, grid - 1}))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(0, 40))
def test_causal_program_by_program(bh, l, more):  # noqa: E741
    args = names("Q K V O", BH=bh, L=l, S=l + more, OFFSET=more)
    grid = -(-l // 16) * bh
    events = against_oracle(compiled("causal", SMALL), args, sorted({0, grid // 2, grid - 1}))
    rows = np.array([p % -(-l // 16) for p in events.programs])
    assert events.trips.tolist() == (-(-np.minimum(l + more, (rows + 1) * 16 + more) // 16)).tolist()


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([1, 2, 8, 16]), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_qk_program_by_program(bk, l, s, e, split):  # noqa: E741
    args = names("Q K S_p", BH=2, L=l, S=s, E=e, E_SLICE=-(-e // split))
    grid = -(-l // 16) * -(-s // 16) * 2 * split
    text = compiled("qk", {"BM": 16, "BN": 16, "BK": bk})
    events = against_oracle(text, args, sorted({0, grid // 3, grid - 1}))
    if bk < 16:
        assert not events.dots
        assert (events.fp32 == events.trips * (2 * 16 * 16 * bk + 16 * 16)).all()


@pytest.mark.parametrize("split", [1, 3])
def test_carried_addresses_program_by_program(split):
    merge = names("A_p M_p D_p O", BH=3, L=37, SPLIT=split)
    against_oracle(compiled("flash_merge", {"ROWS": 16, "F": 16}), merge, range(9))
    against_oracle(compiled("av_merge", {"BLOCK": 64}), names("O_p O", N=100, SPLIT=split), range(2))


def test_a_grid_of_two_axes_and_a_branch_on_the_program():
    text, args = compiled("grid2d", {"BLOCK": 16}), names("X Y", N=11)
    events = against_oracle(text, args, range(6), (3, 2, 1))
    assert [a.active.tolist() for a in events.accesses if a.kind == "load"] == [[False, True, True] * 2]
    with pytest.raises(Unsupported, match="reads its grid"):
        evaluate(text, args, np.arange(6))


def test_a_program_beyond_the_last_slice_makes_no_trip():
    events = evaluate(compiled("flash", SMALL), flash_args(1, 16, 5, 4), np.arange(4))
    assert events.trips.tolist() == [1, 1, 1, 0]
    assert sum(a.elements()[3] for a in events.accesses if a.buffer in "KV") == 0


REFUSED = {
    "an address from memory": ("gather", {"N": "N"}, {"N": "*i32"}, "tt.load: its result decides an address"),
    "a branch on data": ("branch", {}, {}, "arith.cmpf: its result decides"),
    "an atomic": ("atomic", None, {}, "no rule says what this operation does"),
    "a while loop": ("until", {"N": 64}, {}, "scf.while opens a block"),
    "work without a price": ("logarithm", {}, {}, "math.log2: no rule"),
    "a mask that is no prefix": ("window", {"LOW": 3, "N": 9}, {}, "tt.store: a mask that leaves something else"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_resolved_raises(what):
    kernel, numbers, types, message = REFUSED[what]
    args = names("Y") if numbers is None else names("X Y", **numbers)
    with pytest.raises(TheodoliteError, match=message):
        evaluate(compiled(kernel, {"BLOCK": 16}, **types), args, np.arange(4))


def test_a_mask_that_happens_to_be_a_prefix_is_fine():
    text = compiled("window", {"BLOCK": 16})
    assert evaluate(text, names("X Y", LOW=0, N=9), np.arange(1)).elements("store") == {"Y": 9}
    assert evaluate(text, names("X Y", LOW=16, N=99), np.arange(1)).elements("store") == {"Y": 0}


def test_an_address_that_wraps_raises():
    text, args = compiled("narrow", {"BLOCK": 16}), names("X Y", N=1 << 20)
    assert evaluate(text, args, np.array([2047])).accesses[0].base.tolist() == [2047 << 20]
    with pytest.raises(Unsupported, match="an i32 value overflows"):
        evaluate(text, args, np.array([2048]))


def test_arguments_must_be_those_that_were_compiled_for():
    text, args = compiled("flash", FLASH, ("L", "S", "S_SLICE")), flash_args(8, 128, 128, 2)
    for change, message in (
        ({"L": 100}, "argument L: compiled for multiples of 16, launched with 100"),
        ({"Q": 3}, "argument Q: a pointer needs a buffer's name"),
        ({"BH": 1.5}, "argument BH: 1.5 does not fit type i32"),
        ({"extra": 1}, "disagree on the arguments extra"),
    ):
        with pytest.raises(Unsupported, match=message):
            evaluate(text, args | change, np.arange(2))


def test_negative_numbers_divide_towards_zero():
    source = changed(
        ("tl.program_id(0) * N", "((tl.program_id(0) - 5) // 3) * N + ((tl.program_id(0) - 5) % 3)"), kernel="narrow"
    )
    text = compiled("narrow", {"BLOCK": 16}, source=source)
    bases = evaluate(text, names("X Y", N=100), np.arange(9)).accesses[0].base
    assert bases.tolist() == [-102, -101, -100, -2, -1, 0, 1, 2, 100]


def test_a_sum_of_products_that_the_compiler_turned_into_a_dot_counts_as_one():
    events = evaluate(compiled("folded", {"N": 16, "K": 8}), names("X Y O_p"), np.arange(1))
    assert {shape: n.tolist() for shape, n in events.dots.items()} == {(16, 16, 8): [1]}
    assert (events.fp32.tolist(), events.reductions.tolist()) == ([0], [0])


WRITTEN_OUT = """module {
  tt.func public @f(%X: !tt.ptr<f32>, %Y: !tt.ptr<f32>, %N: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.cmpi sgt, %0, %c1 : i32
    %2:2 = scf.if %1 -> (i32, f32) {
      %9 = arith.muli %0, %N : i32
      %10 = tt.load %X : !tt.ptr<f32>
      scf.yield %9, %10 : i32, f32
    } else {
      %9 = arith.constant 1.0 : f32
      scf.yield %N, %9 : i32, f32
    }
    %3 = tt.addptr %X, %2#0 : !tt.ptr<f32>, i32
    %4 = tt.splat %3 : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>>
    %5 = tt.make_range {end = 6 : i32, start = 2 : i32} : tensor<4xi32>
    %6 = tt.reshape %5 : tensor<4xi32> -> tensor<4x1xi32>
    %7 = tt.trans %6 {order = array<i32: 1, 0>} : tensor<4x1xi32> -> tensor<1x4xi32>
    %8 = scf.for %i = %c0 to %0 step %c1 iter_args(%p = %4) -> (tensor<4x!tt.ptr<f32>>) : i32 {
      %9 = tt.load %p : tensor<4x!tt.ptr<f32>>
      %10 = tt.addptr %p, %5 : tensor<4x!tt.ptr<f32>>, tensor<4xi32>
      scf.yield %10 : tensor<4x!tt.ptr<f32>>
    } {tt.num_stages = 3 : i32}
    %11 = tt.splat %Y : !tt.ptr<f32> -> tensor<1x4x!tt.ptr<f32>>
    %12 = tt.addptr %11, %7 : tensor<1x4x!tt.ptr<f32>>, tensor<1x4xi32>
    tt.store %12, %2#1 : tensor<1x4x!tt.ptr<f32>>
    tt.return
  }
}"""


def test_branches_that_yield_and_carried_pointers_that_move():
    with pytest.raises(Unsupported, match=r"TTIR line 20, .* two values of different form"):
        evaluate(WRITTEN_OUT, names("X Y", N=100), np.arange(2))
    step = "%13 = tt.splat %N : i32 -> tensor<4xi32>\n%10 = tt.addptr %p, %13"
    moving = WRITTEN_OUT.replace("%10 = tt.addptr %p, %5", step)
    events = evaluate(moving, names("X Y", N=100), np.arange(4))
    first, *carried, stored = events.accesses
    assert first.active.tolist() == [False, False, True, True]
    assert [a.active.tolist() for a in carried] == [[p > j for p in range(4)] for j in range(3)]
    assert [a.base[3] for a in carried] == [300, 400, 500]
    assert carried[0].base[1] == 100
    assert stored.base.tolist() == [2] * 4
    assert [(a.stride, a.size) for a in stored.axes] == [(1, 4)]


def test_sizes_of_a_real_case_take_a_moment():
    start = time.perf_counter()
    text = compiled("flash", {"BM": 16, "BN": 16, "F": 128}, ("L", "S", "S_SLICE"))
    compiled_at = time.perf_counter()
    events = evaluate(text, flash_args(32, 1024, 1024, 1), np.arange(2048))
    assert int(events.trips.sum()) == 2048 * 64
    wide = evaluate(compiled("av_merge", {"BLOCK": 1024}), names("O_p O", N=1 << 26, SPLIT=8), np.arange(1 << 16))
    assert wide.elements("store") == {"O": 1 << 26}
    assert time.perf_counter() - compiled_at < 5, compiled_at - start
