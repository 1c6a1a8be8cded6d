"""The ledger: what terms charge, resource by resource, and how that becomes seconds.

A term returns a `Charge`.  Work adds up, factors multiply, serial seconds add; so any subset of terms is a model.
A kernel takes the largest work * factor / rate of its resources, which overlap fully, plus its serial seconds; kernels
follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from theodolite.gpus.gpu import Gpu

Number = Any
Resource = Literal["HBM", "L2", "SMEM", "MMA", "MUFU", "FP32", "dispatch"]
RESOURCES: tuple[Resource, ...] = ("HBM", "L2", "SMEM", "MMA", "MUFU", "FP32", "dispatch")


@dataclass(frozen=True)
class Charge:
    """What one term charges one kernel.

    work: amount a resource (bytes, FLOP, lanes, CTAs); factors: by how much its rate drops; serial_s: seconds that
    nothing in the kernel hides, launches among them.
    """

    work: Mapping[Resource, Number] = field(default_factory=dict)
    factors: Mapping[Resource, Number] = field(default_factory=dict)
    serial_s: Number = 0.0


def rates(gpu: Gpu) -> dict[Resource, float]:
    """Work a second of each resource, over the whole GPU, at its best."""
    per_clock = gpu.sms * gpu.clock_hz
    return {
        "HBM": gpu.hbm_bytes_per_s,
        "L2": gpu.l2_bytes_per_s,
        "SMEM": gpu.smem_bytes_per_clk_sm * per_clock,
        "MMA": gpu.tensor_flop_per_clk_sm * per_clock,
        "MUFU": gpu.mufu_per_clk_sm * per_clock,
        "FP32": gpu.fp32_lanes_per_clk_sm * per_clock,
        "dispatch": 1 / gpu.dispatch_s_per_cta,
    }


def kernel_seconds(charges: Iterable[Charge], gpu: Gpu) -> Number:
    """Seconds of one kernel from what its terms charge."""
    work: dict[Resource, Number] = dict.fromkeys(RESOURCES, 0.0)
    factors: dict[Resource, Number] = dict.fromkeys(RESOURCES, 1.0)
    serial_s: Number = 0.0
    for charge in charges:
        for resource, amount in charge.work.items():
            work[resource] = work[resource] + amount
        for resource, factor in charge.factors.items():
            factors[resource] = factors[resource] * factor
        serial_s = serial_s + charge.serial_s
    rate = rates(gpu)
    busy: Number = 0.0
    for resource in RESOURCES:
        busy = np.maximum(busy, work[resource] * factors[resource] / rate[resource])
    return busy + serial_s
