"""Split-k: what it costs to spread a reduction over CTAs.

Each slice writes its partial result in fp32, a merge kernel reads all of them back, adds them (or rescales and adds a
carried state) and is one more launch:

    bytes   = partials written + partials read, through L2 and off the chip
    work    = the merge kernels' exponentials and FP32 lanes
    serial  = one further launch a merge

A model without this term holds that a reduction rank is free parallelism.
"""

from __future__ import annotations

from typing import Any

from theodolite.cost.ledger import Charge
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(gpu: Gpu, *, partial_bytes: Any, partial_distinct_bytes: Any, merge: bool, exp2: Any, fp32: Any) -> Charge:
    work: dict[Any, Any] = {"L2": partial_bytes, "HBM": partial_distinct_bytes}
    if merge:
        work |= {"MUFU": exp2, "FP32": fp32}
    return Charge(work, serial_s=gpu.further_launch_s if merge else 0.0)


TERM = Term("splitk", 10, price)
