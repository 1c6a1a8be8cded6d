"""Launch: what it costs to start and drain a kernel, behind a full queue.

The first kernel of a graph costs more than each further one; a merge's launch is `splitk`'s.
"""

from __future__ import annotations

from theodolite.cost.ledger import Charge
from theodolite.cost.profile import Floor
from theodolite.cost.terms.term import Term
from theodolite.gpus.gpu import Gpu


def price(gpu: Gpu, *, first: bool, merge: bool) -> Charge:
    if merge:
        return Charge()
    return Charge(serial_s=gpu.first_launch_s if first else gpu.further_launch_s)


def floor(gpu: Gpu, compulsory: Floor) -> float:
    return compulsory.launches * gpu.first_launch_s


TERM = Term("launch", 40, price, floor=floor)
