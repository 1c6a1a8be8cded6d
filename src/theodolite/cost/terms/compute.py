"""Compute: the FLOP of contractions, padding included, at the tensor cores' best rate."""

from __future__ import annotations

from typing import Any

from theodolite.cost.ledger import Charge, rates
from theodolite.cost.profile import Floor
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(gpu: Gpu, *, flops: Any) -> Charge:
    return Charge({"MMA": flops})


def floor(gpu: Gpu, compulsory: Floor) -> float:
    return compulsory.mma_flops / rates(gpu)["MMA"]


TERM = Term("compute", 1, price, always=True, floor=floor)
