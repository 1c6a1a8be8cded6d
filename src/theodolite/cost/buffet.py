"""AccelForge's count of an abstract tree, with numbers or with NumPy arrays.

Sizes may be arrays that broadcast, each decision on an axis of its own (an open mesh): every quantity then has just
the axes that it depends on, and one call scores a whole grid.  Formulas: AccelForge at revision 2495e289,
`model/_looptree/reuse/symbolic` (traffic), `latency/memory.py`, `energy.py`, for one chain of components, rank-by-rank
accesses and perfect factors.  Its habits are kept, also where a GPU would do otherwise:

    a read that several units share counts once, and a reduction over units is free;
    a loop that does not touch a tensor re-fetches it all the same;
    every partial sum but the first is read back from where it waits;
    an Einsum takes the time of its slowest component, a workload the sum over its Einsums;
    every component leaks all the time, idle or not, in every unit that stands above its own fanout.

A loop of one trip is no loop; where trips are arrays, that is decided element by element.  A tree that comes from one
of AccelForge's own files is read literally instead: see `buffet_path`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from theodolite.cost.buffet_path import Trip, paths
from theodolite.cost.buffet_peaks import Peaks, peaks
from theodolite.cost.buffet_space import Reservation, crossings, reservations
from theodolite.cost.buffet_trips import Nest, unroll
from theodolite.gpus.hierarchy import Machine, Memory
from theodolite.ir.tree import Block
from theodolite.ir.workload import DTYPE_BYTES, View, Workload

Number = Any  # a float, or an array of float64
Kind = Literal["read", "write"]
Flags = np.bool_ | npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Actions:
    """What a memory reads or writes for a tensor, over all units and per unit: in bits, and in actions of its own."""

    memory: str
    tensor: str
    kind: Kind
    total_bits: Number
    unit_bits: Number
    total_calls: Number
    unit_calls: Number


@dataclass(frozen=True, eq=False)
class EinsumProfile:
    """What AccelForge counts for one Einsum of the view.

    `units` and `macs_per_unit` are the trips of the spatial and of the temporal loops.  `latencies_s` has the seconds
    of each component, `latency_s` their maximum.  `energies_j` has joules by (component, tensor, action), with "" for
    the tensor of a computation and of a leak.  `reserved` has what each tensor takes in a unit of a memory,
    `peak_bits` what AccelForge says is in it at most while this Einsum runs.  `why_not` says for each reason where it
    holds; where any does, the other fields mean nothing, save under a reason of capacity or fanout.
    """

    einsum: str
    component: str
    units: Number
    macs_per_unit: Number
    actions: tuple[Actions, ...]
    latencies_s: Mapping[str, Number]
    latency_s: Number
    energies_j: Mapping[tuple[str, str, str], Number]
    reserved: tuple[Reservation, ...]
    peak_bits: Mapping[str, Number]
    why_not: Mapping[str, Flags]

    @property
    def feasible(self) -> Flags:
        return feasible((self,))


def count(
    tree_body: Block,
    workload: Workload,
    view: View,
    machine: Machine,
    decisions: Mapping[str, Any],
    *,
    bits: Mapping[str, int] | None = None,
    literal: bool = False,
) -> tuple[EinsumProfile, ...]:
    """One profile an Einsum of the view, in the tree's order.

    `decisions` fill the tree's keys with whole numbers or arrays of them.  `bits` has the width of each tensor's
    values; without it every tensor has that of the workload's widest input or output, since the wider ones live in
    registers, which a GPU's hierarchy lacks.  `literal` reads the tree as AccelForge would read its file.

    Raises Infeasible for a tree that AccelForge cannot say at all, and UnknownName for a hole that no decision fills.
    Sizes that do not fit raise nothing: see `why_not`.
    """
    found = paths(tree_body, workload, view, machine, literal=literal)
    nests = tuple(unroll(path, workload, decisions) for path in found)
    widths = bits if bits is not None else dict.fromkeys((t.name for t in workload.tensors), value_bits(workload))
    reserved = tuple(reservations(nest, widths) for nest in nests)
    peak = peaks(nests, reserved, tuple(e.name for e in view.einsums))
    return tuple(_profile(n, r, p, widths) for n, r, p in zip(nests, reserved, peak, strict=True))


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


def joules(profiles: tuple[EinsumProfile, ...]) -> Number:
    """AccelForge's energy of the workload, infinite where the mapping is infeasible."""
    total = sum(e for p in profiles for e in p.energies_j.values())
    return np.where(feasible(profiles), total, np.inf)[()]


def value_bits(workload: Workload) -> int:
    """Bits of a value as it crosses the chip's edge: the widest of the workload's inputs and outputs."""
    return 8 * max(DTYPE_BYTES[workload.tensor(t).dtype] for t in (*workload.inputs, *workload.outputs))


