"""An architecture as AccelForge writes it: memories, arrays of units and compute units, outermost first.

What depends on the Einsum stays an expression (`enabled: len(All) == 3`, `size: weight.bits_per_value`);
`gpus/accelforge.py` evaluates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from theodolite.ir.accelforge.source import Item

Value = bool | int | float | str
Pairs = tuple[tuple[str, Value], ...]
Kind = Literal["Memory", "Container", "Compute"]
ACTIONS: Mapping[Kind, tuple[str, ...]] = {"Memory": ("read", "write"), "Container": (), "Compute": ("compute",)}
DEFAULT_LATENCY = "sum(a.n_calls / a.throughput for a in actions)"
ALL = "All"
MAX_PARTS = 200  # nodes of an architecture and their dimensions

# What steers AccelForge's mapper or its energy models, and changes no cost of a given mapping.
STEERING = ("tensors", "area", "area_scale", "total_area", "extra_attributes_for_component_model", "component_class")
SCALES = ("energy_scale", "throughput_scale", "leak_power_scale", "actions_scale", "n_parallel_instances")
SPATIAL = ("name", "fanout", "may_reuse", "reuse", "loop_bounds", "min_usage", "usage_scale", "power_gateable")
WIDTHS = ("bits_per_value", "bits_per_action", "values_per_action")
COMMON = ("name", "spatial", "enabled", "actions", "leak_power", "total_latency", *SCALES, *STEERING)
FIELDS: Mapping[Kind, tuple[str, ...]] = {
    "Memory": (*COMMON, "size", "skip_initial_output_write", *WIDTHS),
    "Container": ("name", "spatial"),
    "Compute": (*COMMON, "skip_initial_output_write"),
}
ACTION = ("name", "energy", "energy_scale", "throughput", "throughput_scale", "bits_per_action", "values_per_action",
          "extra_attributes_for_component_model")  # fmt: skip


@dataclass(frozen=True)
class SpatialSpec:
    """`units` copies of a node and of all below it; `may_reuse` says which tensors they may share."""

    name: str
    units: Value
    may_reuse: Value = ALL


@dataclass(frozen=True)
class ActionSpec:
    """`energy` in joules an action, `throughput` in actions a second; None where the file gives none."""

    name: str
    energy: Value | None = None
    throughput: Value | None = None
    energy_scale: Value = 1
    throughput_scale: Value = 1
    bits_per_action: Value | None = None
    values_per_action: Pairs = ()


@dataclass(frozen=True)
class NodeSpec:
    """One node; `at` is its file and line, `dummy` that what it does not say costs nothing."""

    kind: Kind
    name: str
    spatial: tuple[SpatialSpec, ...] = ()
    actions: tuple[ActionSpec, ...] = ()
    size: Value | None = None
    enabled: Value = True
    leak_power: Value | None = None
    total_latency: Value = DEFAULT_LATENCY
    scales: Pairs = ()
    skip_initial_output_write: bool = True
    bits_per_value: Pairs = ()
    bits_per_action: Value | None = None
    values_per_action: Pairs = ()
    dummy: bool = False
    at: str = field(default="", compare=False)


@dataclass(frozen=True)
class VariableSpec:
    """A name for an expression; `at` is its file and line."""

    name: str
    value: Value
    at: str = field(default="", compare=False)


@dataclass(frozen=True)
class ArchSpec:
    """The nodes in the order of the file, which is that of the hierarchy, and the variables of their expressions.

    `variables` may use each other in any order, the sets of tensors, and `outer`: the variables beside the
    architecture, which know no sets.
    """

    nodes: tuple[NodeSpec, ...]
    variables: tuple[VariableSpec, ...] = ()
    outer: tuple[VariableSpec, ...] = ()

    def node(self, name: str) -> NodeSpec | None:
        return next((n for n in self.nodes if n.name == name), None)

    def of(self, kind: Kind) -> tuple[NodeSpec, ...]:
        return tuple(n for n in self.nodes if n.kind == kind)

    def dim(self, component: str, name: str) -> str:
        """What a tree calls a dimension: its own name, after the component's where two components share it."""
        owners = [n.name for n in self.nodes for s in n.spatial if s.name == name]
        return name if len(owners) == 1 else f"{component}.{name}"

    def dims(self) -> dict[str, tuple[str, str]]:
        """(component, dimension) by what a tree calls it."""
        return {self.dim(n.name, s.name): (n.name, s.name) for n in self.nodes for s in n.spatial}


