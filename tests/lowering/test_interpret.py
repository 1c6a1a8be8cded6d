"""The interpreter: right results, poison where nothing was written, and one program's crash is its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.fixtures.example_program import CASE_A, CASE_A_WORKLOAD, TWIN, TWIN_WORKLOAD, mutant, program
from theodolite.errors import KernelError
from theodolite.lowering.interpret import Interpreter
from theodolite.lowering.plan import Program
from theodolite.workloads import entry, sdpa

LOOPS = replace(
    TWIN, source=TWIN.source.replace("range(0, SPLIT)", "range(0, 1000000000)").replace("row += BH * L", "row += 0")
)
TRAPS = replace(TWIN, source=TWIN.source.replace("tl.store(M_p + row", "tl.store(M_p + (row + (1 << 50))"))
DIES = replace(TWIN, source="import os\nos.abort()\n" + TWIN.source)
INPUTS = entry("sdpa").inputs(TWIN_WORKLOAD, 0)


@pytest.fixture(scope="module")
def run() -> Iterator[Interpreter]:
    with Interpreter() as interpreter:
        yield interpreter


def test_case_a_gives_the_example_s_errors(run: Interpreter) -> None:
    arrays = entry("sdpa").inputs(CASE_A_WORKLOAD, 0)
    buffers = run(CASE_A, arrays)
    reference = entry("sdpa").reference(CASE_A_WORKLOAD, arrays)["O"]
    error = buffers["O"] - reference
    assert np.abs(error).max() == pytest.approx(2.99e-4, rel=5e-3)
    assert np.linalg.norm(error) / np.linalg.norm(reference) == pytest.approx(2.61e-4, rel=5e-3)
    assert {n: b.shape for n, b in buffers.items()} == {b.name: b.shape for b in CASE_A.buffers}
    assert all(np.isfinite(b).all() for b in buffers.values())
    assert all(buffers[t].tobytes() == arrays[t].tobytes() for t in arrays)


@pytest.mark.parametrize(("rows", "keys", "split"), [(33, 200, 4), (17, 5, 4), (1, 1, 1)])
def test_ragged_sizes_and_empty_slices(run: Interpreter, rows: int, keys: int, split: int) -> None:
    workload = sdpa(b=1, h=3, l=rows, s=keys, d=64)
    arrays = entry("sdpa").inputs(workload, 0)
    reference = entry("sdpa").reference(workload, arrays)["O"]
    got = run(program(workload, split=split), arrays)["O"]
    assert np.linalg.norm(got - reference) / np.linalg.norm(reference) < 5e-4


def test_what_nobody_writes_stays_poisoned(run: Interpreter) -> None:
    flash_only = replace(TWIN, launches=TWIN.launches[:1])
    buffers = run(flash_only, INPUTS)
    assert np.isnan(buffers["O"]).all()
    assert np.isfinite(buffers["A_p"]).all()
    one = run(mutant("one element unwritten", TWIN), INPUTS)["O"]
    assert np.argwhere(np.isnan(one)).tolist() == [[0, 0, 0, 5], [0, 1, 0, 5]]


def test_a_write_outside_of_a_buffer_is_seen(run: Interpreter) -> None:
    with pytest.raises(KernelError, match="flash_merge, interpreted: writes outside of O"):
        run(mutant("written past the end", TWIN), INPUTS)


@pytest.mark.parametrize(
    ("broken", "limit_s", "message"),
    [(LOOPS, 2.0, "not done within 2 s"), (DIES, 60.0, "SIGABRT"), (TRAPS, 60.0, "SIGSEGV")],
)
def test_a_hang_or_a_crash_costs_one_run(run: Interpreter, broken: Program, limit_s: float, message: str) -> None:
    before = run(TWIN, INPUTS)["O"]
    begun_s = time.monotonic()
    with pytest.raises(KernelError, match=message):
        run(broken, INPUTS, limit_s)
    assert time.monotonic() - begun_s < 20
    np.testing.assert_array_equal(run(TWIN, INPUTS)["O"], before)


def test_a_kernel_s_own_error_is_one_line_and_names_it(run: Interpreter) -> None:
    broken = replace(TWIN, source=TWIN.source.replace("tl.trans(k)", "tl.no_such_function(k)"))
    with pytest.raises(KernelError, match=r"flash, interpreted: .*no_such_function") as caught:
        run(broken, INPUTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: {"Q": a["Q"], "K": a["K"]},
        lambda a: {**a, "V": a["V"].astype(np.float32)},
        lambda a: {**a, "V": a["V"][:, :, 1:]},
    ],
)
def test_inputs_that_do_not_fit_are_refused(run: Interpreter, spoil: object) -> None:
    with pytest.raises(KernelError, match="input V"):
        run(TWIN, spoil(INPUTS))  # type: ignore[operator]


def test_the_worker_s_printing_does_not_disturb_its_answers(run: Interpreter) -> None:
    loud = replace(TWIN, source="print('x' * 100000)\n" + TWIN.source)
    np.testing.assert_array_equal(run(loud, INPUTS)["O"], run(TWIN, INPUTS)["O"])


def test_the_worker_goes_when_its_parent_does() -> None:
    script = (
        "import os\n"
        "from tests.fixtures.example_program import TWIN, TWIN_WORKLOAD\n"
        "from theodolite.lowering.interpret import Interpreter\n"
        "from theodolite.workloads import entry\n"
        "run = Interpreter()\n"
        "run(TWIN, entry('sdpa').inputs(TWIN_WORKLOAD, 0))\n"
        "print(run._worker._process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    deadline_s = time.monotonic() + 10
    while _alive(int(done.stdout)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not _alive(int(done.stdout))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"  # a zombie is dead, only not yet waited for
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_importing_theodolite_needs_neither_triton_nor_torch() -> None:
    modules = "lowering.compile lowering.resources lowering.interpret auditing.ids auditing.gates.numerics"
    names = ", ".join(f"theodolite.{m}" for m in (*modules.split(), "auditing.gates.compiles"))
    script = f"import sys, {names}; sys.exit('triton' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
