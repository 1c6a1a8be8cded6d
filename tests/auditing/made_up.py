"""Runs that nobody made: small manifests and samples for the tests of ranking, judging and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from theodolite.auditing.manifest import FORMAT, Candidate, GateResult, Manifest, Model, Prediction, Samples, Timing
from theodolite.lowering.plan import Buffer, KernelSpec, Launch, Param, Program

MODELS = ("BASELINE", "CORRECTED")
PASSED = (GateResult("numerics", True, "", {"relative_norm": 3e-4}), GateResult("fidelity", True, "", {"dots": 64}))
FAILED = (PASSED[0], GateResult("fidelity", False, "dots differ: 32 executed, 64 wanted <by the tree>", {"dots": 32}))
ON_GPU = (GateResult("numerics random", True, "", {"relative_norm": 3e-4}),)
SOURCE = """import triton
import triton.language as tl


@triton.jit
def copy(X, Y, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) < 1 & N:  # a source has <, > and & in it
        tl.store(Y + i, tl.load(X + i, mask=i < N), mask=i < N)
"""


def program(name: str = "copy") -> Program:
    """A program of one kernel that copies."""
    params = (Param("X", "*fp16"), Param("Y", "*fp16"), Param("N", "i32"), Param("BLOCK", "constexpr"))
    kernel = KernelSpec(name, params, {"BLOCK": 64}, (0, 1), 4, 2)
    buffers = (Buffer("Q", "fp16", (128,), "input"), Buffer("O", "fp16", (128,), "output"))
    launch = Launch(name, (2, 1, 1), {"X": "Q", "Y": "O", "N": 128}, ("Q",), ("O",))
    return Program("sdpa:b=1,h=8,l=128,s=128,d=64", SOURCE, (kernel,), buffers, (launch,))


def prediction(model: str, value: float | str) -> Prediction:
    """Seconds, or the reason why there are none."""
    if isinstance(value, str):
        return Prediction(model, None, value, {}, None)
    return Prediction(model, value, None, {"traffic": value / 2, "compute": value / 2}, f"{model.lower():0<12}")


def candidate(
    name: str,
    predictions: Mapping[str, float | str],
    *,
    case: str = "sdpa:A",
    gates: tuple[GateResult, ...] = PASSED,
    fusion: str = "none",
    schedule: str | None = None,
    origin: Sequence[str] = ("random 1",),
) -> Candidate:
    """A candidate with these predictions by model."""
    return Candidate(
        id=name,
        case=case,
        origin=tuple(origin),
        schedule=schedule or "flash:bm=64,bn=32,split=2,warps=4,stages=2",
        fusion=fusion,
        mapping=f"abstract {name}\nHBM Q K V O\ntemporal b/1",
        realised=f"realised {name}\nHBM Q K V O\nkernel copy warps=4",
        refinements=(("gridfold", "temporal b/1 above the kernel boundary joins the grid"),),
        program=program(),
        kernel_id=f"{name}-kernel-{'0' * 40}",
        predictions=tuple(prediction(m, v) for m, v in predictions.items()),
        gates=gates,
        resources={"copy": {"registers": 82, "spills_bytes": 0, "shared_bytes": 24576}},
    )


def manifest(candidates: Sequence[Candidate], models: Sequence[str] = MODELS) -> Manifest:
    """A frozen run of these candidates."""
    return Manifest(
        format=FORMAT,
        run_id="run-1",
        gpu="h200",
        seed=0,
        cases={c.case: "sdpa:b=1,h=8,l=128,s=128,d=64" for c in candidates},
        models=tuple(Model(m, ("traffic", "compute"), {"hbm_bytes_per_s": 4.0e12}) for m in models),
        toolchain={"triton": "3.6.0"},
        candidates=tuple(candidates),
        space={"sdpa:A": {"size": 1234}},
    )


def noisy(median_s: float, rounds: int = 60, seed: int = 0, noise: float = 0.01) -> tuple[float, ...]:
    """Samples about a median with multiplicative noise."""
    return tuple(float(x) for x in median_s * np.exp(np.random.default_rng(seed).normal(0, noise, rounds)))


def timing(of: Candidate, median_s: float, *, seed: int = 0, name: str | None = None, status: str = "ok") -> Timing:
    """What the GPU might have said of a candidate."""
    samples_s = noisy(median_s, seed=seed) if status == "ok" else ()
    return Timing(name or of.id, of.kernel_id, status, "" if status == "ok" else "as planted", ON_GPU, samples_s)


def samples(timings: Sequence[Timing], run_id: str = "run-1", **environment: object) -> Samples:
    """A recording with a tick of 32 ns unless told otherwise."""
    known = {"event_tick_s": 32e-9, "device": "NVIDIA H200", "rounds": 60}
    return Samples(FORMAT, run_id, known | environment, tuple(timings))


def demo(count: int = 24, seed: int = 3) -> tuple[Manifest, Samples]:
    """Two cases: flash, split and pipeline candidates, ties in BASELINE, one failed gate, one crash, an A/A pair."""
    random = np.random.default_rng(seed)
    candidates, timings = [], []
    for case, scale in (("sdpa:A", 1.0), ("sdpa:C", 7.0)):
        for n in range(count):
            flash = n % 3 == 0
            fusion = "single-kernel" if flash else ("split", "on-chip", "none")[n % 4 % 3]
            measured = scale * 6.5e-6 * (1 + float(random.exponential(0.4 if flash else 4.0)))
            baseline: float | str = "inexpressible: Interleaved" if flash else scale * (2e-6, 2.4e-6, 5e-6)[n // 2 % 3]
            if n == 10:
                baseline = "infeasible: av.bs=48 does not divide s=128"
            corrected = measured * float(np.exp(random.normal(-0.15, 0.12)))
            gates = FAILED if n == 7 else PASSED
            origin = ("CORRECTED 1", "random 3") if n == 0 else (f"random {n}",)
            name = f"{case.split(':')[1]}-{'flash' if flash else 'pipe'}-{n:02d}"
            predictions = {"BASELINE": baseline, "CORRECTED": corrected}
            made = candidate(name, predictions, case=case, gates=gates, fusion=fusion, origin=origin)
            candidates.append(made)
            if n != 7:
                timings.append(timing(made, measured, seed=n, status="out-of-memory" if n == 11 else "ok"))
            if n == 0:
                timings.append(timing(made, measured, seed=99, name=f"{name}#again"))
    return manifest(candidates), samples(timings)
