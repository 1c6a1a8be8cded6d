"""Workloads by name.  A new one is one new file with an ENTRY, and one line in KINDS."""

from __future__ import annotations

from theodolite.errors import one_of
from theodolite.ir.workload import Workload
from theodolite.workloads import sdpa as _sdpa
from theodolite.workloads.workload_entry import WorkloadEntry

KINDS: dict[str, WorkloadEntry] = {e.kind: e for e in (_sdpa.ENTRY,)}


def entry(text: str) -> WorkloadEntry:
    """The entry that a workload's text names before its colon."""
    kind = text.split(":", 1)[0]
    if kind not in KINDS:
        raise one_of("workload", kind, KINDS)
    return KINDS[kind]


def workload(text: str) -> Workload:
    """`sdpa:C` or `sdpa:b=1,h=32,l=1024,s=1024,d=128,causal` -> Workload.

    Raises UnknownName for an unknown workload, case or rank, WorkloadError for sizes that make no sense.
    """
    kind, _, sizes = text.partition(":")
    return entry(kind).parse(sizes)


def sdpa(b: int, h: int, l: int, s: int, d: int, causal: bool = False, e: int | None = None) -> Workload:  # noqa: E741
    """Scaled dot-product attention, fp16 in and out, fp32 accumulation; see `workloads/sdpa.py`."""
    return _sdpa.sdpa(b, h, l, s, d, causal, e)
