"""The compile gate: did every kernel compile in time, and will a GPU take the launches as they are written?

A grid axis that is too long can do nothing, silently; an argument that is not what its specialisation promises makes
the compiler's vector loads wrong.  Neither shows in the compiler, and the second not in the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from theodolite.auditing.manifest import GateResult
from theodolite.lowering.compile import Compiled
from theodolite.lowering.plan import Launch, Program
from theodolite.lowering.resources import Resources, resources

GATE = "compiles"
# CUDA programming guide, "Technical Specifications per Compute Capability": grid dimensions of x, y, z; threads a CTA
GRID_LIMITS = (2**31 - 1, 65535, 65535)
THREADS_PER_CTA = 1024
INTEGER_RANGES = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}


def compiles(
    program: Program,
    compiled: Mapping[str, Compiled] | str,
    shared_bytes_per_cta: int,
    used: Mapping[str, Resources] | None = None,
) -> GateResult:
    """Judge what `compile_many` answered for a program against a GPU's limits.

    `shared_bytes_per_cta` is the GPU's limit (232,448 on Hopper).  `used` saves reading the resources again.  Spills
    stand in the figures, as bytes a thread, and do not fail: they cost time, not correctness.
    """
    if isinstance(compiled, str):
        return GateResult(GATE, False, compiled, {})
    missing = [k.name for k in program.kernels if k.name not in compiled]
    if missing:
        return GateResult(GATE, False, f"{', '.join(missing)} not compiled", {})
    if used is None:
        used = {k.name: resources(compiled[k.name]) for k in program.kernels}
    figures: dict[str, float | int | str] = {}
    for kernel in program.kernels:
        figures[f"{kernel.name}.registers"] = used[kernel.name].registers
        figures[f"{kernel.name}.shared_bytes"] = compiled[kernel.name].shared_bytes
        figures[f"{kernel.name}.stack_bytes"] = used[kernel.name].stack_bytes
    faults = [*_kernel_faults(program, compiled, shared_bytes_per_cta), *_launch_faults(program)]
    return GateResult(GATE, not faults, "; ".join(faults), figures)


def _kernel_faults(program: Program, compiled: Mapping[str, Compiled], limit_bytes: int) -> Iterator[str]:
    for kernel in program.kernels:
        shared_bytes = compiled[kernel.name].shared_bytes
        if shared_bytes > limit_bytes:
            yield f"{kernel.name} takes {shared_bytes:,} B of shared memory a CTA, above {limit_bytes:,}"
        if 32 * kernel.num_warps > THREADS_PER_CTA:
            yield f"{kernel.name} has {kernel.num_warps} warps, above {THREADS_PER_CTA // 32}"


def _launch_faults(program: Program) -> Iterator[str]:
    if not program.launches:
        yield "the program launches nothing"
    kernels = {k.name for k in program.kernels}
    for launch in program.launches:
        if launch.kernel not in kernels:
            yield f"launch of {launch.kernel}, which the program does not define"
            continue
        for axis, size, limit in zip("xyz", launch.grid, GRID_LIMITS, strict=True):
            if not 1 <= size <= limit:
                yield f"{launch.kernel}: grid {axis} of {size:,} is outside 1 to {limit:,}"
        yield from _argument_faults(program, launch)


def _argument_faults(program: Program, launch: Launch) -> Iterator[str]:
    kernel = program.kernel(launch.kernel)
    types = {p.name: p.type for p in kernel.params if p.type != "constexpr"}
    for name in types.keys() ^ launch.args.keys():
        yield f"{kernel.name}: {name} is {'not given' if name in types else 'given and no parameter'}"
    divisible = {kernel.params[i].name for i in kernel.divisible_by_16}
    for name in [n for n in types if n in launch.args]:
        fault = _value_fault(types[name], launch.args[name], name in divisible, program)
        if fault:
            yield f"{kernel.name}: {name}={launch.args[name]} {fault}"


def _value_fault(declared: str, value: Any, divisible: bool, program: Program) -> str | None:
    if declared.startswith("*"):
        # allocations are aligned to 256 bytes, so that a whole buffer keeps its mark
        dtypes = [b.dtype for b in program.buffers if b.name == value]
        return None if dtypes == [declared[1:]] else f"names no buffer of type {declared[1:]}"
    if declared in INTEGER_RANGES:
        low, high = INTEGER_RANGES[declared]
        if not isinstance(value, int) or not low <= value <= high:
            return f"does not fit {declared}"
        return "is marked divisible by 16 and is not" if divisible and value % 16 else None
    if declared == "fp32":
        return None if isinstance(value, int | float) else "is no number"
    return f"has the unknown type {declared}"
