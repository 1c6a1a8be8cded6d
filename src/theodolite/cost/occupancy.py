"""How many CTAs of a kernel an SM holds at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from theodolite.gpus.gpu import Gpu

Number = Any
LANES = 32  # threads a warp
RESERVED_SMEM_BYTES = 1024  # the driver keeps 1 KB of shared memory a CTA (Hopper tuning guide)


def resident_ctas(gpu: Gpu, smem_bytes: Number, registers: Number, warps: Number) -> Number:
    """CTAs an SM holds: bounded by shared memory, registers, warps and a fixed number; at least one."""
    by_smem = gpu.smem_bytes_per_sm // (smem_bytes + RESERVED_SMEM_BYTES)
    held = np.minimum(registers, gpu.max_registers_per_thread)
    by_registers = gpu.registers_per_sm // (held * LANES * warps)
    by_warps = gpu.max_warps_per_sm // warps
    fewest = np.minimum(np.minimum(by_smem, by_registers), np.minimum(by_warps, gpu.max_ctas_per_sm))
    return np.maximum(fewest, 1)
