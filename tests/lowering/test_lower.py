"""Printed kernels: deterministic, the same at any size, what the tree says, and right when run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, realised, schedules, workloads
from theodolite.auditing.gates.fidelity import fidelity
from theodolite.auditing.gates.numerics import numerics
from theodolite.auditing.manifest import GateResult
from theodolite.auditing.twin import make_twin
from theodolite.cost.model import evaluate
from theodolite.errors import Unsupported
from theodolite.ir import interp
from theodolite.ir.events import Events, Ints
from theodolite.ir.realise import realise
from theodolite.ir.steps import KernelSteps, kernel_steps
from theodolite.ir.text import parse, show
from theodolite.ir.tree import HostLoop, Loop, Tree
from theodolite.ir.workload import Workload
from theodolite.lowering import lower as module
from theodolite.lowering.compile import ttir
from theodolite.lowering.interpret import Interpreter
from theodolite.lowering.lower import kernels_text, lower, supported, twin
from theodolite.lowering.plan import Program
from theodolite.mapper.shorthand import Schedule, parse_schedule
from theodolite.mapper.skeletons import mapping, mapping_of
from theodolite.records import digest, dump, load
from theodolite.workloads import entry, sdpa

EXAMPLE = {"flash": FLASH, "pipeline": PIPELINE}
PROGRAMS = {name: lower(realised(parse_schedule(text), CASE_A), CASE_A) for name, text in EXAMPLE.items()}


@pytest.mark.parametrize("name", EXAMPLE)
def test_the_worked_example_s_programs(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.kernels.txt", PROGRAMS[name].source)


def test_printing_does_not_depend_on_the_process() -> None:
    """Hashes of strings differ from process to process: an order taken from a set would show."""
    script = (
        "from theodolite import gpu, lower, mapping_of, realise, workload\n"
        "from theodolite.records import digest\n"
        "load = workload('sdpa:A')\n"
        f"trees = [realise(mapping_of(t, load, gpu('h200')), load) for t in {list(EXAMPLE.values())}]\n"
        "print([digest(lower(t, load)) for t in trees])\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.strip() == str([digest(p) for p in PROGRAMS.values()])


@given(schedules(), workloads())
def test_a_program_reads_back_equal(chosen: Schedule, what: Workload) -> None:
    program = lower(realised(chosen, what), what)
    again = load(Program, dump(program), "here")
    assert again == program
    assert dump(again) == dump(program)
    assert lower(realised(chosen, what), what) == program


# ---- sizes do not leak -------------------------------------------------------------------------------------------
@given(schedules(), workloads(longest=200), st.data())
def test_kernels_are_the_same_text_at_any_size(chosen: Schedule, what: Workload, data: st.DataObject) -> None:
    """Widths stay, since they are constexprs; numbers of partials stay above 1 where they were."""
    causal = bool(what.einsum("S").domain)
    keys = data.draw(st.integers(1, 200))
    rows = data.draw(st.integers(1, keys if causal else 200))
    sizes = {"b": data.draw(st.integers(1, 3)), "h": data.draw(st.integers(1, 3)), "l": rows, "s": keys}
    whole = chosen.family == "flash" or 1 << (keys - 1).bit_length() == 1 << (what.ranks["s"] - 1).bit_length()
    assume(whole)  # a softmax row is a tile: its padded length is a constexpr
    other = entry("sdpa").resize(what, sizes)
    fewer = Schedule(chosen.family, tuple((k, min(v, 2) if k.endswith("split") else v) for k, v in chosen.decisions))
    full, small = lower(realised(chosen, what), what), lower(realised(fewer, other), other)
    assert kernels_text(full.source) == kernels_text(small.source)
    assert [k.constexprs for k in full.kernels] == [k.constexprs for k in small.kernels]
    stand_in = twin(full, small)
    assert stand_in.source == full.source
    assert stand_in.launches == small.launches
    assert stand_in.buffers == small.buffers


@settings(max_examples=25)
@given(schedules(), workloads(longest=200))
def test_every_program_has_a_twin(chosen: Schedule, what: Workload) -> None:
    tree = realised(chosen, what)
    program = lower(tree, what)
    small = make_twin(tree, what, program)
    assert small.program.source == program.source
    assert [k.constexprs for k in small.program.kernels] == [k.constexprs for k in program.kernels]
    assert all(small.workload.ranks[r] <= max(what.ranks[r], 1) for r in what.ranks)


def test_other_kernels_are_no_twin() -> None:
    with pytest.raises(Unsupported, match="sizes leak"):
        twin(PROGRAMS["flash"], lower(realised(parse_schedule(FLASH.replace("split=2", "split=1")), CASE_A), CASE_A))


# ---- what is not supported ---------------------------------------------------------------------------------------
def test_what_can_be_lowered_has_no_reason_against_it() -> None:
    assert supported(realised(parse_schedule(FLASH), CASE_A), CASE_A) is None


def text_of(name: str) -> str:
    return show(realise(mapping_of(EXAMPLE[name], CASE_A, H200), CASE_A))


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("flash", "bm=64", "bm=48", "kernel flash: BLOCK_L=48 is no power of two"),
        ("pipeline", "sm.rows=4", "sm.rows=16384", "kernel softmax: a tile of 2097152 elements"),
        ("flash", "workspace A_p fp32", "workspace X_p fp32", "A"),
        ("pipeline", "workspace S_w fp16 [b,h,l,s] holds S\n", "", "reads S, which no workspace holds"),
        ("pipeline", "  temporal s/av.bs\n  SMEM P V\n", "  SMEM P V\n", "slice of s"),
        ("flash", "  interleaved over s", "  spatial h/1 on SM\n  interleaved over s", "spatial inside kernel flash"),
    ],
)  # fmt: skip
def test_what_cannot_be_lowered_names_the_rule(name: str, old: str, new: str, reason: str) -> None:
    assert old in text_of(name)
    tree = parse(text_of(name).replace(old, new))
    said = supported(tree, CASE_A)
    assert said is not None
    assert reason in said
    with pytest.raises(Unsupported):
        lower(tree, CASE_A)


def test_a_host_loop_is_not_supported_yet() -> None:
    tree = realised(parse_schedule(FLASH), CASE_A)
    looped = replace(tree, body=(HostLoop(Loop("b", 1), tree.kernels),))
    assert "host loop" in str(supported(looped, CASE_A))


def test_a_head_beyond_32_bits_and_a_grid_beyond_its_limit_are_refused() -> None:
    wide = sdpa(b=1, h=1, l=50_000, s=50_000, d=16)
    assert "pass 32 bits" in str(supported(realised(parse_schedule(PIPELINE), wide), wide))
    many = sdpa(b=64, h=1 << 16, l=512, s=16, d=16)
    tree = realised(parse_schedule(PIPELINE.replace("sm.rows=4", "sm.rows=1").replace("split=2", "split=1")), many)
    assert "a grid holds 2147483647" in str(supported(tree, many))


@dataclass(frozen=True)
class Teleport:
    """A step that nobody knows."""


def test_a_step_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = realised(parse_schedule(FLASH), CASE_A)
    kernel, *_ = kernel_steps(tree, CASE_A)
    odd = KernelSteps(**{**vars(kernel), "steps": (*kernel.steps, Teleport())})
    monkeypatch.setattr(module, "kernel_steps", lambda *_: (odd,))
    assert supported(tree, CASE_A) == "no lowering rule prints the step Teleport of kernel flash"


# ---- compiled ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tile", "dots"), [(1, 0), (8, 0), (16, 1), (32, 1)])
def test_a_narrow_contraction_never_becomes_a_dot(tile: int, dots: int) -> None:
    chosen = parse_schedule(PIPELINE.replace("qk.bk=32", f"qk.bk={tile}").replace("av.bs=32", f"av.bs={tile}"))
    texts = ttir(lower(realised(chosen, CASE_A), CASE_A))
    assert {n: len(re.findall(r"\btt\.dot\b", t)) for n, t in texts.items()} == {
        "qk": dots,
        "qk_merge": 0,
        "softmax": 0,
        "av": dots,
        "av_merge": 0,
    }


def held(tree: Tree, what: Workload, program: Program) -> GateResult:
    """The fidelity gate, every program element by element."""
    kernels = kernel_steps(tree, what)

    def expected(launch: int, programs: Ints) -> Events:
        return interp.events(kernels[launch], what, tree.decisions, programs)

    return fidelity(program, ttir(program), expected, full=True)


@settings(max_examples=15)
@given(schedules(), workloads(longest=60))
def test_compiled_kernels_do_what_the_tree_says(chosen: Schedule, what: Workload) -> None:
    assume(evaluate(mapping(chosen, what, H200), what, H200).feasible)
    tree = realised(chosen, what)
    result = held(tree, what, lower(tree, what))
    assert result.passed, result.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [("split=2", "split=3"), ("bn=32", "bn=64"), ("bm=64", "bm=32")],
)
def test_the_kernels_of_another_schedule_do_not(old: str, new: str) -> None:
    tree = realised(parse_schedule(FLASH), CASE_A)
    other = parse_schedule(FLASH.replace(old, new))
    result = held(tree, CASE_A, lower(realised(other, CASE_A), CASE_A))
    assert not result.passed


# ---- run ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run() -> Iterator[Interpreter]:
    with Interpreter() as interpreter:
        yield interpreter


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("flash:bm=16,bn=16,split=3,warps=4,stages=2", sdpa(b=1, h=2, l=33, s=45, d=20, causal=True)),
        ("flash:bm=32,bn=16,split=1,warps=4,stages=2", sdpa(b=1, h=2, l=17, s=5, d=1)),
        (PIPELINE.replace("qk.bk=32", "qk.bk=8").replace("av.bs=32", "av.bs=8"), sdpa(b=2, h=1, l=20, s=37, d=24)),
        (PIPELINE.replace("split=2", "split=1"), sdpa(b=1, h=2, l=30, s=30, d=16, causal=True, e=24)),
    ],
)
def test_kernels_are_right_when_run(run: Interpreter, text: str, what: Workload) -> None:
    program = lower(realised(parse_schedule(text), what), what)
    result = numerics(lambda arrays: run(program, arrays), what, 0, packed=True)
    assert result.passed, result.reason


def test_kernels_give_the_interpreter_s_values(run: Interpreter) -> None:
    """Every workspace too, to what fp16 and fp32 keep."""
    what = sdpa(b=1, h=2, l=20, s=37, d=16, causal=True)
    for text in EXAMPLE.values():
        tree = realised(parse_schedule(text), what)
        arrays = entry("sdpa").inputs(what, 3)
        got, meant = run(lower(tree, what), arrays), interp.values(tree, what, arrays)
        assert set(meant) <= set(got)
        for name, array in meant.items():
            if name != "M_p":  # the maximum of a slice may be kept with log2(e) folded in either way
                np.testing.assert_allclose(got[name].astype(np.float64), array, rtol=4e-3, atol=4e-3, err_msg=name)
