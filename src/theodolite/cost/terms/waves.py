"""Waves: how well a grid fills the SMs.

With g CTAs on n SMs the busiest SM runs ceil(g / n) of them, so that a rate of the whole GPU is reached only in part:

    quantisation   ceil(g / n) * n / g
    unevenness     where CTAs differ (causal), the longest bounds the end: the share of one SM, plus what the longest
                   CTA has beyond the mean, over the share: 1 + n * (longest - mean) / total trips
    warps          the four tensor cores of an SM each serve their own warps: fewer than four resident warps leave some
                   of them, and of the other pipes, idle
    spills         registers beyond what a thread can have go to shared memory's pipe and back on each trip

The larger of the first two holds, since both say how long the busiest SM runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theodolite.cost.ledger import Charge
from theodolite.cost.occupancy import LANES, resident_ctas
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu

PARTITIONS = 4  # of an SM, each with a tensor core and pipes of its own
REGISTER_BYTES = 4


def price(
    gpu: Gpu, *, programs: Any, trips: Any, trips_longest: Any, warps: Any, smem_bytes: Any, registers: Any
) -> Charge:
    per_sm = np.ceil(programs / gpu.sms)
    quantised = per_sm * gpu.sms / programs
    mean = trips / programs
    uneven = 1 + gpu.sms * np.maximum(trips_longest - mean, 0) / np.maximum(trips, 1)
    active = np.minimum(resident_ctas(gpu, smem_bytes, registers, warps), per_sm) * warps
    idle = np.maximum(PARTITIONS / active, 1)
    factor = np.maximum(quantised, uneven) * idle
    spilled = np.maximum(registers - gpu.max_registers_per_thread, 0) * REGISTER_BYTES * LANES * warps
    return Charge({"SMEM": 2 * spilled * np.maximum(trips, programs)}, dict.fromkeys(("MMA", "MUFU", "FP32"), factor))


TERM = Term("waves", 50, price)
