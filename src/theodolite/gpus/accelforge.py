"""AccelForge's architecture as a hierarchy, for each Einsum of a cascade: its expressions may depend on the Einsum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from theodolite.errors import Unsupported
from theodolite.gpus.hierarchy import Action, Array, ComputeUnit, Fanout, Hierarchy, Memory
from theodolite.ir.accelforge.arch import ActionSpec, ArchSpec, NodeSpec, Pairs, SpatialSpec, Value
from theodolite.ir.accelforge.cascade import Cascade
from theodolite.ir.accelforge.expression import ExpressionError, TensorSet, evaluate
from theodolite.ir.accelforge.latency import latency_form
from theodolite.ir.accelforge.mapping import Names

Symbols = Mapping[str, Any]


def hierarchies(arch: ArchSpec, cascade: Cascade, names: Names) -> dict[str, Hierarchy]:
    """The architecture as each Einsum sees it, by the Einsum's name in AccelForge's view.

    Raises Unsupported, with the file and the line, for an expression without a value or a number that is missing.
    """
    return {e: _Reader(arch, names, symbols).hierarchy() for e, symbols in cascade.symbols.items()}


class _Reader:
    """One architecture under the names of one Einsum."""

    def __init__(self, arch: ArchSpec, names: Names, symbols: Mapping[str, TensorSet]) -> None:
        self.arch, self.names = arch, names
        found: dict[str, Any] = dict(symbols)
        for name, value in arch.variables:
            found[name] = self.value(value, found, f"variable {name}")
        self.symbols: Symbols = found

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
            value_bits={t: int(n) for t, n in self.by_tensor(node, node.bits_per_value, "bits_per_value").items()},
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
        if per_s <= 0:
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
        """A number for each tensor of the sets that the pairs name."""
        out: dict[str, float] = {}
        for expression, value in pairs:
            tensors = self.of(node, expression, what)
            if not isinstance(tensors, TensorSet):
                raise Unsupported(f"{node.at}: {what} of {expression!r}, which is no set of tensors")
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
        return float(found)

    def of(self, node: NodeSpec, value: Value | None, what: str) -> Any:
        return self.value(value, self.symbols, f"{node.at}: {what} of {node.name}")

    @staticmethod
    def value(value: Value | None, symbols: Symbols, what: str) -> Any:
        try:
            return evaluate(value, symbols)
        except ExpressionError as error:
            raise Unsupported(f"{what}: {error}") from error
