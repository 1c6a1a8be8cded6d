"""The launch DAG: the worked program passes, and each way to break it is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.auditing.ttir_compiled import changed
from tests.auditing.ttir_programs import causal_program, flash_program
from theodolite.auditing.gates.launches import check_launches
from theodolite.lowering.plan import Buffer

pytest.importorskip("triton")


def check(program, ttir, expected=None):
    result = check_launches(program, ttir, program.launches if expected is None else expected)
    assert result.gate == "launches"
    return None if result.passed else result.reason


def with_launches(program, *launches):
    return replace(program, launches=launches)


def test_right_programs_pass():
    for make in (flash_program, causal_program):
        program, ttir, _ = make()
        assert check(program, ttir) is None


def test_launches_must_be_those_of_the_tree():
    program, ttir, _ = flash_program()
    first, merge = program.launches
    assert check(program, ttir, (first,)) == "the program launches flash flash_merge, the tree says flash"
    assert "the tree says flash_merge flash" in check(program, ttir, (merge, first))
    other = replace(first, grid=(1, 1, 1))
    assert check(program, ttir, (other, merge)) == "launch 0 (flash): grid [56, 1, 1], the tree says [1, 1, 1]"
    assert "reads ['K', 'Q', 'V'], the tree says ['K', 'Q']" in check(
        program, ttir, (replace(first, reads=("Q", "K")), merge)
    )


def test_declared_accesses_must_be_those_of_the_text():
    program, ttir, _ = flash_program()
    first, merge = program.launches
    less = with_launches(program, replace(first, reads=("Q", "K")), merge)
    assert check(less, ttir) == "launch 0 (flash): reads ['K', 'Q', 'V'], declared is ['K', 'Q']"
    more = with_launches(program, replace(first, writes=(*first.writes, "O")), merge)
    assert "declared is ['A_p', 'D_p', 'M_p', 'O']" in check(more, ttir)
    swapped = {**first.args, "K": "V", "V": "V"}
    assert "reads ['Q', 'V']" in check(with_launches(program, replace(first, args=swapped), merge), ttir)
    partly = replace(first, args={k: v for k, v in first.args.items() if k != "BH"})
    assert "gives no argument BH" in check(with_launches(program, partly, merge), ttir)
    assert "no compiled text" in check(program, {"flash": ttir["flash"]})


def test_an_access_that_no_program_makes_is_not_believed():
    edit = ("tl.store(D_p + row, d, mask=l < L)", "tl.store(D_p + row, d, mask=(l < L) & (pid < 0))")
    program, ttir, _ = flash_program(source=changed(edit, kernel="flash"))
    assert "D_p is declared to be written, and none of the programs" in check(program, ttir)


def test_types_and_grids_must_fit():
    program, ttir, _ = flash_program()
    first, merge = program.launches
    halves = tuple(replace(b, dtype="fp16") if b.name == "M_p" else b for b in program.buffers)
    assert "M_p is compiled as !tt.ptr<f32> and launched with M_p" in check(replace(program, buffers=halves), ttir)
    tall = with_launches(program, replace(first, grid=(1, 70_000, 1)), merge)
    assert "grid [1, 70000, 1] does not fit" in check(tall, ttir)


def test_each_buffer_is_ready_before_it_is_read():
    program, ttir, _ = flash_program()
    first, merge = program.launches
    assert check(with_launches(program, merge, first), ttir) == (
        "launch 0 (flash_merge): reads A_p before anything has written it"
    )
    assert check(with_launches(program, first), ttir) == "workspace A_p is never read"
    more = (*program.buffers, Buffer("Z", "fp32", (4,), "output"))
    assert check(replace(program, buffers=more), ttir) == "no launch writes the output Z"
    roles = tuple(replace(b, role="input") if b.name == "A_p" else b for b in program.buffers)
    assert check(replace(program, buffers=roles), ttir) == "launch 0 (flash): writes the input A_p"
    spare = (*program.buffers, Buffer("W", "fp32", (4,), "workspace"))
    assert check(replace(program, buffers=spare), ttir) == "workspace W is never read"


def test_no_launch_reads_what_it_writes():
    program, ttir, _ = causal_program(s=70)
    (launch,) = program.launches
    inplace = replace(launch, args={**launch.args, "O": "Q"}, writes=("Q",))
    reason = check(with_launches(program, inplace), ttir)
    assert reason == "launch 0 (causal): reads and writes Q in one launch"
