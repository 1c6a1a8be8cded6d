"""NVIDIA GeForce RTX 4090 (Ada), from published figures; nothing here was measured by us."""

from __future__ import annotations

from theodolite.gpus.gpu import Gpu

_SPECS = "published specifications of the RTX 4090 (waredb.com, gigagpu.com); a lead"
_ADA = "CUDA programming guide, compute capability 8.9"
_THREE_LEVEL = "the three-level hierarchy of the published comparison"
_L40 = "RRZE-HPC/gpu-benches, gpu-small-kernels on an L40, the nearest Ada card; a lead"

GPU = Gpu(
    name="rtx4090",
    target=("cuda", 89, 32),
    sms=128,
    clock_hz=2.52e9,
    hbm_bytes=24e9,
    hbm_bytes_per_s=1008e9,
    l2_bytes=72 * 1024**2,
    l2_bytes_per_s=5000e9,
    smem_bytes_per_sm=100 * 1024,
    smem_bytes_per_cta=99 * 1024,
    smem_bytes_per_clk_sm=128,
    registers_per_sm=65536,
    max_registers_per_thread=255,
    max_warps_per_sm=48,
    max_ctas_per_sm=24,
    wgmma_flop_per_clk_sm=0,
    mma_flop_per_clk_sm=512,
    fp32_lanes_per_clk_sm=128,
    mufu_per_clk_sm=16,
    scalar_ops_per_s_sm=1e15,
    dispatch_s_per_cta=1 / 1.83e9,
    prologue_clk=636,
    epilogue_clk=296,
    first_launch_s=1.64e-6,
    further_launch_s=1.0e-6,
    peak_hbm_bytes_per_s=1008e9,
    peak_flop_per_s=330.3e12,
    sources={
        "sms": _SPECS,
        "clock_hz": _SPECS + ": boost clock",
        "hbm_bytes": _SPECS + ": 24 GB of GDDR6X",
        "hbm_bytes_per_s": _SPECS,
        "l2_bytes": _SPECS,
        "l2_bytes_per_s": _THREE_LEVEL + "; smallscientist1/cuda_microbenchmark reads 4.9 TB/s",
        "smem_bytes_per_sm": _ADA,
        "smem_bytes_per_cta": _ADA + ": 101,376 bytes",
        "smem_bytes_per_clk_sm": _THREE_LEVEL,
        "registers_per_sm": _ADA,
        "max_registers_per_thread": _ADA,
        "max_warps_per_sm": _ADA,
        "max_ctas_per_sm": _ADA,
        "wgmma_flop_per_clk_sm": "Ada has no wgmma",
        "mma_flop_per_clk_sm": "derived: 165.2e12 FLOP/s (fp16, fp32 accumulation) / 128 / 2.52e9; FLOP, not MAC",
        "fp32_lanes_per_clk_sm": _ADA,
        "mufu_per_clk_sm": _ADA,
        "scalar_ops_per_s_sm": _THREE_LEVEL + ": so high that it never binds",
        "dispatch_s_per_cta": _L40 + ": 1.83 CTAs a nanosecond",
        "prologue_clk": "markdewing/AI_kernels: DRAM latency 636 clocks, as a stand-in",
        "epilogue_clk": "markdewing/AI_kernels: L2 latency 296 clocks, as a stand-in",
        "first_launch_s": _L40 + ": a kernel in a stream",
        "further_launch_s": _L40 + ": a kernel in a graph, 0.95-1.07 us",
        "peak_hbm_bytes_per_s": _SPECS,
        "peak_flop_per_s": _SPECS + ": fp16 accumulation, which bounds fp32 accumulation at any clock the card reaches",
    },
)
