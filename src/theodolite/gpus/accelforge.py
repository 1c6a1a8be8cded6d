"""AccelForge's architecture as a hierarchy, for each Einsum of a cascade: its expressions may depend on the Einsum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from theodolite.errors import Unsupported
from theodolite.gpus.hierarchy import Action, Array, ComputeUnit, Fanout, Hierarchy, Memory
from theodolite.ir.accelforge.arch import ActionSpec, ArchSpec, NodeSpec, Pairs, SpatialSpec, Value, VariableSpec
from theodolite.ir.accelforge.cascade import Cascade
from theodolite.ir.accelforge.expression import ExpressionError, TensorSet, evaluate, names_in
from theodolite.ir.accelforge.latency import latency_form
from theodolite.ir.accelforge.mapping import Names

Symbols = Mapping[str, Any]
# What may be without end; of the rest AccelForge makes no number.
MAY_BE_INFINITE = ("size", "throughput", "throughput_scale", "n_parallel_instances", "leak_power", "leak_power_scale",
                   "bits_per_action")  # fmt: skip


def hierarchies(arch: ArchSpec, cascade: Cascade, names: Names) -> dict[str, Hierarchy]:
    """The architecture as each Einsum sees it, by the Einsum's name in AccelForge's view.

    Raises Unsupported, with the file and the line, for an expression without a value or a number that is missing.
    """
    return {e: _Reader(arch, names, symbols).hierarchy() for e, symbols in cascade.symbols.items()}


class _Reader:
    """One architecture under the names of one Einsum."""

    def __init__(self, arch: ArchSpec, names: Names, symbols: Mapping[str, TensorSet]) -> None:
        self.arch, self.names = arch, names
        known = {**symbols, **_settled(arch.outer, {})}
        self.symbols: Symbols = {**known, **_settled(arch.variables, known)}

    def hierarchy(self) -> Hierarchy:
        nodes = self.arch.nodes
        used = [n for n in nodes if n.kind == "Container" or self.of(n, n.enabled, "enabled")]
        return Hierarchy(
            memories=tuple(self.memory(n) for n in used if n.kind == "Memory"),
            units=tuple(self.compute(n) for n in used if n.kind == "Compute"),
            arrays=tuple(Array(n.name, self.fanouts(n)) for n in used if n.kind == "Container"),
            order=tuple(n.name for n in nodes),
            leak_w=self.leaks(),
        )

    def memory(self, node: NodeSpec) -> Memory:
        read, write = (self.action(node, a) for a in node.actions)
        return Memory(
            name=node.name,
            levels=(self.names.levels[node.name],),
            size_bits=self.number(node, node.size, "size"),
            read=read,
            write=write,
            fanouts=self.fanouts(node),
            ports="shared" if self.form(node).combine == "sum" else "separate",
            starts_from_nothing=node.skip_initial_output_write,
            actions_scale=self.scale(node, "actions_scale"),
            value_bits=self.by_tensor(node, node.bits_per_value, "bits_per_value"),
        )

    def compute(self, node: NodeSpec) -> ComputeUnit:
        action = self.action(node, node.actions[0])
        return ComputeUnit(
            name=node.name,
            unit=self.names.units[node.name],
            ops_per_s=action.per_s,
            tensors=None,
            joules=action.joules,
            fanouts=self.fanouts(node),
            starts_from_nothing=node.skip_initial_output_write,
            actions_scale=self.scale(node, "actions_scale"),
        )

    def action(self, node: NodeSpec, action: ActionSpec) -> Action:
        """An action's price; `per_s` is one over the seconds that the component's `total_latency` gives a call."""
        per_s = self.priced(node, action.throughput, math.inf, f"throughput of {action.name}")
        per_s *= self.number(node, action.throughput_scale, "throughput_scale")
        per_s *= self.scale(node, "throughput_scale") * self.scale(node, "n_parallel_instances")
        joules = self.priced(node, action.energy, 0.0, f"energy of {action.name}")
        joules *= self.number(node, action.energy_scale, "energy_scale") * self.scale(node, "energy_scale")
        if not per_s > 0:  # zero, or infinity times zero
            raise Unsupported(f"{node.at}: throughput of {action.name} in {node.name} is {per_s:g}: it is above 0")
        seconds = self.form(node).seconds(per_s)
        bits = action.bits_per_action if action.bits_per_action is not None else node.bits_per_action
        own = self.by_tensor(node, action.values_per_action, "values_per_action")
        return Action(
            per_s=1 / seconds if seconds > 0 else math.inf,
            joules=joules,
            bits=1.0 if bits is None else self.positive(node, bits, "bits_per_action"),
            values={**self.by_tensor(node, node.values_per_action, "values_per_action"), **own},
        )

    def form(self, node: NodeSpec) -> Any:
        try:
            return latency_form(node.total_latency, self.symbols)
        except ExpressionError as error:
            raise Unsupported(f"{node.at}: {node.name}: {error}") from error

    def leaks(self) -> dict[str, float]:
        """Leak power over all units; AccelForge counts the fanouts above a component and not its own."""
        out: dict[str, float] = {}
        instances = 1
        for node in self.arch.nodes:
            if node.kind != "Container":
                watts = self.priced(node, node.leak_power, 0.0, "leak_power")
                watts *= self.scale(node, "leak_power_scale") * self.scale(node, "n_parallel_instances")
                if math.isnan(watts):
                    raise Unsupported(f"{node.at}: leak_power of {node.name} is infinity times zero")
                out[node.name] = watts * instances
            for spatial in node.spatial:
                instances *= self.units(node, spatial)
        return {name: watts for name, watts in out.items() if watts}

    # ---- values --------------------------------------------------------------------------------------------------
    def fanouts(self, node: NodeSpec) -> tuple[Fanout, ...]:
        out: list[Fanout] = []
        for spatial in node.spatial:
            shared = self.of(node, spatial.may_reuse, "may_reuse")
            if not isinstance(shared, TensorSet):
                raise Unsupported(f"{node.at}: may_reuse of {node.name} is a set of tensors")
            dim = self.names.dims[node.name, spatial.name]
            out.append(Fanout(dim, self.units(node, spatial), shared.members))
        return tuple(out)

    def units(self, node: NodeSpec, spatial: SpatialSpec) -> int:
        units = self.positive(node, spatial.units, "fanout")
        if units != int(units):
            raise Unsupported(f"{node.at}: fanout of {node.name} is {units:g}: it is a whole number")
        return int(units)

    def by_tensor(self, node: NodeSpec, pairs: Pairs, what: str) -> dict[str, float]:
        """A number for each tensor of the sets that the pairs name; Unsupported for a tensor of two of them."""
        out: dict[str, float] = {}
        for expression, value in pairs:
            tensors = self.of(node, expression, what)
            if not isinstance(tensors, TensorSet):
                raise Unsupported(f"{node.at}: {what} of {expression!r}, which is no set of tensors")
            if twice := sorted(out.keys() & tensors.members):
                raise Unsupported(f"{node.at}: {what} of {node.name} gives {twice[0]} twice, by {expression!r} again")
            # an expression may mention a tensor that this Einsum lacks
            number = self.positive(node, value, what) if tensors.members else 0.0
            out |= dict.fromkeys(sorted(tensors.members), number)
        return out

    def priced(self, node: NodeSpec, value: Value | None, dummy: float, what: str) -> float:
        if value is None and node.dummy:
            return dummy
        if value is None:
            raise Unsupported(f"{node.at}: {node.name} has no {what}: write the number, component models are not read")
        return self.number(node, value, what)

    def scale(self, node: NodeSpec, what: str) -> float:
        return self.number(node, dict(node.scales).get(what, 1), what)

    def positive(self, node: NodeSpec, value: Value, what: str) -> float:
        number = self.number(node, value, what)
        if number <= 0:
            raise Unsupported(f"{node.at}: {what} of {node.name} is {number:g}: it is above 0")
        return number

    def number(self, node: NodeSpec, value: Value | None, what: str) -> float:
        found = self.of(node, value, what)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 0:
            raise Unsupported(f"{node.at}: {what} of {node.name} is {found!r}: it is a number from 0")
        if math.isinf(found) and what.partition(" ")[0] not in MAY_BE_INFINITE:
            raise Unsupported(f"{node.at}: {what} of {node.name} is infinite")
        return float(found)

    def of(self, node: NodeSpec, value: Value | None, what: str) -> Any:
        return _value(value, self.symbols, f"{node.at}: {what} of {node.name}")


def _settled(variables: tuple[VariableSpec, ...], known: Symbols) -> dict[str, Any]:
    """The value of each variable; each may use the known names, and the other variables in whatever order."""
    by_name = {v.name: v for v in variables}
    uses = {v.name: _names(v) & by_name.keys() - {v.name} for v in variables}
    try:
        order = tuple(TopologicalSorter(uses).static_order())
    except CycleError as error:
        circle = list(dict.fromkeys(error.args[1]))
        raise Unsupported(
            f"{by_name[circle[0]].at}: variables that need each other: {' '.join(circle[:20])}"
        ) from error
    found: dict[str, Any] = {}
    for variable in (by_name[name] for name in order):
        found[variable.name] = _value(variable.value, {**known, **found}, f"{variable.at}: variable {variable.name}")
    return found


def _names(variable: VariableSpec) -> frozenset[str]:
    try:
        return names_in(variable.value)
    except ExpressionError as error:
        raise Unsupported(f"{variable.at}: variable {variable.name}: {error}") from error


def _value(value: Value | None, symbols: Symbols, what: str) -> Any:
    try:
        return evaluate(value, symbols)
    except ExpressionError as error:
        raise Unsupported(f"{what}: {error}") from error
