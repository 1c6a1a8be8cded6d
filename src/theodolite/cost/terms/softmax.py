"""Softmax: the most schedule-sensitive part of attention, which a copy leaves out.

    MUFU   one exponential (2^x) a score, and one a row and block for a carried maximum
    FP32   scale, maximum, subtraction, sum, rescale, division: every lane of a multiply, add, divide or max, and every
           lane that enters a reduction; masked lanes compute like the others
Merges of partials are left to `splitk`.
"""

from __future__ import annotations

from typing import Any

from theodolite.cost.ledger import Charge, rates
from theodolite.cost.profile import Floor
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(gpu: Gpu, *, merge: bool, exp2: Any, fp32: Any) -> Charge:
    return Charge() if merge else Charge({"MUFU": exp2, "FP32": fp32})


def floor(gpu: Gpu, compulsory: Floor) -> float:
    return compulsory.mufu_exp2 / rates(gpu)["MUFU"]


TERM = Term("softmax", 30, price, floor=floor)
