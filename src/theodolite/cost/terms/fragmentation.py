"""Fragmentation: what it costs to cut work into CTAs and tiles.

dispatch   a CTA costs the GPU's dispatcher a fixed time, whatever the CTA does
serial     a CTA's first loads and last stores hide behind other CTAs of the same SM, not behind themselves: one
           prologue (off-chip latency) and one epilogue (L2 latency) for each round of resident CTAs
MMA        tiles of fewer than 64 rows, or warps that make no group of four, run on mma.sync at its lower rate:
           factor = (wgmma FLOP + mma FLOP * rate ratio) / FLOP
FP32       a contraction tile below 16 never reaches the tensor cores: a multiply and an add a lane
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theodolite.cost.ledger import Charge
from theodolite.cost.occupancy import resident_ctas
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(
    gpu: Gpu,
    *,
    programs: Any,
    warps: Any,
    smem_bytes: Any,
    registers: Any,
    flops: Any,
    flops_mma: Any,
    contraction_fp32: Any,
) -> Charge:
    resident = resident_ctas(gpu, smem_bytes, registers, warps)
    rounds = np.ceil(programs / (gpu.sms * resident))
    latency_s = (gpu.prologue_clk + gpu.epilogue_clk) / gpu.clock_hz
    slower = gpu.tensor_flop_per_clk_sm / gpu.mma_flop_per_clk_sm - 1
    factor = 1 + slower * flops_mma / np.maximum(flops, 1)
    return Charge({"dispatch": programs, "FP32": contraction_fp32}, {"MMA": factor}, rounds * latency_s)


TERM = Term("fragmentation", 20, price)