def _profile(
    nest: Nest,
    reserved: tuple[Reservation, ...],
    peak: Peaks,
    bits: Mapping[str, int],
) -> EinsumProfile:
    path = nest.path
    actions = tuple(a for t in path.ranks for a in _actions(nest, t, bits[t]))
    units, macs = nest.spatial(), nest.temporal()
    latencies = _latencies(nest, actions)
    latency: Number = 0.0
    for value in latencies.values():
        latency = np.maximum(latency, value)
    reasons = {
        **nest.why_not,
        **crossings(nest),
        **_fanouts(nest),
        **_capacities(nest, peak.worst_bits),
        **peak.why_not,
    }
    return EinsumProfile(
        einsum=path.einsum.name,
        component=path.unit.name,
        units=units,
        macs_per_unit=macs,
        actions=actions,
        latencies_s=latencies,
        latency_s=latency,
        energies_j=_energies(nest, actions, latency),
        reserved=reserved,
        peak_bits=peak.bits,
        why_not={reason: where for reason, where in reasons.items() if np.any(where)},
    )


def _latencies(nest: Nest, actions: tuple[Actions, ...]) -> dict[str, Number]:
    """Seconds of each component in use, per unit, since units run beside each other."""
    unit = nest.path.unit
    out: dict[str, Number] = {unit.name: nest.temporal() * unit.actions_scale / unit.ops_per_s}
    for memory in nest.path.machine.memories:
        mine = [a for a in actions if a.memory == memory.name]
        if mine:
            reads = sum(a.unit_calls for a in mine if a.kind == "read") / memory.read.per_s
            writes = sum(a.unit_calls for a in mine if a.kind == "write") / memory.write.per_s
            out[memory.name] = reads + writes if memory.ports == "shared" else np.maximum(reads, writes)
    return out


def _energies(nest: Nest, actions: tuple[Actions, ...], latency_s: Number) -> dict[tuple[str, str, str], Number]:
    """Joules by (component, tensor, action); leaks run for as long as the Einsum."""
    unit, machine = nest.path.unit, nest.path.machine
    out: dict[tuple[str, str, str], Number] = {}
    for action in actions:
        memory = machine.memory(action.memory)
        price = memory.read.joules if action.kind == "read" else memory.write.joules
        out[memory.name, action.tensor, action.kind] = action.total_calls * price
    out[unit.name, "", "compute"] = nest.temporal() * nest.spatial() * unit.actions_scale * unit.joules
    return out | {(name, "", "leak"): watts * latency_s for name, watts in machine.leak_w.items()}


def _actions(nest: Nest, tensor: str, bits: int) -> Iterator[Actions]:
    """What each memory reads and writes for one tensor.

    Going inward along the tensor's own order of loops: `times` is how often a holder is filled, `fresh` how many of
    those fills bring a tile that was never there (a new output starts from nothing and is not read), `units` how many
    copies of the holder there are, `cast` how many different tiles the parent sends them at a time.
    """
    path = nest.path
    output = tensor == path.einsum.output
    moved: dict[tuple[str, Kind], tuple[Number, Number]] = {}  # values: over all units, per unit

    def add(memory: Memory, kind: Kind, amount: Number, copies: Number) -> None:
        total, unit = moved.get((memory.name, kind), (0.0, 0.0))
        moved[memory.name, kind] = total + amount * copies, unit + amount

    tile: Number = float(nest.volume(tensor))
    times = fresh = units = cast = parent_units = 1.0
    parent: Memory | None = None
    for index in nest.order(tensor):
        step = nest.step(index)
        if isinstance(step, Trip):
            n, relevant = nest.trips[index], step.rank in path.ranks[tensor]
            if step.dim is None:
                times, fresh = times * n, fresh * n if relevant else fresh
            else:
                apart = relevant or not path.machine.fanout(step.dim).shares(tensor)
                units, cast = units * n, cast * n if apart else cast
            tile = tile / n if relevant else tile
            continue
        here = path.machine.memory(step.memory) if step is not None else None
        fill = tile * times
        first = tile * fresh if output and (here or path.unit).starts_from_nothing else 0.0
        if parent is not None:
            add(parent, "read", (fill - first if parent.starts_from_nothing else fill) * cast, parent_units)
            if output:
                add(parent, "write", fill * cast, parent_units)
            if here is not None:
                add(here, "write", fill - first, units)
                add(here, "read", fill if output else 0.0, units)
        if here is not None:
            parent, parent_units, cast = here, units, 1.0
    for (name, kind), (total, unit) in moved.items():
        memory = path.machine.memory(name)
        width, calls = memory.bits(tensor, bits), memory.calls(kind, tensor, bits)
        yield Actions(name, tensor, kind, total * width, unit * width, total * calls, unit * calls)


def _fanouts(nest: Nest) -> dict[str, Flags]:
    out: dict[str, Flags] = {}
    for node in nest.path.machine.nodes:
        for fanout in node.fanouts:
            used = nest.spatial(fanout.dim)
            given = f"{used:g} " if np.ndim(used) == 0 else ""
            said = f"spatial product {given}over the fanout of {fanout.units} {fanout.dim}"
            out[f"{nest.path.einsum.name}: {said}"] = used > fanout.units
    return out


def _capacities(nest: Nest, worst_bits: Mapping[str, Number]) -> dict[str, Flags]:
    out: dict[str, Flags] = {}
    for name, used in worst_bits.items():
        room = nest.path.machine.memory(name).size_bits
        given = f"of {used / 8:,.0f} " if np.ndim(used) == 0 else ""
        out[f"{nest.path.einsum.name}: {name} occupancy {given}over {room / 8:,.0f} bytes"] = used > room
    return out
