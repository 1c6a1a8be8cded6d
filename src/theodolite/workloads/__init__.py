"""Workloads by name.  A new one is one new file in this package that defines `ENTRY`; nothing else names it."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from theodolite.errors import one_of
from theodolite.ir.workload import Workload
from theodolite.workloads import sdpa as _sdpa
from theodolite.workloads.workload_entry import WorkloadEntry


@cache
def kinds() -> dict[str, WorkloadEntry]:
    """Every workload's entry by its kind."""
    modules = (import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    entries: list[WorkloadEntry] = [m.ENTRY for m in modules if hasattr(m, "ENTRY")]
    return {e.kind: e for e in entries}


def entry(text: str) -> WorkloadEntry:
    """The entry that a workload's text names before its colon."""
    kind = text.split(":", 1)[0]
    if kind not in kinds():
        raise one_of("workload", kind, kinds())
    return kinds()[kind]


def workload(text: str) -> Workload:
    """`sdpa:C` or `sdpa:b=1,h=32,l=1024,s=1024,d=128,causal` -> Workload.

    Raises UnknownName for an unknown workload, case or rank, WorkloadError for sizes that make no sense.
    """
    kind, _, sizes = text.partition(":")
    return entry(kind).parse(sizes)


def sdpa(b: int, h: int, l: int, s: int, d: int, causal: bool = False, e: int | None = None) -> Workload:  # noqa: E741
    """Scaled dot-product attention, fp16 in and out, fp32 accumulation; see `workloads/sdpa.py`."""
    return _sdpa.sdpa(b, h, l, s, d, causal, e)
