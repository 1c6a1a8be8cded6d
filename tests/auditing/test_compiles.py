"""The compile gate: limits hold to the last byte, and launches that a GPU would refuse or misread fail."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fixtures.example_program import CASE_A
from theodolite.auditing.gates.compiles import compiles
from theodolite.lowering.compile import Compiled, compile_program
from theodolite.lowering.plan import Program
from theodolite.lowering.resources import Resources

HOPPER_SHARED_BYTES = 232_448
FLASH = CASE_A.launches[0]
PLAIN = {k.name: Compiled(k.name, "", "", b"", 24576) for k in CASE_A.kernels}
USED = {k.name: Resources(82, 0, 24576, 0, 0, 0) for k in CASE_A.kernels}


def test_the_example_passes_and_reports_its_resources() -> None:
    result = compiles(CASE_A, compile_program(CASE_A), HOPPER_SHARED_BYTES)
    assert result.passed, result.reason
    assert result.figures["flash.registers"] == 82
    assert result.figures["flash.shared_bytes"] == 24576
    assert result.figures["flash_merge.stack_bytes"] == 0


@pytest.mark.parametrize(("limit_bytes", "passes"), [(24576, True), (24575, False)])
def test_shared_memory_limit(limit_bytes: int, passes: bool) -> None:
    result = compiles(CASE_A, PLAIN, limit_bytes, USED)
    assert result.passed is passes
    assert passes or "flash takes 24,576 B of shared memory" in result.reason


def test_spills_are_reported_and_pass() -> None:
    used = {**USED, "flash": replace(USED["flash"], stack_bytes=640)}
    result = compiles(CASE_A, PLAIN, HOPPER_SHARED_BYTES, used)
    assert result.passed
    assert result.figures["flash.stack_bytes"] == 640


def test_an_error_and_a_missing_kernel_fail() -> None:
    assert compiles(CASE_A, "flash: not done within 60 s", HOPPER_SHARED_BYTES).reason == "flash: not done within 60 s"
    result = compiles(CASE_A, {"flash": PLAIN["flash"]}, HOPPER_SHARED_BYTES, USED)
    assert (result.passed, result.reason) == (False, "flash_merge not compiled")


def _launch(**fields: Any) -> Program:
    return replace(CASE_A, launches=(replace(FLASH, **fields), *CASE_A.launches[1:]))


@pytest.mark.parametrize("grid", [(2**31 - 1, 1, 1), (1, 65535, 65535)])
def test_the_largest_grids_pass(grid: tuple[int, int, int]) -> None:
    assert compiles(_launch(grid=grid), PLAIN, HOPPER_SHARED_BYTES, USED).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (_launch(grid=(2**31, 1, 1)), "grid x of 2,147,483,648"),
        (_launch(grid=(1, 65536, 1)), "grid y of 65,536"),
        (_launch(grid=(1, 1, 65536)), "grid z of 65,536"),
        (_launch(grid=(0, 1, 1)), "grid x of 0"),
        (_launch(kernel="other"), "launch of other"),
        (_launch(args={**FLASH.args, "S": 100}), "flash: S=100 is marked divisible by 16 and is not"),
        (_launch(args={**FLASH.args, "BH": 2**31}), "flash: BH=2147483648 does not fit i32"),
        (_launch(args={**FLASH.args, "BH": 8.0}), "flash: BH=8.0 does not fit i32"),
        (_launch(args={**FLASH.args, "K": "A_p"}), "flash: K=A_p names no buffer of type fp16"),
        (_launch(args={**FLASH.args, "K": "X"}), "flash: K=X names no buffer"),
        (_launch(args={k: v for k, v in FLASH.args.items() if k != "L"}), "flash: L is not given"),
        (_launch(args={**FLASH.args, "BM": 64}), "flash: BM is given and no parameter"),
        (replace(CASE_A, launches=()), "launches nothing"),
        (replace(CASE_A, kernels=(replace(CASE_A.kernels[0], num_warps=64), CASE_A.kernels[1])), "64 warps"),
    ],
)
def test_launches_that_a_gpu_would_refuse_or_misread_fail(program: Program, reason: str) -> None:
    result = compiles(program, PLAIN, HOPPER_SHARED_BYTES, USED)
    assert not result.passed
    assert reason in result.reason
