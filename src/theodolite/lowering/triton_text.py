"""Realised kernel -> the text of one Triton function, and what it is launched with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from theodolite.ir.steps import KernelSteps
from theodolite.ir.workload import Workload
from theodolite.lowering.emitter import Emitter
from theodolite.lowering.plan import KernelSpec, Param
from theodolite.lowering.rules import print_steps
from theodolite.lowering.rules.control import grid


@dataclass(frozen=True)
class PrintedKernel:
    """One function's text, its specification, and the values of its runtime numbers."""

    text: str
    spec: KernelSpec
    numbers: Mapping[str, int | float]
    tile_elements: tuple[int, ...]


def print_kernel(kernel: KernelSteps, workload: Workload, decisions: Mapping[str, Any]) -> PrintedKernel:
    """Print one kernel by the lowering rules; the same input gives the same text."""
    emitter = Emitter(kernel, workload, decisions)
    grid(emitter)
    print_steps(kernel.steps, emitter)
    params = _params(emitter)
    names = ", ".join(f"{p.name}: tl.constexpr" if p.type == "constexpr" else p.name for p in params)
    text = "\n".join(["@triton.jit", f"def {kernel.name}({names}):", *emitter.lines]) + "\n"
    spec = KernelSpec(
        kernel.name,
        params,
        dict(sorted(emitter.constexprs.items())),
        _divisible(params, emitter.numbers),
        _number(kernel.warps, decisions),
        _number(kernel.stages, decisions),
    )
    return PrintedKernel(text, spec, dict(emitter.numbers), tuple(emitter.tile_elements))


def _number(value: Any, decisions: Mapping[str, Any]) -> int:
    return int(value if isinstance(value, int) else decisions[value.name])


def _params(emitter: Emitter) -> tuple[Param, ...]:
    """Pointers in the order of first use, then numbers, then constexprs, each by name."""
    pointers = [Param(n, t) for n, t in emitter.pointers.items()]
    numbers = [Param(n, number_type(v)) for n, v in sorted(emitter.numbers.items())]
    return (*pointers, *numbers, *(Param(n, "constexpr") for n in sorted(emitter.constexprs)))


def number_type(value: int | float) -> str:
    if isinstance(value, float):
        return "fp32"
    return "i32" if value < 2**31 else "i64"


def _divisible(params: tuple[Param, ...], numbers: Mapping[str, int | float]) -> tuple[int, ...]:
    """Buffers are 16-byte aligned; a whole number is marked where 16 divides it."""
    return tuple(
        i
        for i, p in enumerate(params)
        if p.type.startswith("*") or (p.type in ("i32", "i64") and numbers[p.name] % 16 == 0)
    )
