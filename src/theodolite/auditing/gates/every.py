"""All gates of one candidate, as one job that a worker process can run.

compiles    ahead of time for the GPU, within a limit, within its shared memory
launches    the launch DAG: order, grids, who reads and writes what
fidelity    the compiled text does what the realised tree says, for all programs at full size
numerics    the twin's outputs are right, through Triton's interpreter; and the twin is faithful element by element
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from theodolite.auditing.gates.compiles import compiles
from theodolite.auditing.gates.fidelity import fidelity
from theodolite.auditing.gates.launches import check_launches
from theodolite.auditing.gates.numerics import numerics
from theodolite.auditing.manifest import GateResult
from theodolite.auditing.twin import make_twin
from theodolite.errors import KernelError, TheodoliteError
from theodolite.gpus import gpu
from theodolite.ir import interp
from theodolite.ir.events import Events, Ints
from theodolite.ir.scope import grid_counts
from theodolite.ir.steps import kernel_steps
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.lowering.compile import Compiled, compile_program, ttir
from theodolite.lowering.interpret import Interpreter
from theodolite.lowering.plan import Launch, Program
from theodolite.lowering.resources import Resources, resources

COMPILE_LIMIT_S = 90.0
RUN_LIMIT_S = 240.0


@dataclass(frozen=True)
class GateJob:
    """One candidate to be gated; `tree` is realised, and `seed` that of its inputs."""

    tree: Tree
    workload: Workload
    program: Program
    gpu: str
    seed: int


@dataclass(frozen=True)
class GateReport:
    """What the gates said, and what the compiler made of each kernel (empty where it did not compile)."""

    gates: tuple[GateResult, ...]
    resources: Mapping[str, Mapping[str, int]]


def run_gates(job: GateJob) -> GateReport:
    """Run every gate; one that cannot run fails with its reason.  Nothing raises but a mistake of ours."""
    compiled = _compile(job)
    used = {} if isinstance(compiled, str) else {n: resources(c) for n, c in compiled.items()}
    limit = gpu(job.gpu).smem_bytes_per_cta
    gates = [compiles(job.program, compiled, limit, used or None)]
    gates.append(_guarded("launches", lambda: _launches(job)))
    gates.append(_guarded("fidelity", lambda: _fidelity(job.tree, job.workload, job.program, full=False)))
    gates.append(_guarded("numerics", lambda: _twin(job)))
    return GateReport(tuple(gates), {n: _resource_record(r) for n, r in used.items()})


def _guarded(name: str, gate: Callable[[], GateResult]) -> GateResult:
    """A gate that cannot be run has not been passed."""
    try:
        return gate()
    except TheodoliteError as error:
        return GateResult(name, False, str(error), {})


def _compile(job: GateJob) -> Mapping[str, Compiled] | str:
    try:
        return compile_program(job.program, gpu(job.gpu).target, COMPILE_LIMIT_S)
    except KernelError as error:
        return str(error)


def _resource_record(used: Resources) -> dict[str, int]:
    return {
        "registers": used.registers,
        "stack_bytes": used.stack_bytes,
        "shared_bytes": used.shared_bytes,
        "wgmma": used.wgmma,
        "mma_sync": used.mma_sync,
    }


def implied_launches(tree: Tree, workload: Workload) -> tuple[Launch, ...]:
    """Kernels, grids, reads and writes that a realised tree implies; argument values are not part of it."""
    out = []
    for kernel in kernel_steps(tree, workload):
        programs = 1
        for count in grid_counts(kernel, workload, tree.decisions):
            programs *= int(count)
        reads = tuple(sorted({h.buffer for h in kernel.loads}))
        writes = tuple(sorted({h.buffer for h in kernel.stores}))
        out.append(Launch(kernel.name, (programs, 1, 1), {}, reads, writes))
    return tuple(out)


def _launches(job: GateJob) -> GateResult:
    expected: Sequence[Launch] = implied_launches(job.tree, job.workload)
    return check_launches(job.program, ttir(job.program, gpu(job.gpu).target), expected)


def _fidelity(tree: Tree, workload: Workload, program: Program, full: bool) -> GateResult:
    kernels = kernel_steps(tree, workload)

    def expected(launch: int, programs: Ints) -> Events:
        return interp.events(kernels[launch], workload, tree.decisions, programs)

    return fidelity(program, ttir(program, gpu(tree.gpu).target), expected, full)


def _twin(job: GateJob) -> GateResult:
    """Numerics of the twin; its structure is checked first, element by element, so that it may stand for the whole."""
    small = make_twin(job.tree, job.workload, job.program)
    faithful = _fidelity(small.tree, small.workload, small.program, full=True)
    if not faithful.passed:
        return GateResult("numerics", False, f"the twin is not faithful: {faithful.reason}", {})
    with Interpreter() as interpreter:
        result = numerics(
            lambda arrays: interpreter(small.program, arrays, RUN_LIMIT_S), small.workload, job.seed, packed=True
        )
    return GateResult("numerics", result.passed, result.reason, {**result.figures, "twin": small.workload.name})
