"""What a GPU has room for: each reason why a mapping does not fit, with where in a grid of decisions it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from theodolite.cost.profile import Profile
from theodolite.gpus.gpu import Gpu

Flags = Any
MAX_TILE_ELEMENTS = 2**20  # Triton's limit
MAX_GRID = 2**31 - 1
# Beyond this many registers a thread (255 are to be had) the assembler spills for minutes and the kernel is hopeless.
MAX_REGISTERS_WANTED = 1100


def capacity(profile: Profile, gpu: Gpu) -> dict[str, Flags]:
    """Reason -> flags, for the realised tree; empty flags are left out."""
    out: dict[str, Flags] = {}

    def add(reason: str, where: Flags) -> None:
        if np.any(where):
            out[reason] = np.logical_or(out.get(reason, False), where)

    for kernel in profile.kernels:
        limit = gpu.smem_bytes_per_cta
        add(f"kernel {kernel.name} needs more than {limit:,} bytes of shared memory a CTA", kernel.smem_bytes > limit)
        add(f"kernel {kernel.name} has a tile whose side is no power of two, as Triton's are", kernel.odd_tiles > 0)
        add(f"kernel {kernel.name} has a tile of more than 2^20 elements", kernel.tile_elements > MAX_TILE_ELEMENTS)
        add(
            f"kernel {kernel.name} wants more than {MAX_REGISTERS_WANTED} registers a thread",
            kernel.registers > MAX_REGISTERS_WANTED,
        )
        add(f"kernel {kernel.name} needs more than 2^31-1 CTAs", kernel.programs > MAX_GRID)
    total = profile.workspace_bytes + profile.io_bytes
    add(f"inputs, outputs and workspaces do not fit the GPU's {gpu.hbm_bytes / 1e9:,.0f} GB", total > gpu.hbm_bytes)
    return out
