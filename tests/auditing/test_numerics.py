"""The numerics gate passes what is right, with margin, and fails each planted mistake, for the reason planted."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.fixtures.example_program import MUTANTS, TWIN, TWIN_WORKLOAD, mutant
from theodolite.auditing.gates.numerics import TOLERANCE, difference, numerics
from theodolite.auditing.manifest import GateResult
from theodolite.errors import KernelError
from theodolite.ir.workload import Workload
from theodolite.lowering.interpret import Interpreter
from theodolite.records import dump, load
from theodolite.workloads import entry, sdpa
from theodolite.workloads.sdpa import SPOTLIGHTS, visible

Arrays = Mapping[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]
Runner = Callable[[Arrays], Arrays]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as run:
        yield run


def test_the_example_passes_with_margin(interpreter: Interpreter) -> None:
    result = numerics(lambda arrays: interpreter(TWIN, arrays), TWIN_WORKLOAD, seed=0)
    assert result.passed, result.reason
    assert result.figures["probes"] == 3
    assert float(result.figures["head_relative_norm"]) < TOLERANCE.norm / 10
    assert load(GateResult, dump(result), "here") == result


REASONS = {
    "one element unwritten": r"2 elements of O are unwritten or not finite, the first at \[0, 0, 0, 5\]",
    "one element NaN": r"1 elements of O are unwritten or not finite, the first at \[0, 0, 1, 13\]",
    "input changed": "input K was changed",
    "written past the end": "writes outside of O",
}


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistakes_fail(interpreter: Interpreter, name: str) -> None:
    wrong = mutant(name, TWIN)
    result = numerics(lambda arrays: interpreter(wrong, arrays), TWIN_WORKLOAD, seed=0)
    assert not result.passed
    assert re.search(REASONS.get(name, "max abs error|relative norm"), result.reason), result.reason


def rounded(
    workload: Workload, mask: Mask | None = None, divide_early: bool = False, drop: slice | None = None
) -> Runner:
    """A NumPy kernel that rounds where ours do: fp16 weights into fp32 sums; with `divide_early`, the three-kernel
    form, whose scores and weights P / D are fp16 too."""
    seen = visible(workload) if mask is None else mask

    def run(arrays: Arrays) -> Arrays:
        q, k, v = (arrays[t].astype(np.float32) for t in "QKV")
        scores = q @ k.swapaxes(-1, -2) * np.float32(workload.einsum("S").scale)
        if divide_early:
            scores = scores.astype(np.float16).astype(np.float32)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        if drop is not None:
            weights[..., drop] = 0
        sums = weights.sum(-1, keepdims=True)
        if divide_early:
            out = (weights / sums).astype(np.float16).astype(np.float32) @ v
        else:
            out = weights.astype(np.float16).astype(np.float32) @ v / sums
        return {**arrays, "O": out.astype(np.float16)}

    return run


@pytest.mark.parametrize("divide_early", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "workload",
    [
        sdpa(b=1, h=2, l=64, s=64, d=16),
        sdpa(b=1, h=2, l=100, s=77, d=256),
        sdpa(b=2, h=2, l=96, s=200, d=128, causal=True),
        sdpa(b=1, h=2, l=4, s=4096, d=64),
        sdpa(b=1, h=2, l=1, s=30000, d=64),
        sdpa(b=1, h=2, l=1, s=1, d=64),
        sdpa(b=1, h=1, l=500, s=500, d=128, causal=True),
    ],
    ids=lambda w: w.name,
)
def test_rounding_to_fp16_is_no_false_alarm(workload: Workload, seed: int, divide_early: bool) -> None:
    result = numerics(rounded(workload, divide_early=divide_early), workload, seed)
    assert result.passed, result.reason
    assert float(result.figures["head_relative_norm"]) < TOLERANCE.norm / 2


def test_what_elementwise_tolerance_alone_lets_through() -> None:
    """64 of 8,192 keys dropped: within 2e-2 everywhere on random inputs, and 6 to 9 % off as a whole."""
    workload = sdpa(b=1, h=2, l=16, s=8192, d=64)
    run = rounded(workload, drop=slice(4096, 4160))
    arrays = entry("sdpa").inputs(workload, 0)
    found = difference(run(arrays)["O"], entry("sdpa").reference(workload, arrays)["O"], TOLERANCE)
    assert found.excess < 1
    assert found.relative_norm > 0.05
    assert "relative norm" in numerics(run, workload, 0).reason


@pytest.mark.parametrize("key", [0, 1, 5000, 8191])
def test_one_missing_key_of_thousands_shows(key: int) -> None:
    workload = sdpa(b=1, h=2, l=1, s=8192, d=64)
    assert not numerics(rounded(workload, drop=slice(key, key + 1)), workload, 0).passed


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize(("rows", "keys"), [(512, 512), (64, 2048)])
def test_a_diagonal_off_by_one_in_a_single_row_shows(rows: int, keys: int, shift: int) -> None:
    """On random inputs one key of hundreds weighs little, in one late row of many; a spotlight is needed."""
    workload = sdpa(b=1, h=2, l=rows, s=keys, d=64, causal=True)
    mask, row = visible(workload), rows - 2
    mask[row] = np.arange(keys) <= row + keys - rows + shift
    result = numerics(rounded(workload, mask=mask), workload, 0)
    assert not result.passed
    assert result.reason.startswith("spotlight"), result.reason


def test_one_wrong_head_cannot_hide_among_many() -> None:
    workload = sdpa(b=2, h=32, l=32, s=32, d=64)
    good = rounded(workload)

    def run(arrays: Arrays) -> Arrays:
        buffers = dict(good(arrays))
        buffers["O"][1, 3] *= np.float16(1.015)
        return buffers

    result = numerics(run, workload, 0)
    assert float(result.figures["relative_norm"]) < TOLERANCE.norm
    assert not result.passed
    assert "head 35" in result.reason


def _changes(change: Callable[[dict[str, Any]], object]) -> Runner:
    def run(arrays: Arrays) -> Arrays:
        buffers = {name: np.array(a) for name, a in rounded(TWIN_WORKLOAD)(arrays).items()}
        change(buffers)
        return buffers

    return run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda b: b.pop("O"), "output O is missing"),
        (lambda b: b.pop("K"), "input K was not handed back"),
        (lambda b: b.update(O=b["O"].astype(np.float32)), "output O is float32"),
        (lambda b: b.update(O=b["O"][:, :, :-1]), r"output O is float16 \[1, 2, 99, 64\]"),
        (lambda b: b["O"].__setitem__((0, 1, 2, 3), np.inf), r"1 elements .* the first at \[0, 1, 2, 3\]"),
        (lambda b: b["O"].__setitem__((0, 1, 2, 3), 9.0), "max abs error"),
        (lambda b: b["V"].__setitem__((0, 0, 0, 0), -b["V"][0, 0, 0, 0]), "input V was changed"),
    ],
)
def test_malformed_answers_fail(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    result = numerics(_changes(change), TWIN_WORKLOAD, 0)
    assert not result.passed
    assert re.search(reason, result.reason), result.reason


def test_the_unchanged_answer_passes() -> None:
    assert numerics(_changes(lambda b: None), TWIN_WORKLOAD, 0).passed


def test_inputs_changed_in_place_fail_though_clean_copies_come_back() -> None:
    def run(arrays: Arrays) -> Arrays:
        buffers = {name: np.array(a) for name, a in rounded(TWIN_WORKLOAD)(arrays).items()}
        arrays["Q"][0, 0, 0, 0] += 1
        return buffers

    assert numerics(run, TWIN_WORKLOAD, 0).reason == "random: input Q was changed"


def test_an_error_of_the_run_fails_the_gate() -> None:
    def run(arrays: Arrays) -> Arrays:
        raise KernelError("flash: not done within 2 s")

    result = numerics(run, TWIN_WORKLOAD, 0)
    assert (result.passed, result.reason) == (False, "random: flash: not done within 2 s")


def test_a_zero_reference_allows_only_zero() -> None:
    zero = np.zeros((1, 1, 4, 4))
    assert difference(zero.astype(np.float16), zero, TOLERANCE).fault(TOLERANCE) is None
    assert difference((zero + 1e-3).astype(np.float16), zero, TOLERANCE).fault(TOLERANCE) is not None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (33, 200), (1, 9), (1, 20000)])
def test_spotlights_look_at_every_key_or_are_few(rows: int, keys: int, causal: bool) -> None:
    workload = sdpa(b=1, h=1, l=rows, s=keys, d=16, causal=causal)
    offsets = [int(p.name.partition("+")[2]) for p in entry("sdpa").probes(workload, 0) if "+" in p.name]
    looked_at = {(row + offset) % keys for offset in offsets for row in range(rows)}
    assert {0, keys - 1} <= looked_at
    if keys <= rows * (SPOTLIGHTS - 1):
        assert looked_at == set(range(keys))
    assert len(offsets) <= SPOTLIGHTS + 2
