"""AccelForge's count of an abstract tree, with numbers or with NumPy arrays.

Sizes may be arrays that broadcast, each decision on an axis of its own (an open mesh): every quantity then has just
the axes that it depends on, and one call scores a whole grid.  Formulas: AccelForge at revision 2495e289,
`model/_looptree/reuse/symbolic` (traffic), `latency/memory.py`, for one chain of memories, rank-by-rank accesses and
perfect factors.  Its habits are kept, also where a GPU would do otherwise:

    a read that several units share counts once, and a reduction over units is free;
    a loop that does not touch a tensor re-fetches it all the same;
    every partial sum but the first is read back from where it waits;
    an Einsum takes the time of its slowest component, a workload the sum over its Einsums.

A loop of one trip is no loop; where trips are arrays, that is decided element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from theodolite.cost.buffet_path import Hold, Trip, paths
from theodolite.cost.buffet_space import Reservation, peaks, reservations
from theodolite.cost.buffet_trips import Nest, unroll
from theodolite.gpus.hierarchy import Hierarchy
from theodolite.ir.tree import Block
from theodolite.ir.workload import DTYPE_BYTES, View, Workload

Number = Any  # a float, or an array of float64
Flags = np.bool_ | npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Actions:
    """Bits that a memory reads or writes for a tensor: over all units, and per unit."""

    memory: str
    tensor: str
    kind: Literal["read", "write"]
    total_bits: Number
    unit_bits: Number


@dataclass(frozen=True, eq=False)
class EinsumProfile:
    """What AccelForge counts for one Einsum of the view.

    `units` and `macs_per_unit` are the trips of the spatial and of the temporal loops.  `latencies_s` has the seconds
    of each component, `latency_s` their maximum.  `reserved` has what each tensor takes in a unit of a memory,
    `peak_bits` what is in it at most while this Einsum runs.  `why_not` says for each reason where it holds; where
    any does, the other fields mean nothing, save under a reason of capacity or fanout.
    """

    einsum: str
    component: str
    units: Number
    macs_per_unit: Number
    actions: tuple[Actions, ...]
    latencies_s: Mapping[str, Number]
    latency_s: Number
    reserved: tuple[Reservation, ...]
    peak_bits: Mapping[str, Number]
    why_not: Mapping[str, Flags]

    @property
    def feasible(self) -> Flags:
        return feasible((self,))


def count(
    tree_body: Block, workload: Workload, view: View, hierarchy: Hierarchy, decisions: Mapping[str, Any]
) -> tuple[EinsumProfile, ...]:
    """One profile an Einsum of the view, in the tree's order.

    `decisions` fill the tree's keys with whole numbers or arrays of them.  Every tensor has the width of the
    workload's widest input or output: the wider ones live in registers, which the hierarchy lacks.

    Raises Infeasible for a tree that AccelForge cannot say at all, and UnknownName for a hole that no decision fills.
    Sizes that do not fit raise nothing: see `why_not`.
    """
    nests = tuple(unroll(path, workload, hierarchy, decisions) for path in paths(tree_body, workload, view, hierarchy))
    bits = value_bits(workload)
    reserved = tuple(reservations(nest, hierarchy, bits) for nest in nests)
    peak = peaks(nests, reserved)
    return tuple(_profile(n, r, p, hierarchy, bits) for n, r, p in zip(nests, reserved, peak, strict=True))


def why_not(profiles: tuple[EinsumProfile, ...]) -> dict[str, Flags]:
    """Each reason of any Einsum, with where it holds; empty where nothing speaks against the mapping."""
    out: dict[str, Flags] = {}
    for profile in profiles:
        for reason, where in profile.why_not.items():
            out[reason] = np.logical_or(out.get(reason, np.False_), where)
    return out


def feasible(profiles: tuple[EinsumProfile, ...]) -> Flags:
    """Where no reason speaks against the mapping."""
    out: Flags = np.bool_(True)
    for where in why_not(profiles).values():
        out = np.logical_and(out, np.logical_not(where))
    return out


def seconds(profiles: tuple[EinsumProfile, ...]) -> Number:
    """AccelForge's latency of the workload: the sum over its Einsums, infinite where the mapping is infeasible."""
    return np.where(feasible(profiles), sum(p.latency_s for p in profiles), np.inf)[()]


