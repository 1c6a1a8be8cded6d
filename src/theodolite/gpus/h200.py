"""NVIDIA H200 SXM (Hopper), at the clock that a mixed load holds."""

from __future__ import annotations

from theodolite.gpus.gpu import Gpu

_MEASURED = "measured on an H200 (torch 2.11.0+cu130, triton 3.6.0)"
_GUIDE = "NVIDIA Hopper tuning guide, docs.nvidia.com/cuda/hopper-tuning-guide"
_STUDY = "microbenchmarks published for the H100 SXM5 (CUDA Performance Study); a lead"

GPU = Gpu(
    name="h200",
    target=("cuda", 90, 32),
    sms=132,
    clock_hz=1.755e9,
    hbm_bytes=141e9,
    hbm_bytes_per_s=4.0e12,
    l2_bytes=60 * 1024**2,
    l2_bytes_per_s=10e12,
    smem_bytes_per_sm=228 * 1024,
    smem_bytes_per_cta=227 * 1024,
    smem_bytes_per_clk_sm=128,
    registers_per_sm=65536,
    max_registers_per_thread=255,
    max_warps_per_sm=64,
    max_ctas_per_sm=32,
    wgmma_flop_per_clk_sm=4096,
    mma_flop_per_clk_sm=0.62 * 4096,
    fp32_lanes_per_clk_sm=128,
    mufu_per_clk_sm=16,
    scalar_ops_per_s_sm=1e15,
    dispatch_s_per_cta=0.60e-9,
    prologue_clk=570,
    epilogue_clk=260,
    first_launch_s=4.2e-6,
    further_launch_s=0.94e-6,
    peak_hbm_bytes_per_s=4.8e12,
    peak_flop_per_s=132 * 4096 * 1.98e9,
    sources={
        "sms": _MEASURED + ": device properties",
        "clock_hz": "chosen between the 1.41 GHz of a power-bound matmul and the 1.98 GHz of a light load",
        "hbm_bytes": "NVIDIA H200 datasheet: 141 GB",
        "hbm_bytes_per_s": _MEASURED + ": copies of 512 MB to 2 GB, read and write, 4.0-4.1 TB/s",
        "l2_bytes": _MEASURED + ": device properties; bandwidth falls from about 40 MB of working set on",
        "l2_bytes_per_s": "RRZE-HPC/gpu-benches, gpu-l2-cache on an H200: 9.7-10.2 TB/s up to 33 MB; a lead",
        "smem_bytes_per_sm": _GUIDE,
        "smem_bytes_per_cta": _GUIDE,
        "smem_bytes_per_clk_sm": "RRZE-HPC/gpu-benches: 128 bytes a clock and SM; a lead",
        "registers_per_sm": _GUIDE,
        "max_registers_per_thread": _GUIDE,
        "max_warps_per_sm": _GUIDE,
        "max_ctas_per_sm": _GUIDE,
        "wgmma_flop_per_clk_sm": "derived from FlashAttention-3, arXiv 2407.08608: 989.4e12 / 132 / 1.83e9",
        "mma_flop_per_clk_sm": "arXiv 2402.13499: mma.sync reaches about 62 % of the wgmma peak on Hopper; a lead",
        "fp32_lanes_per_clk_sm": _STUDY,
        "mufu_per_clk_sm": "FlashAttention-3, arXiv 2407.08608: 3.9e12 exponentials a second",
        "scalar_ops_per_s_sm": "the three-level hierarchy of the published comparison: so high that it never binds",
        "dispatch_s_per_cta": _MEASURED + ": empty grids of 0.13 to 13 million CTAs, the same for 1 to 8 warps",
        "prologue_clk": _STUDY + ": one HBM latency, 570 clocks, as a stand-in",
        "epilogue_clk": _STUDY + ": one L2 latency, 260 clocks, as a stand-in",
        "first_launch_s": _MEASURED + ": a graph of one empty kernel behind a full queue, event pair included",
        "further_launch_s": _MEASURED + ": graphs of 1 to 32 empty kernels behind a full queue",
        "peak_hbm_bytes_per_s": "NVIDIA H200 datasheet: 4.8 TB/s",
        "peak_flop_per_s": "132 SMs x 4,096 FLOP at the highest clock seen, 1.98 GHz; the datasheet says 989e12",
    },
)
