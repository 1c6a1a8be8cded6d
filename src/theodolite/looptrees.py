"""AccelForge's mappings of attention, onto the real cascade.

Its workloads have softmax as one Einsum between two products.  A cascade of that form is attention under the view
`accelforge`: names are matched by what each tensor is, never by how it is called, and the tree says `view=accelforge`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.cost import buffet
from theodolite.errors import Infeasible, RuleBroken, Unsupported
from theodolite.gpus.accelforge import hierarchies
from theodolite.gpus.gpu import Gpu
from theodolite.gpus.hierarchy import Hierarchy
from theodolite.ir.accelforge import Cascade, Names, arch_of, cascade_of, load, mapping_of, names_of
from theodolite.ir.accelforge.mapping import GPU_LEVELS
from theodolite.ir.check import check
from theodolite.ir.fission import unsound
from theodolite.ir.realise import fusion_label
from theodolite.ir.tree import (
    LEVELS,
    Block,
    Compute,
    Loop,
    Node,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    walk,
)
from theodolite.ir.workload import Einsum, Workload
from theodolite.workloads import sdpa

MEMBERS = (("S",), ("M", "P", "D"), ("A", "O"))
FP16_BITS = 16


@dataclass(frozen=True)
class Imported:
    """A mapping as an abstract tree of attention, and its `fusion` label.

    `broken` is the rule of `check` that the tree breaks (no mapping for the GPU then), `unsound` the one that it breaks
    under the real softmax, `elsewhere` why the count has no cost for it on the file's own architecture; each None for
    none.  `notes` say what of the files the tree does not carry.
    """

    tree: Tree
    workload: Workload
    fusion: str
    broken: str | None
    unsound: str | None
    elsewhere: str | None
    notes: tuple[str, ...]


def check_shared(files: tuple[Path, ...], variables: Mapping[str, Any]) -> None:
    """Raise for what is wrong with the architecture or the workload in files that several mappings share.

    That a workload is no attention is left to `import_mapping`, which says it of a mapping.
    """
    sections = load(*files, variables=variables)
    arch = arch_of(sections) if "arch" in sections else None
    cascade = cascade_of(sections) if "workload" in sections else None
    if arch and cascade and len(cascade.workload.einsums) == len(MEMBERS):
        hierarchies(arch, cascade, names_of(arch))


def import_mapping(path: Path, others: tuple[Path, ...], variables: Mapping[str, Any], gpu: Gpu) -> Imported:
    """Read AccelForge's YAML (a mapping, and the files with its architecture and workload) as a mapping for a GPU.

    Raises TextError or Unsupported, naming the file and the line, for what is not read; RuleBroken for an Einsum not
    computed once; Unsupported for a workload that is no attention, with the rule that the mapping breaks under the
    workload as it is written, where it breaks one.
    """
    sections = load(*others, path, variables=variables)
    arch, cascade = arch_of(sections), cascade_of(sections)
    theirs = names_of(arch)
    read = mapping_of(sections, arch, cascade, theirs)
    try:
        names = _Names(cascade.workload)
    except Unsupported as error:
        broken = unsound(read, cascade.workload)
        raise Unsupported(f"{error}; and the mapping is unsound: {broken}" if broken else str(error)) from error
    machines = hierarchies(arch, cascade, theirs)
    if any(level not in LEVELS for level in theirs.levels.values()):
        foreign = [memory for memory in theirs.levels if memory not in GPU_LEVELS]
        raise Unsupported(
            f"{path}: {' '.join(foreign)}: a GPU's memories are MainMemory, L2, SharedMemory and Register"
        )
    what = names.attention
    tree = Tree("abstract", "looptree", what.name, gpu.name, {"view": "accelforge"}, names.block(read.body))
    return Imported(
        tree=tree,
        workload=what,
        fusion=fusion_label(tree),
        broken=_broken(tree, what, gpu),
        unsound=unsound(tree, what),
        elsewhere=_uncounted(read, cascade, machines),
        notes=(*_widths(cascade, machines), *_moved(read, names, theirs), *_replaced(cascade, machines, gpu)),
    )


def _broken(tree: Tree, workload: Workload, gpu: Gpu) -> str | None:
    try:
        check(tree, workload, gpu.sms)
    except RuleBroken as error:
        return str(error)
    return None


def _uncounted(tree: Tree, cascade: Cascade, machines: Mapping[str, Hierarchy]) -> str | None:
    """Why the mapping has no cost on the architecture that it was made for."""
    view = cascade.workload.view("accelforge")
    try:
        profiles = buffet.count(tree.body, cascade.workload, view, machines, {}, bits=cascade.bits, literal=True)
    except Infeasible as error:
        return str(error)
    return "; ".join(reason for reason, where in buffet.why_not(profiles).items() if np.any(where)) or None


# ---- what a tree does not carry ----------------------------------------------------------------------------------
def _widths(cascade: Cascade, machines: Mapping[str, Hierarchy]) -> Iterator[str]:
    """Attention is read, handed over and written in fp16, whatever the file says."""
    for bits in sorted(set(cascade.bits.values()) - {FP16_BITS}):
        tensors = " ".join(t for t, n in cascade.bits.items() if n == bits)
        yield f"{tensors} of {bits} bits: fp16 here"
    own: dict[tuple[str, float], set[str]] = {}
    for memory in (m for machine in machines.values() for m in machine.memories):
        for tensor, width in memory.value_bits.items():
            if width != FP16_BITS:
                own.setdefault((memory.name, width), set()).add(tensor)
    for (name, width), found in own.items():
        yield f"{' '.join(sorted(found))} of {width:g} bits in {name}: fp16 here"


def _moved(tree: Tree, names: _Names, theirs: Names) -> Iterator[str]:
    """Products run on the tensor cores, the softmax beside them."""
    components = {unit: component for component, unit in theirs.units.items()}
    for leaf in (n for n in walk(tree.body) if isinstance(n, Compute)):
        mine = names.computes[leaf.einsums[0]].unit
        if mine != leaf.unit:
            yield f"{leaf.einsums[0]} on {components[leaf.unit]}: on {mine} here"


def _replaced(cascade: Cascade, machines: Mapping[str, Hierarchy], gpu: Gpu) -> Iterator[str]:
    """The GPU's numbers and habits stand in for all of the architecture's; those that differ by name, rates unseen."""
    here = {m.name: m for m in gpu.accelforge().memories}
    units = {f.dim: f.units for n in gpu.accelforge().nodes for f in n.fanouts}
    told = {"its rates": None}  # sizes may differ from Einsum to Einsum, and most do not
    for einsum, machine in machines.items():
        tensors = cascade.symbols[einsum]["All"].members
        for fanout in (f for node in machine.nodes for f in node.fanouts):
            if fanout.units != units.get(fanout.dim):
                told[f"{units.get(fanout.dim, 'no')} {fanout.dim} for {fanout.units}"] = None
            if not all(fanout.shares(t) for t in tensors):
                told[f"{fanout.dim} may reuse every tensor"] = None
        for memory in machine.memories:
            mine = here.get(memory.name)
            if mine is None:
                told[f"no {memory.name}"] = None
            elif mine.size_bits != memory.size_bits:
                told[f"{memory.name} {mine.size_bits / 8:,.0f} for {memory.size_bits / 8:,.0f} bytes"] = None
            if not memory.starts_from_nothing:
                told[f"{memory.name} reads no output before its first write"] = None
    yield f"{gpu.name} in place of the architecture: {', '.join(told)}"


class _Names:
    """Which tensor, rank and Einsum of attention each one of a foreign cascade is."""

    def __init__(self, foreign: Workload) -> None:
        self.foreign = foreign
        if len(foreign.einsums) != len(MEMBERS):
            raise self._no("it has not three Einsums")
        scores, weights, output = foreign.einsums
        products = all(e.map == "mul" and e.reduce == "sum" and len(e.inputs) == 2 for e in (scores, output))
        if not products or len(weights.inputs) != 1 or weights.reduced:
            raise self._no("it is not a product, an elementwise step and a product")
        self._match(scores, weights, output)
        members = zip(foreign.einsums, MEMBERS, strict=True)
        # by the tensor that the Einsum makes, as a foreign leaf names it
        self.computes = {e.name: Compute(m, "simd" if "P" in m else "mma") for e, m in members}

    def _no(self, why: str) -> Unsupported:
        return Unsupported(f"{self.foreign.name} is no attention that can be lowered: {why}")

    def _match(self, scores: Einsum, weights: Einsum, output: Einsum) -> None:
        if weights.inputs[0].tensor != scores.name or weights.name not in [a.tensor for a in output.inputs]:
            raise self._no("its Einsums do not hand scores to weights and weights to the output")
        (e,), (s,) = scores.reduced, output.reduced
        rows = [r for r in scores.output.ranks if r != s]
        batch = [r for r in rows if all(r in a.ranks for a in scores.inputs)]
        (l,) = (r for r in rows if r not in batch)  # noqa: E741
        (f,) = (r for r in output.output.ranks if r not in (*batch, l))
        if len(batch) not in (1, 2):
            raise self._no(f"it has {len(batch)} ranks of heads")
        self.ranks = dict(zip(batch, ("h",) if len(batch) == 1 else ("b", "h"), strict=True))
        self.ranks |= {l: "l", s: "s", e: "e", f: "f"}
        query = next(a.tensor for a in scores.inputs if l in a.ranks)
        key = next(a.tensor for a in scores.inputs if a.tensor != query)
        value = next(a.tensor for a in output.inputs if a.tensor != weights.name)
        self.tensors = {query: "Q", key: "K", value: "V", scores.name: "S", weights.name: "P", output.name: "O"}

    @property
    def attention(self) -> Workload:
        sizes = {mine: self.foreign.ranks[theirs] for theirs, mine in self.ranks.items()}
        return sdpa(sizes.get("b", 1), sizes["h"], sizes["l"], sizes["s"], sizes["f"], False, sizes["e"])

    def block(self, block: Block) -> Block:
        return tuple(self._node(n) for n in block)

    def _loops(self, loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
        return tuple(replace(x, rank=self.ranks[x.rank]) for x in loops)

    def _node(self, node: Node) -> Node:
        match node:
            case Storage(level, tensors):
                return Storage(level, tuple(self.tensors[t] for t in tensors))
            case Temporal(loops):
                return Temporal(self._loops(loops))
            case Spatial(loops, dim):
                return Spatial(self._loops(loops), dim)
            case Sequential(branches):
                return Sequential(tuple(self.block(b) for b in branches))
            case Compute((name,), _):
                return self.computes[name]
            case _:
                raise self._no(f"a {type(node).__name__.lower()} in its mapping has no counterpart")
