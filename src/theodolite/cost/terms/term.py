"""What a term's file provides."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from theodolite.cost.ledger import Charge
from theodolite.cost.profile import KERNEL_FIELDS, Floor
from theodolite.errors import TheodoliteError
from theodolite.gpus.gpu import Gpu


@dataclass(frozen=True)
class Term:
    """One cost that a real GPU charges.

    price: (gpu, *, field, ...) -> Charge for one kernel.  Its keyword-only arguments are the declaration of what the
    term reads: names of `KernelProfile` fields.
    order: where it stands when terms are added one by one.
    always: part of every model.  corrected: part of CORRECTED.
    floor: (gpu, floor) -> seconds of the compulsory work on the resource that the term prices, if any.
    """

    name: str
    order: int
    price: Callable[..., Charge]
    corrected: bool = True
    always: bool = False
    floor: Callable[[Gpu, Floor], float] | None = None

    def __post_init__(self) -> None:
        unknown = self.fields - KERNEL_FIELDS
        if unknown:
            raise TheodoliteError(f"term {self.name} reads {', '.join(sorted(unknown))}, which no profile has")

    @property
    def fields(self) -> frozenset[str]:
        """The profile fields that the term prices."""
        parameters = inspect.signature(self.price).parameters.values()
        return frozenset(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
