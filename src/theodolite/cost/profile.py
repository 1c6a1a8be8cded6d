"""The profile: all that a model may read of a mapping.

Two counts fill it, each with its own oracle.  `buffet` counts the abstract tree as AccelForge does, one record an
Einsum; `executed` counts the realised tree as a GPU does, one record a kernel.  Every field is a number, or an array
over a grid of decisions that broadcasts against the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from theodolite.cost.buffet import EinsumProfile

Number = Any  # int, float, or a NumPy array that broadcasts


@dataclass(frozen=True)
class KernelProfile:
    """What one kernel does, summed over its programs.  A term reads these fields by name; strings are for people."""

    name: str
    first: bool  # the first launch of the program
    merge: bool  # a merge of partials
    programs: Number
    warps: Number
    stages: Number
    trips: Number  # loop iterations, over all programs
    trips_longest: Number  # loop iterations of the longest program
    loaded_bytes: Number  # every lane whose mask is true, partials left out
    stored_bytes: Number
    distinct_bytes: Number  # each byte once a kernel, partials left out
    partial_bytes: Number  # loads and stores of partials
    partial_distinct_bytes: Number
    flops: Number  # contractions, padding included, whatever they run on
    flops_wgmma: Number  # of those, on the wide tensor-core instruction
    flops_mma: Number  # of those, on the narrow one
    contraction_fp32: Number  # FP32 lanes of contractions too narrow for the tensor cores
    exp2: Number  # lanes of exponentials
    fp32: Number  # FP32 lanes of everything else
    reductions: Number
    smem_bytes: Number  # a CTA, estimated
    registers: Number  # a thread, estimated, not capped
    tile_elements: Number  # of the largest tile
    odd_tiles: Number  # how many of its tiles' sides are no power of two
    loads: dict[str, Number] = field(default_factory=dict)  # elements by buffer, for the oracle and for people
    stores: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Floor:
    """Compulsory work of the workload itself, whatever the mapping: what `seconds >= floor` is held to."""

    hbm_bytes: float
    mma_flops: float
    mufu_exp2: float
    launches: float = 1.0


@dataclass(frozen=True)
class Profile:
    """Everything a model may read of one mapping, or of one skeleton's whole grid of decisions.

    einsums: from `buffet`; empty, with `inexpressible` saying why, where AccelForge has no words for the tree.
    kernels: from `executed`, in launch order.
    workspace_bytes: what lies in global memory between the kernels.
    """

    einsums: tuple[EinsumProfile, ...]
    inexpressible: str | None
    kernels: tuple[KernelProfile, ...]
    workspace_bytes: Number
    io_bytes: float
    floor: Floor


KERNEL_FIELDS = frozenset(f.name for f in fields(KernelProfile))
