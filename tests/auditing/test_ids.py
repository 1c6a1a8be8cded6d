"""What moves an id and what does not, and the worked example's ids to the last digit."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.example_program import CASE_A, CASE_A_WORKLOAD
from theodolite.auditing.ids import input_record, kernel_id, prediction_id, source_hash
from theodolite.errors import KernelError, Unsupported
from theodolite.ir.workload import Workload
from theodolite.lowering.compile import HOPPER, ttir
from theodolite.lowering.plan import Program

INPUTS = input_record(CASE_A_WORKLOAD, 0)
TTIR = ttir(CASE_A)
ID, RECORD = kernel_id(CASE_A, TTIR, HOPPER, INPUTS)
TERMS = ("traffic", "compute", "splitk", "fragmentation", "softmax", "launch", "waves")
CONSTANTS: dict[str, float] = {
    "hbm_bytes_per_s": 4.0e12,
    "l2_bytes_per_s": 10e12,
    "sms": 132,
    "clock_hz": 1.755e9,
    "wgmma_flop_per_clk_sm": 4096,
    "mufu_per_clk_sm": 16,
    "fp32_lanes_per_clk_sm": 128,
    "dispatch_s_per_cta": 0.60e-9,
    "prologue_clk": 570,
    "epilogue_clk": 260,
    "first_launch_s": 4.2e-6,
    "further_launch_s": 0.94e-6,
}
SECONDS = 6.487276945868945e-06


def test_the_example_s_ids() -> None:
    assert ID == "476177fd612af1608e21885a9d9676be9affe9528ba6635992a951090b2f4b9e"
    assert prediction_id(ID, "CORRECTED", TERMS, CONSTANTS, SECONDS).startswith("83b8ef9671a5")


def test_the_record_lists_what_the_example_lists() -> None:
    assert set(RECORD) == {"ttir", "specialisation", "options", "target", "launches", "workspaces", "inputs"}
    assert RECORD["workspaces"] == {"A_p": ["fp32", 131072], "M_p": ["fp32", 2048], "D_p": ["fp32", 2048]}
    assert RECORD["specialisation"]["flash"]["divisible_by_16"] == [0, 1, 2, 3, 4, 5, 8, 9, 10]


def test_comments_and_blanks_move_the_source_hash_alone() -> None:
    text = CASE_A.source.replace("    pid = ", "\n    # a remark\n    pid  =  ") + "\n\n# the end\n"
    changed = replace(CASE_A, source=text)
    assert source_hash(text) != source_hash(CASE_A.source)
    assert kernel_id(changed, ttir(changed), HOPPER, INPUTS)[0] == ID


def test_a_change_of_what_the_kernel_does_moves_the_id() -> None:
    changed = replace(CASE_A, source=CASE_A.source.replace("float16), v, a * r", "float16), v, a + r"))
    assert kernel_id(changed, ttir(changed), HOPPER, INPUTS)[0] != ID


def _kernel(**fields: Any) -> Program:
    return replace(CASE_A, kernels=(replace(CASE_A.kernels[0], **fields), *CASE_A.kernels[1:]))


def _launch(**fields: Any) -> Program:
    return replace(CASE_A, launches=(replace(CASE_A.launches[0], **fields), *CASE_A.launches[1:]))


FLASH = CASE_A.launches[0]


@pytest.mark.parametrize(
    "changed",
    [
        _kernel(num_warps=8),
        _kernel(num_stages=3),
        _kernel(divisible_by_16=(0, 1, 2)),
        _kernel(constexprs={"BM": 64, "BN": 64, "F": 64}),
        _kernel(params=(replace(CASE_A.kernels[0].params[0], type="*fp32"), *CASE_A.kernels[0].params[1:])),
        _launch(grid=(32, 1, 2)),
        _launch(args={**FLASH.args, "S_SLICE": 32}),
        _launch(args={**FLASH.args, "K": "V", "V": "K"}),
        _launch(reads=("Q", "K")),
        _launch(writes=("A_p", "M_p")),
        replace(CASE_A, launches=CASE_A.launches[::-1]),
        replace(CASE_A, launches=CASE_A.launches[:1]),
        replace(CASE_A, buffers=CASE_A.buffers[:-1]),
    ],
)
def test_every_part_of_a_program_moves_the_id(changed: Program) -> None:
    assert kernel_id(changed, TTIR, HOPPER, INPUTS)[0] != ID


def test_target_seed_and_order_of_the_inputs_move_the_id() -> None:
    swapped = input_record(replace(CASE_A_WORKLOAD, inputs=("Q", "V", "K")), 0)
    for target, inputs in (
        (("cuda", 89, 32), INPUTS),
        (HOPPER, input_record(CASE_A_WORKLOAD, 1)),
        (HOPPER, swapped),
    ):
        assert kernel_id(CASE_A, TTIR, target, inputs)[0] != ID


@given(name=st.sampled_from(sorted(CONSTANTS)), factor=st.floats(1.001, 1e3))
def test_a_constant_moves_the_prediction_alone(name: str, factor: float) -> None:
    one = prediction_id(ID, "CORRECTED", TERMS, CONSTANTS, SECONDS)
    other = {**CONSTANTS, name: CONSTANTS[name] * factor}
    assert prediction_id(ID, "CORRECTED", TERMS, other, SECONDS) != one
    assert kernel_id(CASE_A, TTIR, HOPPER, INPUTS)[0] == ID


def test_every_part_of_a_prediction_moves_its_id() -> None:
    variants = {
        prediction_id(ID, "CORRECTED", TERMS, CONSTANTS, SECONDS),
        prediction_id("0" * 64, "CORRECTED", TERMS, CONSTANTS, SECONDS),
        prediction_id(ID, "BASELINE", TERMS, CONSTANTS, SECONDS),
        prediction_id(ID, "CORRECTED", TERMS[:-1], CONSTANTS, SECONDS),
        prediction_id(ID, "CORRECTED", TERMS, CONSTANTS, SECONDS * 2),
    }
    assert len(variants) == 5


@pytest.mark.parametrize("text", [{}, {"flash": ""}, {**TTIR, "extra": ""}])
def test_ttir_and_kernels_have_to_agree(text: dict[str, str]) -> None:
    with pytest.raises(KernelError):
        kernel_id(CASE_A, text, HOPPER, INPUTS)


def test_an_input_that_is_not_fp16_is_refused() -> None:
    tensors = tuple(replace(t, dtype="i32") if t.name == "K" else t for t in CASE_A_WORKLOAD.tensors)
    odd: Workload = replace(CASE_A_WORKLOAD, tensors=tensors)
    with pytest.raises(Unsupported, match="K"):
        input_record(odd, 0)
