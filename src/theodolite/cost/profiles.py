"""Filling the profile: a mapping, or a skeleton with a grid of decisions, counted both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from theodolite.cost import buffet
from theodolite.cost.executed import executed
from theodolite.cost.profile import Floor, KernelProfile, Profile
from theodolite.errors import Infeasible
from theodolite.gpus.gpu import Gpu
from theodolite.ir.realise import realise_skeleton
from theodolite.ir.tree import Key, Tree, Workspace
from theodolite.ir.workload import DTYPE_BYTES, Workload, points

Number = Any
Count = Literal["buffet", "executed", "both"]


def profile_of(
    mapping: Tree, workload: Workload, gpu: Gpu, count: Count = "both", decisions: Mapping[str, Any] | None = None
) -> Profile:
    """The profile of an abstract tree; `decisions` may hold arrays in place of the tree's own numbers.

    `count` leaves out what a model does not read.  Raises Unsupported where `executed` is asked for and no
    realisation rule covers the tree.
    """
    chosen = mapping.decisions if decisions is None else decisions
    einsums: tuple[buffet.EinsumProfile, ...] = ()
    inexpressible: str | None = None
    if count != "executed":
        try:
            einsums = buffet.count(mapping.body, workload, workload.view("accelforge"), gpu.accelforge(), chosen)
        except Infeasible as error:
            inexpressible = str(error)
    kernels: tuple[KernelProfile, ...] = ()
    held: Number = 0
    if count != "buffet":
        realised = realise_skeleton(mapping, workload)
        chosen = {**realised.decisions, **chosen}
        kernels = executed(realised, workload, chosen)
        held = sum(_bytes(w, workload, chosen) for w in realised.workspaces)
    io = sum(_tensor_bytes(t, workload) for t in (*workload.inputs, *workload.outputs))
    return Profile(einsums, inexpressible, kernels, held, io, floor_of(workload))


def _bytes(workspace: Workspace, workload: Workload, decisions: Mapping[str, Any]) -> Number:
    out: Number = DTYPE_BYTES[workspace.dtype]
    for extent in workspace.extents:
        match extent:
            case Key(name):
                out = out * decisions[name]
            case str():
                out = out * workload.ranks[extent]
            case _:
                out = out * extent
    return out


def _tensor_bytes(name: str, workload: Workload) -> int:
    return math.prod(workload.shape(name)) * DTYPE_BYTES[workload.tensor(name).dtype]


def floor_of(workload: Workload) -> Floor:
    """Work that no mapping can avoid: inputs and outputs moved once, the domain's contractions and exponentials."""
    io = sum(_tensor_bytes(t, workload) for t in (*workload.inputs, *workload.outputs))
    flops = sum(2 * points(e, workload) for e in workload.einsums if e.map == "mul" and e.reduce == "sum")
    exp2 = sum(points(e, workload) for e in workload.einsums if e.map == "exp_sub")
    return Floor(float(io), float(flops), float(exp2))
