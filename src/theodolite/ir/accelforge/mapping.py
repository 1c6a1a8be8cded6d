"""A mapping as AccelForge writes it, read into an abstract tree and written back.

    mapping := nodes: [node, ..., last]          the last node alone may be !Sequential or !Nested
    node    := !Storage {tensors, component} | !Temporal {rank_variable, tile_shape}
             | !Spatial {rank_variable, tile_shape, name, component} | !Compute {einsum, component}
             | !Sequential {nodes: [!Nested, ...]} | !Nested {nodes} | !Reservation {...}

A `!Reservation` is AccelForge's own note and is made anew whenever a mapping is costed, so it is dropped.  Loops in a
row become one node.  A tree says levels, units and dimensions; `Names` says which component each of them is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from theodolite.errors import RuleBroken, Unsupported
from theodolite.ir.accelforge.arch import ArchSpec
from theodolite.ir.accelforge.cascade import VIEW, Cascade
from theodolite.ir.accelforge.source import Item
from theodolite.ir.tree import (
    Block,
    Compute,
    Level,
    Loop,
    Node,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    Unit,
    computed,
    evaluate_size,
)

GPU_LEVELS: Mapping[str, str] = {"MainMemory": "HBM", "L2": "L2", "SharedMemory": "SMEM", "Register": "RF"}
GPU_UNITS: Mapping[str, str] = {"TensorCore": "mma", "ScalarUnit": "simd"}
T = TypeVar("T")
MAX_NODES = 2_000
LOOP = ("rank_variable", "tile_shape", "initial_tile_shape", "calculated_n_iterations")


@dataclass(frozen=True)
class Names:
    """The tree's word for each component: levels for memories, units for compute, dims for (component, dimension)."""

    levels: Mapping[str, str]
    units: Mapping[str, str]
    dims: Mapping[tuple[str, str], str]

    def level(self, memory: str) -> Level:
        # A hierarchy that is no GPU's has levels of its own, which only the counts read.
        return cast(Level, self.levels[memory])

    def unit(self, compute: str) -> Unit:
        return cast(Unit, self.units[compute])


def names_of(arch: ArchSpec) -> Names:
    """A GPU's words where every component has one; else HBM for the outermost memory and each other's own name."""
    memories = [n.name for n in arch.of("Memory")]
    computes = [n.name for n in arch.of("Compute")]
    levels = GPU_LEVELS if set(memories) <= set(GPU_LEVELS) else {m: m for m in memories} | {memories[0]: "HBM"}
    units = GPU_UNITS if set(computes) <= set(GPU_UNITS) else {c: c for c in computes}
    return Names(
        {m: levels[m] for m in memories},
        {c: units[c] for c in computes},
        {owner: dim for dim, owner in arch.dims().items()},
    )


# ---- reading -----------------------------------------------------------------------------------------------------
def read_mapping(item: Item, arch: ArchSpec, cascade: Cascade, names: Names, name: str, gpu: str) -> Tree:
    """The `mapping:` of a file; TextError or Unsupported names the line, RuleBroken an Einsum not computed once.

    Tiles divide the tile above them; whether loops end at 1, tensors have a storage and all of it fits is for
    `cost.buffet` to say.
    """
    reader = _Reader(arch, cascade, names)
    fields = item.fields("mapping", ("nodes",), ("nodes",))
    body = reader.block(fields["nodes"], dict(cascade.workload.ranks))
    made = computed(body)
    for einsum, times in ((e, made.count(output)) for e, output in reader.outputs.items()):
        if times != 1:
            said = "is never computed" if times == 0 else f"is computed {times} times"
            raise RuleBroken(f"{item.where}, line {item.line}: rule computed-once: Einsum {einsum} {said}")
    return Tree("abstract", name, cascade.workload.name, gpu, {}, body)


