"""Traffic: bytes through L2 and off the chip.

Every program's loads and stores pass L2; off the chip each byte that a kernel touches is moved once a kernel, since
between kernels nothing is assumed to stay (that is for a cache term to say).  Partials are left to `splitk`.
"""

from __future__ import annotations

from typing import Any

from theodolite.cost.ledger import Charge
from theodolite.cost.profile import Floor
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(gpu: Gpu, *, loaded_bytes: Any, stored_bytes: Any, distinct_bytes: Any) -> Charge:
    return Charge({"L2": loaded_bytes + stored_bytes, "HBM": distinct_bytes})


def floor(gpu: Gpu, compulsory: Floor) -> float:
    return compulsory.hbm_bytes / gpu.hbm_bytes_per_s


TERM = Term("traffic", 0, price, always=True, floor=floor)
