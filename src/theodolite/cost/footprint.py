"""What a CTA of a kernel takes of an SM: shared memory and registers, estimated from its tiles.

Nothing here is measured: both formulas were read off kernels compiled ahead of time for Hopper (Triton 3.6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from theodolite.ir.steps import Clear, Contract, For, KernelSteps, Load, Step, flatten

Number = Any
LANES = 32  # threads a warp


def loops(steps: tuple[Step, ...]) -> list[For]:
    return [s for s in flatten(steps) if isinstance(s, For)]


def shared_bytes_of(
    kernel: KernelSteps,
    stages: Number,
    tile_bytes: Callable[[Load, For | None], Number],
    rows: Number | None,
) -> Number:
    """Shared memory of a CTA in bytes.

    Loads that feed a contraction inside a loop are buffered `stages` times (once where stages is 1: nothing is in
    flight, and buffers of one iteration are reused); an operand that stays, as Q does, is held once.
    """
    contractions = [s for s in flatten(kernel.steps) if isinstance(s, Contract)]
    if not contractions:
        return 0
    operands = {x for c in contractions for x in (c.a, c.b)}
    ring: Number = 0
    largest: Number = 0
    for loop in loops(kernel.steps):
        inner = [tile_bytes(s, loop) for s in loop.body if isinstance(s, Load) and s.value in operands]
        ring = ring + sum(inner)
        for size in inner:
            largest = np.maximum(largest, size)
    resident = sum(tile_bytes(s, None) for s in kernel.steps if isinstance(s, Load) and s.value in operands)
    single = ring if not any(isinstance(s, Load) for s in kernel.steps) else largest
    return resident + np.where(stages > 1, stages * ring, single)


def registers_of(kernel: KernelSteps, warps: Number, lanes_in: Callable[[str, For | None], Number]) -> Number:
    """Registers a thread would like, not capped: accumulators and the result of each contraction, spread over threads."""
    cleared = [s.value for s in kernel.steps if isinstance(s, Clear)]
    live: Number = sum(lanes_in(v, None) for v in cleared)
    for loop in loops(kernel.steps):
        for step in loop.body:
            if isinstance(step, Contract) and step.out not in cleared:
                live = live + lanes_in(step.out, loop)
    if not cleared:
        live = sum(2 * lanes_in(s.value, None) for s in kernel.steps if isinstance(s, Load))
    return 26 + 1.6 * live / (LANES * warps)