class _Reader:
    def __init__(self, arch: ArchSpec, cascade: Cascade, names: Names) -> None:
        self.arch, self.names, self.workload = arch, names, cascade.workload
        self.outputs = {e.name: e.output for e in self.workload.view(VIEW).einsums}
        self.count = 0

    def block(self, item: Item, sizes: dict[str, int]) -> Block:
        nodes: list[Node] = []
        entries = item.items("nodes")
        for i, entry in enumerate(entries):
            if entry.tag in ("Sequential", "Nested", "Compute") and i + 1 < len(entries):
                raise entry.error(f"!{entry.tag} is the last node of its list")
            for node in self.node(entry, sizes):
                _append(nodes, node)
        if not nodes or not isinstance(nodes[-1], (Compute, Sequential)):
            raise item.error("a list of nodes ends with !Compute, !Sequential or !Nested")
        return tuple(nodes)

    def node(self, item: Item, sizes: dict[str, int]) -> Iterator[Node]:
        self.count += 1
        if self.count > MAX_NODES:
            raise item.unsupported(f"a mapping of more than {MAX_NODES:,} nodes")
        match item.tag:
            case "Storage":
                yield self.storage(item)
            case "Temporal" | "Spatial":
                yield self.loop(item, sizes)
            case "Compute":
                yield self.compute(item)
            case "Sequential":
                branches = item.fields("!Sequential", ("nodes",), ("nodes",))["nodes"].items("nodes")
                if not branches:
                    raise item.error("!Sequential needs branches")
                yield Sequential(tuple(self.branch(b, dict(sizes)) for b in branches))
            case "Nested":
                yield from self.branch(item, sizes)
            case "Reservation":
                item.fields("!Reservation", ("purposes", "resource", "persistent"))
            case None:
                raise item.error("a node of a mapping has a tag, as in !Storage")
            case tag:
                raise item.unsupported(f"!{tag} in a mapping: read are !Storage, !Temporal, !Spatial, !Compute, "
                                       "!Sequential, !Nested and !Reservation")  # fmt: skip

    def branch(self, item: Item, sizes: dict[str, int]) -> Block:
        if item.tag != "Nested":
            raise item.error("a branch of !Sequential is !Nested")
        return self.block(item.fields("!Nested", ("nodes",), ("nodes",))["nodes"], sizes)

    def storage(self, item: Item) -> Storage:
        fields = item.fields("!Storage", ("tensors", "component", "persistent", "binding"), ("tensors", "component"))
        if "persistent" in fields and fields["persistent"].flag("persistent"):
            raise fields["persistent"].unsupported("a persistent storage")
        if "binding" in fields:
            raise fields["binding"].unsupported("a binding of a distributed memory")
        tensors = tuple(t.word("a tensor") for t in fields["tensors"].items("tensors"))
        known = [t.name for t in self.workload.tensors]
        for tensor in tensors:
            if tensor not in known:
                raise fields["tensors"].error(f"unknown tensor {tensor!r}: {self.workload.name} has {' '.join(known)}")
        if not tensors or len(set(tensors)) < len(tensors):
            raise fields["tensors"].error("!Storage holds one or more tensors, each once")
        return Storage(self.names.level(self.component(fields["component"], "Memory")), tensors)

    def loop(self, item: Item, sizes: dict[str, int]) -> Temporal | Spatial:
        spatial = ("name", "component") if item.tag == "Spatial" else ()
        fields = item.fields(f"!{item.tag}", (*LOOP, *spatial), ("rank_variable", "tile_shape", *spatial))
        if not isinstance(fields["rank_variable"].value, str):
            raise fields["rank_variable"].unsupported("a loop over several rank variables: write one loop each")
        rank = fields["rank_variable"].word("rank_variable")
        if rank not in self.workload.ranks:
            known = " ".join(self.workload.ranks)
            raise fields["rank_variable"].error(f"unknown rank variable {rank!r}: {self.workload.name} has {known}")
        tile = fields["tile_shape"].whole("tile_shape", plain=True)
        if "initial_tile_shape" in fields and fields["initial_tile_shape"].value != tile:
            raise fields["initial_tile_shape"].unsupported("initial_tile_shape: a first tile of another size")
        if sizes[rank] % tile:
            raise fields["tile_shape"].unsupported(f"an imperfect factor: tile {tile} of {rank} does not divide "
                                                   f"{sizes[rank]} above it")  # fmt: skip
        sizes[rank] = tile
        if not spatial:
            return Temporal((Loop(rank, tile),))
        owner = self.arch.node(fields["component"].word("component"))
        if owner is None:
            raise fields["component"].error(f"unknown component {fields['component'].value!r}")
        dim = fields["name"].word("name")
        if (owner.name, dim) not in self.names.dims:
            have = " ".join(s.name for s in owner.spatial) or "none"
            raise fields["name"].error(f"{owner.name} has no dimension {dim!r}; it has {have}")
        return Spatial((Loop(rank, tile),), self.names.dims[owner.name, dim])

    def compute(self, item: Item) -> Compute:
        fields = item.fields("!Compute", ("einsum", "component"), ("einsum", "component"))
        einsum = fields["einsum"].word("einsum")
        if einsum not in self.outputs:
            raise fields["einsum"].error(f"unknown Einsum {einsum!r}: there are {' '.join(self.outputs)}")
        return Compute((self.outputs[einsum],), self.names.unit(self.component(fields["component"], "Compute")))

    def component(self, item: Item, kind: str) -> str:
        found = self.arch.node(item.word("component"))
        if found is not None and found.kind == kind:
            return found.name
        known = " ".join(n.name for n in self.arch.nodes if n.kind == kind)
        raise item.error(f"{item.value!r} is no {kind} of the architecture: use {known}")