def value_bits(workload: Workload) -> int:
    """Bits of a value as it crosses the chip's edge: the widest of the workload's inputs and outputs."""
    return 8 * max(DTYPE_BYTES[workload.tensor(t).dtype] for t in (*workload.inputs, *workload.outputs))


def _profile(
    nest: Nest, reserved: tuple[Reservation, ...], peak_bits: Mapping[str, Number], hierarchy: Hierarchy, bits: int
) -> EinsumProfile:
    path = nest.path
    actions = tuple(a for t in path.ranks for a in _actions(nest, t, hierarchy, bits))
    units, macs = nest.spatial(), nest.temporal()
    latencies = {path.unit.name: macs / path.unit.ops_per_s}
    for action in actions:
        memory = hierarchy.memory(action.memory)
        rate = memory.read_bits_per_s if action.kind == "read" else memory.write_bits_per_s
        latencies[memory.name] = latencies.get(memory.name, 0.0) + action.unit_bits / rate
    latency: Number = 0.0
    for value in latencies.values():
        latency = np.maximum(latency, value)
    reasons = {**nest.why_not, **_fanouts(nest, hierarchy), **_capacities(nest, peak_bits, hierarchy)}
    return EinsumProfile(
        einsum=path.einsum.name,
        component=path.unit.name,
        units=units,
        macs_per_unit=macs,
        actions=actions,
        latencies_s=latencies,
        latency_s=latency,
        reserved=reserved,
        peak_bits=peak_bits,
        why_not={reason: where for reason, where in reasons.items() if np.any(where)},
    )


def _actions(nest: Nest, tensor: str, hierarchy: Hierarchy, bits: int) -> Iterator[Actions]:
    """What each memory reads and writes for one tensor.

    Going inward along the tensor's own order of loops: `times` is how often a holder is filled, `fresh` how many of
    those fills bring a tile that was never there (a new output starts from nothing and is not read), `units` how many
    copies of the holder there are, `cast` how many different tiles the parent sends them at a time.
    """
    output = tensor == nest.path.einsum.output
    total: dict[tuple[str, str], Number] = {}
    unit: dict[tuple[str, str], Number] = {}

    def add(memory: str, kind: str, amount: Number, copies: Number) -> None:
        total[memory, kind] = total.get((memory, kind), 0.0) + amount * bits * copies
        unit[memory, kind] = unit.get((memory, kind), 0.0) + amount * bits

    tile: Number = float(nest.volume(tensor))
    times = fresh = units = cast = parent_units = 1.0
    parent: str | None = None
    for index in nest.order(tensor, hierarchy):
        step = nest.step(index)
        if isinstance(step, Trip):
            n, relevant = nest.trips[index], step.rank in nest.path.ranks[tensor]
            if step.owner is None:
                times, fresh = times * n, fresh * n if relevant else fresh
            else:
                units, cast = units * n, cast * n if relevant else cast
            tile = tile / n if relevant else tile
            continue
        fill = tile * times
        first = tile * fresh if output else 0.0
        if parent is not None:
            add(parent, "read", (fill - first) * cast, parent_units)
            if output:
                add(parent, "write", fill * cast, parent_units)
            if isinstance(step, Hold):
                add(step.memory, "write", fill - first, units)
                add(step.memory, "read", fill if output else 0.0, units)
        if isinstance(step, Hold):
            parent, parent_units, cast = step.memory, units, 1.0
    for (memory, kind), amount in total.items():
        yield Actions(memory, tensor, "read" if kind == "read" else "write", amount, unit[memory, kind])


def _fanouts(nest: Nest, hierarchy: Hierarchy) -> dict[str, Flags]:
    out: dict[str, Flags] = {}
    for memory in hierarchy.memories:
        if memory.fanout is not None:
            dim, room = memory.fanout
            used = nest.spatial(memory.name)
            given = f"{used:g} " if np.ndim(used) == 0 else ""
            out[f"{nest.path.einsum.name}: spatial product {given}over the fanout of {room} {dim}"] = used > room
    return out


def _capacities(nest: Nest, peak_bits: Mapping[str, Number], hierarchy: Hierarchy) -> dict[str, Flags]:
    out: dict[str, Flags] = {}
    for name, used in peak_bits.items():
        room = hierarchy.memory(name).size_bits
        given = f"of {used / 8:,.0f} " if np.ndim(used) == 0 else ""
        out[f"{nest.path.einsum.name}: {name} occupancy {given}over {room / 8:,.0f} bytes"] = used > room
    return out