def read_arch(item: Item, variables: Item | None = None) -> ArchSpec:
    """The `arch:` of a file (and the `variables:` beside it); TextError or Unsupported names the line."""
    fields = item.fields("arch", ("nodes", "variables", "extra_attributes_for_all_component_models"), ("nodes",))
    nodes = tuple(_nodes(fields["nodes"]))
    if len(nodes) + sum(len(n.spatial) for n in nodes) > MAX_PARTS:
        raise item.unsupported(f"an architecture of more than {MAX_PARTS} nodes and dimensions")
    names = [n.name for n in nodes]
    if len(set(names)) < len(names):
        raise item.error(f"two nodes share a name: {' '.join(names)}")
    if not nodes or nodes[0].kind != "Memory":
        raise item.error("an architecture begins with its outermost memory")
    if not any(n.kind == "Compute" for n in nodes):
        raise item.error("an architecture needs a Compute")
    return ArchSpec(nodes, _variables(fields.get("variables")), _variables(variables))


def _variables(item: Item | None) -> tuple[VariableSpec, ...]:
    entries = item.entries("variables").items() if item else ()
    return tuple(VariableSpec(name, v.scalar("variables"), f"{v.where}, line {v.line}") for name, v in entries)


def _nodes(item: Item) -> Iterator[NodeSpec]:
    for node in item.items("nodes"):
        if node.tag == "Hierarchical":
            yield from _nodes(node.fields("!Hierarchical", ("nodes",), ("nodes",))["nodes"])
        elif node.tag == "Memory":
            yield _node(node, "Memory")
        elif node.tag == "Container":
            yield _node(node, "Container")
        elif node.tag == "Compute":
            yield _node(node, "Compute")
        else:
            raise node.unsupported(f"{_tagged(node)} in an architecture: read are !Memory, !Container, !Compute and "
                                   "!Hierarchical")  # fmt: skip


def _node(item: Item, kind: Kind) -> NodeSpec:
    required = ("name", "size") if kind == "Memory" else ("name",)
    fields = item.fields(f"!{kind}", FIELDS[kind], required)
    name = fields["name"].word("a node's name")
    model = fields["component_class"].text("component_class") if "component_class" in fields else None
    skip = fields.get("skip_initial_output_write")
    return NodeSpec(
        kind=kind,
        name=name,
        spatial=tuple(_spatial(s) for s in fields["spatial"].items("spatial")) if "spatial" in fields else (),
        actions=_actions(fields.get("actions"), kind),
        size=_value(fields, "size"),
        enabled=_value(fields, "enabled", True) or False,
        leak_power=_value(fields, "leak_power"),
        total_latency=fields["total_latency"].scalar("total_latency") if "total_latency" in fields else DEFAULT_LATENCY,
        scales=tuple((s, fields[s].scalar(s)) for s in SCALES if s in fields),
        skip_initial_output_write=skip.flag("skip_initial_output_write") if skip else True,
        bits_per_value=_pairs(fields.get("bits_per_value"), "bits_per_value"),
        bits_per_action=_value(fields, "bits_per_action"),
        values_per_action=_pairs(fields.get("values_per_action"), "values_per_action"),
        dummy=model == "Dummy",
        at=f"{item.where}, line {item.line}",
    )


def _spatial(item: Item) -> SpatialSpec:
    fields = item.fields("spatial", SPATIAL, ("name", "fanout"))
    if "power_gateable" in fields and fields["power_gateable"].value is not False:
        raise fields["power_gateable"].unsupported("power gating: leak power of all units is counted")
    # AccelForge: what must be reused is what may be, unless that is said apart
    reused = fields.get("may_reuse", fields.get("reuse"))
    return SpatialSpec(
        name=fields["name"].word("a dimension's name"),
        units=fields["fanout"].scalar("fanout"),
        may_reuse=reused.scalar("may_reuse") if reused else ALL,
    )


def _actions(item: Item | None, kind: Kind) -> tuple[ActionSpec, ...]:
    """The actions of a node; those that the file leaves out are there without numbers."""
    found: dict[str, ActionSpec] = {}
    for entry in item.items("actions") if item else ():
        if isinstance(entry.value, dict) and "latency" in entry.value:
            raise entry.value["latency"].unsupported("latency of an action: write its throughput")
        fields = entry.fields("an action", ACTION, ("name",))
        name = fields["name"].word("an action's name")
        if name not in ACTIONS[kind]:
            raise entry.unsupported(f"action {name} of a {kind}: read are {', '.join(ACTIONS[kind])}")
        if name in found:
            raise entry.error(f"action {name} is given twice")
        found[name] = ActionSpec(
            name,
            _value(fields, "energy"),
            _value(fields, "throughput"),
            _value(fields, "energy_scale", 1) or 0,
            _value(fields, "throughput_scale", 1) or 0,
            _value(fields, "bits_per_action"),
            _pairs(fields.get("values_per_action"), "values_per_action"),
        )
    return tuple(found.get(name, ActionSpec(name)) for name in ACTIONS[kind])


def _value(fields: Mapping[str, Item], name: str, default: Value | None = None) -> Value | None:
    return fields[name].scalar(name) if name in fields else default


def _pairs(item: Item | None, what: str) -> Pairs:
    return tuple((k, v.scalar(what)) for k, v in item.entries(what).items()) if item else ()


def _tagged(item: Item) -> str:
    return f"!{item.tag}" if item.tag else "a node without a tag"