def _append(nodes: list[Node], node: Node) -> None:
    """Add a node; a loop joins the loops before it."""
    last = nodes[-1] if nodes else None
    if isinstance(node, Temporal) and isinstance(last, Temporal):
        nodes[-1] = Temporal((*last.loops, *node.loops))
    elif isinstance(node, Spatial) and isinstance(last, Spatial) and last.dim == node.dim:
        nodes[-1] = Spatial((*last.loops, *node.loops), node.dim)
    else:
        nodes.append(node)


# ---- writing -----------------------------------------------------------------------------------------------------
def write_mapping(tree: Tree, arch: ArchSpec, cascade: Cascade, names: Names) -> str:
    """The tree as AccelForge's YAML, sizes filled in; read again it is the same tree, loops in a row joined.

    Raises Unsupported for a node that AccelForge has no word for.
    """
    writer = _Writer(tree, cascade, names, arch)
    return "\n".join(["mapping:", "  nodes:", *writer.block(tree.body, 2)]) + "\n"


class _Writer:
    def __init__(self, tree: Tree, cascade: Cascade, names: Names, arch: ArchSpec) -> None:
        self.tree, self.workload = tree, cascade.workload
        self.memories = {level: memory for memory, level in names.levels.items()}
        self.computes = {unit: compute for compute, unit in names.units.items()}
        self.dims = {dim: owner for owner, dim in names.dims.items()}

    def block(self, block: Block, depth: int) -> Iterator[str]:
        for node in block:
            yield from self.node(node, " " * depth)

    def node(self, node: Node, indent: str) -> Iterator[str]:
        match node:
            case Storage(level, tensors):
                memory = self.known(self.memories, level, "level")
                yield f"{indent}- !Storage {{tensors: [{', '.join(tensors)}], component: {memory}}}"
            case Temporal(loops):
                for loop in loops:
                    yield f"{indent}- !Temporal {{{self.loop(loop)}}}"
            case Spatial(loops, dim):
                component, name = self.known(self.dims, dim, "dimension")
                for loop in loops:
                    yield f"{indent}- !Spatial {{{self.loop(loop)}, name: {name}, component: {component}}}"
            case Compute(einsums, unit):
                einsum = self.workload.view(VIEW).einsum_of(einsums[0])
                if sorted(einsum.members) != sorted(einsums):
                    raise Unsupported(f"compute {' '.join(einsums)}: AccelForge has one Einsum a leaf")
                compute = self.known(self.computes, unit, "unit")
                yield f"{indent}- !Compute {{einsum: {einsum.name}, component: {compute}}}"
            case Sequential(branches):
                yield f"{indent}- !Sequential"
                yield f"{indent}  nodes:"
                for branch in branches:
                    yield f"{indent}  - !Nested"
                    yield f"{indent}    nodes:"
                    yield from self.block(branch, len(indent) + 4)
            case _:
                raise Unsupported(f"{type(node).__name__}: AccelForge's mappings have no such node")

    def loop(self, loop: Loop) -> str:
        tile = evaluate_size(loop.tile, self.tree.decisions, self.workload.extent(loop.rank))
        return f"rank_variable: {loop.rank}, tile_shape: {tile}"

    @staticmethod
    def known(found: Mapping[str, T], key: str, what: str) -> T:
        if key not in found:
            raise Unsupported(f"{what} {key}: no component of the architecture stands for it")
        return found[key]
