"""AccelForge's mappings of attention, onto the real cascade.

Its workloads have softmax as one Einsum between two products.  A cascade of that form is attention under the view
`accelforge`: names are matched by what each tensor is, never by how it is called, and the tree says `view=accelforge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from theodolite.errors import RuleBroken, Unsupported
from theodolite.gpus.gpu import Gpu
from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of
from theodolite.ir.fission import unsound
from theodolite.ir.realise import fusion_label
from theodolite.ir.tree import Block, Compute, Loop, Node, Sequential, Spatial, Storage, Temporal, Tree, computed
from theodolite.ir.workload import Einsum, Workload
from theodolite.workloads import sdpa

MEMBERS = (("S",), ("M", "P", "D"), ("A", "O"))


@dataclass(frozen=True)
class Imported:
    """A mapping as an abstract tree of attention, its `fusion` label, and the rule it breaks under the real softmax."""

    tree: Tree
    workload: Workload
    fusion: str
    unsound: str | None


def import_mapping(path: Path, others: tuple[Path, ...], variables: Mapping[str, Any], gpu: Gpu) -> Imported:
    """Read AccelForge's YAML (a mapping, and the files with its architecture and workload) as a mapping for a GPU.

    Raises TextError or Unsupported, naming the file and the line, for what is not read; RuleBroken for an Einsum that
    is computed twice; Unsupported for a workload that is no attention, with the rule that the mapping breaks under the
    workload as it is written, where it breaks one.
    """
    sections = load(*others, path, variables=variables)
    arch, cascade = arch_of(sections), cascade_of(sections)
    read = mapping_of(sections, arch, cascade, names_of(arch))
    made = computed(read.body)
    for einsum in made:
        if made.count(einsum) > 1:
            raise RuleBroken(f"{path}: rule computed-once: Einsum {einsum} is computed {made.count(einsum)} times")
    try:
        names = _Names(cascade.workload)
    except Unsupported as error:
        broken = unsound(read, cascade.workload)
        raise Unsupported(f"{error}; and the mapping is unsound: {broken}" if broken else str(error)) from error
    what = names.attention
    tree = Tree("abstract", "looptree", what.name, gpu.name, {"view": "accelforge"}, names.block(read.body))
    return Imported(tree, what, fusion_label(tree), unsound(tree, what))


class _Names:
    """Which tensor, rank and Einsum of attention each one of a foreign cascade is."""

    def __init__(self, foreign: Workload) -> None:
        self.foreign = foreign
        if len(foreign.einsums) != 3:
            raise self._no("it has not three Einsums")
        scores, weights, output = foreign.einsums
        products = all(e.map == "mul" and e.reduce == "sum" and len(e.inputs) == 2 for e in (scores, output))
        if not products or len(weights.inputs) != 1 or weights.reduced:
            raise self._no("it is not a product, an elementwise step and a product")
        self._match(scores, weights, output)
        members = zip(foreign.einsums, MEMBERS, strict=True)
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
