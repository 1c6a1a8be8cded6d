"""What a CTA of a kernel takes of an SM: shared memory and registers, estimated from its tiles.

Nothing here is measured.  Both formulas were read off kernels that Triton 3.6 compiled ahead of time for Hopper: for
flash loops the shared memory is exact, registers are within about a fifth where nothing spills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Number = Any
LANES = 32  # threads a warp
MMA_ROWS = 16  # rows of one mma.sync instruction
BASE_REGISTERS = 26  # addresses, masks, loop state
PRODUCTS_AT_ONCE = 8  # the compiler makes and sums a narrow contraction's products a few at a time
REGISTERS_A_LANE = 1.6  # an fp32 lane and what comes and goes with it (its fp16 copy, its address)


@dataclass(frozen=True)
class Tiles:
    """The tiles of one kernel, in lanes or bytes a CTA; `narrow` and `wide` say how its contractions run.

    ring_bytes: the tiles that a loop loads anew each trip to feed a contraction, and the largest of them
    resident_bytes: operands of contractions that are loaded once, before the loop
    weights_bytes: a result that is an operand again, in fp16
    accumulators, results: lanes of fp32 that live across trips, and within one
    products: lanes of the three-dimensional product of a narrow contraction
    loaded_lanes: of the largest tile that a loop loads
    """

    warps: Number
    stages: Number
    rows: Number
    wide: Number
    narrow: Number
    ring_bytes: Number
    largest_bytes: Number
    resident_bytes: Number
    weights_bytes: Number
    accumulators: Number
    results: Number
    products: Number
    loaded_lanes: Number
    row_lanes: Number


def shared_bytes(t: Tiles) -> Number:
    """Shared memory of a CTA.

    wgmma reads both operands there: `stages` rings and what is resident.  mma.sync reads registers, so that the ring
    in use has left: one less, and weights pass through where warps outnumber the row tiles.  Without a pipeline one
    operand at a time passes through, or both where none is resident.  Narrow contractions use none to speak of.
    """
    single = np.where(t.resident_bytes > 0, t.largest_bytes, t.ring_bytes)
    rings = np.where(t.stages > 1, (t.stages - (1 - t.wide)) * t.ring_bytes, single)
    exchanged = np.where((t.wide == 0) & (MMA_ROWS * t.warps > t.rows), t.weights_bytes, 0)
    return np.where(t.narrow > 0, 0, rings + t.resident_bytes + exchanged)


def registers(t: Tiles) -> Number:
    """Registers a thread would like, not capped: more than a thread can have are spilled.

    Without a pipeline the loaded tile itself passes through registers, two fp16 in each.
    """
    passing = np.where(t.stages > 1, 0, t.loaded_lanes / 2)
    loop = np.maximum(np.maximum(t.results, t.products / PRODUCTS_AT_ONCE), passing)
    return BASE_REGISTERS + REGISTERS_A_LANE * (t.accumulators + loop + t.row_lanes) / (LANES * t.warps)
