"""A GPU as numbers, each with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from theodolite.errors import TheodoliteError
from theodolite.gpus.hierarchy import Action, ComputeUnit, Fanout, Hierarchy, Memory

MAY_BE_ZERO = ("wgmma_flop_per_clk_sm",)  # a GPU before Hopper has no wgmma
NOT_NUMBERS = ("name", "target", "sources")


@dataclass(frozen=True)
class Gpu:
    """What a GPU can do and what it charges.

    `target` is Triton's (backend, compute capability, lanes a warp).  `hbm` is the memory off the chip whatever its
    technology.  Rates `_per_s` are the whole GPU's unless the name says `_sm`; the `peak_` figures are bounds that no
    measured time may beat, the others what the model reckons with.  `sources` names where each number comes from.

    Raises TheodoliteError for a number without a source, a source without a number, or numbers that contradict
    each other.
    """

    name: str
    target: tuple[str, int, int]
    sms: int
    clock_hz: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    l2_bytes: float
    l2_bytes_per_s: float
    smem_bytes_per_sm: int
    smem_bytes_per_cta: int
    smem_bytes_per_clk_sm: float
    registers_per_sm: int
    max_registers_per_thread: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    wgmma_flop_per_clk_sm: float
    mma_flop_per_clk_sm: float
    fp32_lanes_per_clk_sm: float
    mufu_per_clk_sm: float
    scalar_ops_per_s_sm: float
    dispatch_s_per_cta: float
    prologue_clk: float
    epilogue_clk: float
    first_launch_s: float
    further_launch_s: float
    peak_hbm_bytes_per_s: float
    peak_flop_per_s: float
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        for broken in self._broken():
            raise TheodoliteError(f"gpu {self.name}: {broken}")

    def __hash__(self) -> int:
        return hash((self.name, *self.constants().values()))

    def constants(self) -> dict[str, float]:
        """Every number of the record as a float, by its field's name, in the order of the fields."""
        return {f.name: float(getattr(self, f.name)) for f in fields(self) if f.name not in NOT_NUMBERS}

    @property
    def tensor_flop_per_clk_sm(self) -> float:
        """The fastest way through the tensor cores, with fp32 accumulation."""
        return max(self.wgmma_flop_per_clk_sm, self.mma_flop_per_clk_sm)

    def accelforge(self) -> Hierarchy:
        """The three-level hierarchy of the published comparison: registers are dropped, RF waits in SharedMemory.

        One action is a bit, or a multiply-accumulate (two FLOP).  The scalar unit takes the Einsums of two tensors
        (softmax as one step), the tensor core those of three.
        """
        hbm, l2 = Action(8 * self.hbm_bytes_per_s), Action(8 * self.l2_bytes_per_s)
        smem = Action(8 * self.smem_bytes_per_clk_sm * self.clock_hz)
        sms = (Fanout("SM", self.sms),)
        macs_per_s = self.tensor_flop_per_clk_sm / 2 * self.clock_hz
        return Hierarchy(
            memories=(
                Memory("MainMemory", ("HBM",), 8 * self.hbm_bytes, hbm, hbm),
                Memory("L2", ("L2",), 8 * self.l2_bytes, l2, l2),
                Memory("SharedMemory", ("SMEM", "RF"), 8 * self.smem_bytes_per_sm, smem, smem, sms),
            ),
            units=(
                ComputeUnit("ScalarUnit", "simd", self.scalar_ops_per_s_sm, tensors=2),
                ComputeUnit("TensorCore", "mma", macs_per_s, tensors=3),
            ),
        )

    def _broken(self) -> list[str]:
        """Each invariant that does not hold, in words; types first, since the rest compares numbers."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_NUMBERS}
        wrong = [f"{k} is {v!r} and not a finite number" for k, v in given.items() if not _finite(v)]
        if wrong:
            return wrong
        numbers = self.constants()
        wrong += [f"{k} is {v}: it must be positive" for k, v in numbers.items() if v <= 0 and k not in MAY_BE_ZERO]
        wrong += [f"{k} is {v}: it must not be negative" for k, v in numbers.items() if v < 0 and k in MAY_BE_ZERO]
        wrong += [f"{k} names no source" for k in numbers if not self.sources.get(k, "").strip()]
        wrong += [f"a source for {k!r}, which is no number of the record" for k in self.sources if k not in numbers]
        wrong += [f"{a} {numbers[a]:g} is over {b} {numbers[b]:g}" for a, b in AT_MOST if numbers[a] > numbers[b]]
        # 1 %: peaks are published to three digits
        if self.tensor_flop_per_clk_sm * self.sms * self.clock_hz > 1.01 * self.peak_flop_per_s:
            wrong.append("the tensor rate at clock_hz is over peak_flop_per_s")
        return wrong


AT_MOST = (
    ("smem_bytes_per_cta", "smem_bytes_per_sm"),
    ("max_registers_per_thread", "registers_per_sm"),
    ("max_ctas_per_sm", "max_warps_per_sm"),
    ("hbm_bytes_per_s", "peak_hbm_bytes_per_s"),
    ("l2_bytes", "hbm_bytes"),
    ("further_launch_s", "first_launch_s"),
)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
