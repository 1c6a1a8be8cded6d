"""`realise`: what a mapping becomes on a GPU.  The only place where CUDA's shape enters.

    kernel boundaries   each branch of a root Sequential, or the whole tree, is one kernel
    gridfold            temporal loops above a kernel boundary join the grid
    partials            a reduction rank spread over CTAs makes partials and a merge kernel
    workspaces          a handoff that waits off chip is a global buffer, whatever level the mapping wished for
    divide-early        where the divisor does not travel, the weights are divided before they are handed over
Every difference from the mapping is a recorded refinement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from theodolite.errors import Unsupported
from theodolite.ir.fission import fission, is_standard
from theodolite.ir.tree import (
    OFF_CHIP,
    Block,
    Compute,
    Interleaved,
    Kernel,
    Key,
    Loop,
    Node,
    Part,
    Refinement,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    Workspace,
    computed,
    substitute,
    walk,
)
from theodolite.ir.workload import Workload, causal_bound

SIMD_WARPS = 4  # of a kernel that uses no tensor cores; the decisions `warps` and `stages` are for those that do
MERGE_WARPS = 4
MERGE_ROWS = 16  # rows a CTA of a merge of carried state
MERGE_ELEMENTS = 1024  # elements a CTA of a plain merge


def realise(mapping: Tree, workload: Workload) -> Tree:
    """The realised tree of a mapping, with `mapping` kept in it.

    Raises Unsupported, naming the rule, for a mapping that no rule covers.
    """
    skeleton = realise_skeleton(mapping, workload)
    fixed = {k: int(v) for k, v in skeleton.decisions.items() if isinstance(v, int) and _is_fixed(k)}
    return replace(skeleton, body=substitute(skeleton.body, fixed))


def _is_fixed(key: str) -> bool:
    """Decisions that a realised tree prints as numbers; tiles stay holes that its header fills."""
    return key.split(".")[-1] in ("warps", "stages", "split")


def realise_skeleton(mapping: Tree, workload: Workload) -> Tree:
    """As `realise`, with warps, stages and slices left as holes: one tree for every mapping of the same structure.

    The structure depends on the decisions only through which splits are 1.
    """
    if mapping.decisions.get("gridfold", "yes") != "yes":
        raise Unsupported("gridfold=no: loops of the host round a kernel have no realisation rule yet")
    split, before = (mapping, ()) if is_standard(mapping) else fission(mapping, workload)
    groups = [_Group(split, workload, block) for block in _groups(split)]
    early = _divide_early(groups, workload)
    kernels: list[Kernel] = []
    workspaces: list[Workspace] = []
    notes = _Notes()
    for group in groups:
        group.build(early, notes)
        kernels += group.kernels
        workspaces += group.workspaces
        workspaces += _handoffs(split, group, early, workload)
    body: Block = (Storage("HBM", (*workload.inputs, *workload.outputs)), *workspaces, *kernels)
    notes.handoffs(split, early, workload)
    refinements = (*before, *notes.all())
    return Tree("realised", mapping.name, mapping.workload, mapping.gpu, split.decisions, body, refinements, mapping)


# ---- kernel boundaries and handoffs ------------------------------------------------------------------------------
def _groups(mapping: Tree) -> tuple[Block, ...]:
    """One block a kernel: the branches of a root Sequential, or everything below the global storage."""
    rest = tuple(n for n in mapping.body if not (isinstance(n, Storage) and n.level in OFF_CHIP))
    if len(rest) == 1 and isinstance(rest[0], Sequential):
        return rest[0].branches
    return (rest,)


def _intermediates(mapping: Tree, workload: Workload) -> dict[str, str]:
    """Tensor -> level, for the intermediates that wait off chip."""
    ends = {*workload.inputs, *workload.outputs}
    waits = [n for n in mapping.body if isinstance(n, Storage) and n.level in OFF_CHIP]
    return {t: n.level for n in waits for t in n.tensors if t not in ends}


def _divide_early(groups: list[_Group], workload: Workload) -> dict[str, tuple[str, str]]:
    """Output -> (weights, divisor) for each division whose divisor is made in another kernel than its numerator.

    Handing over the weights already divided saves a workspace for the divisor.
    """
    found = {}
    for group in groups:
        for name in group.made:
            einsum = workload.einsum(name)
            if einsum.map != "div" or einsum.inputs[1].tensor in group.made:
                continue
            numerator = workload.einsum(einsum.inputs[0].tensor)
            found[name] = (numerator.inputs[0].tensor, einsum.inputs[1].tensor)
    return found


def _handoffs(mapping: Tree, group: _Group, early: dict[str, tuple[str, str]], workload: Workload) -> list[Workspace]:
    waiting = _intermediates(mapping, workload)
    divisors = dict(early.values())
    out = []
    for tensor in group.made:
        if tensor in waiting:
            expression = f"{tensor} / {divisors[tensor]}" if tensor in divisors else tensor
            ranks = workload.tensor(tensor).ranks
            out.append(Workspace(f"{tensor}_w", "fp16", ranks, "holds", expression))
    return out


# ---- refinements -------------------------------------------------------------------------------------------------
@dataclass
class _Notes:
    """Refinements as they are found, printed rule by rule."""

    partials: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    other: list[Refinement] = field(default_factory=list)
    kernels: int = 0

    def handoffs(self, mapping: Tree, early: dict[str, tuple[str, str]], workload: Workload) -> None:
        waiting = _intermediates(mapping, workload)
        cached = [t for t, level in waiting.items() if level == "L2"]
        if cached:
            reason = f"a cache is not addressable; {_and(cached)} wait in global memory"
            self.other.insert(0, Refinement("handoff", reason))
        for output, (weights, divisor) in early.items():
            numerator = workload.einsum(output).inputs[0].tensor
            reason = (
                f"{weights}_w holds {weights} / {divisor}, so that the last branch yields {output} and not {numerator}"
            )
            self.other.insert(0, Refinement("divide-early", reason))
        divisors = dict(early.values())
        held = [f"{t} / {divisors[t]}" if t in divisors else t for t in waiting]
        if held:
            self.other.append(Refinement("dtype", f"{_and(held)} are rounded to fp16 in their workspaces"))

    def all(self) -> tuple[Refinement, ...]:
        out = [Refinement("partials", p) for p in self.partials]
        if self.folded:
            folded, many = list(dict.fromkeys(self.folded)), self.kernels > 1
            where = "kernel boundaries join the grids" if many else "the kernel boundary joins the grid"
            if not many and len(folded) > 1:
                where = "the kernel boundary join the grid"
            out.append(Refinement("gridfold", f"temporal {_and(folded)} above {where}"))
        rest = sorted(self.other, key=lambda r: ("handoff", "divide-early", "domain", "simd", "dtype").index(r.rule))
        before = [r for r in rest if r.rule in ("handoff", "divide-early", "domain", "simd")]
        if self.placed:
            before.append(Refinement("placement", f"Triton, not the kernel, places {', '.join(self.placed)}"))
        return (*out, *before, *(r for r in rest if r.rule == "dtype"))


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ---- one kernel group --------------------------------------------------------------------------------------------
@dataclass
class _Group:
    """The block of one kernel of the mapping, and what it becomes: the kernel, its partials and their merge."""

    mapping: Tree
    workload: Workload
    block: Block
    kernels: list[Kernel] = field(default_factory=list)
    workspaces: list[Workspace] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = computed(self.block)
        if not self.made:
            raise Unsupported("a branch without a compute has no realisation rule")
        only = len(_groups(self.mapping)) == 1
        last = self.made[-1]
        self.name = self.mapping.name if only else self.workload.labels.get(last, last.lower())
        self.above, self.inside = _cut(self.block)

    def build(self, early: dict[str, tuple[str, str]], notes: _Notes) -> None:
        notes.kernels += 1
        loops = self.grid()
        sliced = [x for x in loops if isinstance(x.tile, Part) and self.slices(x) > 1]
        loops = [x for x in loops if not isinstance(x.tile, Part) or x in sliced]
        if len(sliced) > 1:
            raise Unsupported(f"kernel {self.name} spreads two reduction ranks over CTAs; no rule merges both yet")
        body = self.rename(self.inside, early)
        carried = next((n for n in body if isinstance(n, Interleaved)), None)
        after: Block = ()
        if sliced and carried:
            at = body.index(carried) + 1
            body, after = body[:at], body[at:]
        order = self.order(loops)
        spatial = Spatial(tuple(loops), "grid")
        tensor_cores = any(isinstance(n, Compute) and n.unit == "mma" for n in walk(body))
        warps, stages = (Key("warps"), Key("stages")) if tensor_cores else (SIMD_WARPS, 1)
        self.kernels.append(Kernel(self.name, warps, stages, order, "pointer", (spatial, *body)))
        if sliced and carried:
            self.merge_state(sliced[0], carried, after, notes)
        elif sliced:
            self.merge_sum(sliced[0], body, notes)
        self.note(notes, carried)

    # ---- the grid ----
    def grid(self) -> list[Loop]:
        """One loop a rank: the last tile above the kernel boundary, in the workload's order of ranks.

        Which of them the SMs have room for, and so the order in which the tree names them, changes with sizes.
        """
        last: dict[str, Loop] = {}
        for node in self.above:
            if isinstance(node, (Temporal, Spatial)):
                last.update({loop.rank: loop for loop in node.loops})
        for loop in last.values():
            reduced = any(loop.rank in self.workload.einsum(e).reduced for e in self.made)
            free = all(loop.rank in self.workload.einsum(e).output.ranks for e in self.made)
            if reduced and not free and not isinstance(loop.tile, Part):
                raise Unsupported(
                    f"kernel {self.name}: {loop.rank} is reduced, and its loop over CTAs is not written in slices "
                    f"as {loop.rank}/({loop.rank}/KEY)"
                )
        return sorted(last.values(), key=lambda loop: list(self.workload.ranks).index(loop.rank))

    def slices(self, loop: Loop) -> int:
        assert isinstance(loop.tile, Part)
        return int(self.mapping.decisions[loop.tile.key])

    def order(self, loops: list[Loop]) -> tuple[str, ...]:
        """Axis x, fastest first: tiled ranks in the workload's order, then the batch from the inside, then slices."""
        batch = [x.rank for x in loops if x.tile == 1]
        slices = [x.rank for x in loops if isinstance(x.tile, Part)]
        tiled = [x.rank for x in loops if x.rank not in (*batch, *slices)]
        return (*tiled, *reversed(batch), *slices)

    # ---- what the kernel holds ----
    def rename(self, block: Block, early: dict[str, tuple[str, str]]) -> Block:
        """Where the weights come divided, the numerator's contraction already yields the quotient."""
        names = {self.workload.einsum(o).inputs[0].tensor: o for o in early if o in self.made}
        out: list[Node] = []
        for node in block:
            match node:
                case Storage(level, tensors):
                    out.append(Storage(level, tuple(names.get(t, t) for t in tensors)))
                case Compute(einsums, unit):
                    out.append(Compute(tuple(dict.fromkeys(names.get(e, e) for e in einsums)), unit))
                case _:
                    out.append(node)
        return tuple(out)

    # ---- merges ----
    def partial(self, tensor: str, loop: Loop) -> Workspace:
        assert isinstance(loop.tile, Part)
        ranks = self.workload.tensor(tensor).ranks
        return Workspace(f"{tensor}_p", "fp32", (Key(loop.tile.key), *ranks), "partial", tensor, loop.rank)

    def merge_kernel(self, order: tuple[str, ...], body: Block) -> None:
        self.kernels.append(Kernel(f"{self.name}_merge", MERGE_WARPS, 1, order, "pointer", body))

    def merge_state(self, loop: Loop, carried: Interleaved, after: Block, notes: _Notes) -> None:
        """Partials of a carried state, and the kernel that merges them and finishes what the loop fed."""
        state = carried.carries
        ranks = {t: self.workload.tensor(t).ranks for t in state}
        largest_first = sorted(state, key=lambda t: -len(ranks[t]))
        self.workspaces += [self.partial(t, loop) for t in largest_first]
        rows = tuple(r for r in ranks[largest_first[0]] if all(r in ranks[t] for t in state))
        grid = Spatial(tuple(Loop(r, MERGE_ROWS if r == rows[-1] else 1) for r in rows), "grid")
        merge = Interleaved(
            "split",
            state,
            (Temporal((Loop("split", 1),)), Storage("RF", tuple(f"{t}_p" for t in state)), Compute(state, "simd")),
        )
        self.merge_kernel(tuple(reversed(rows)), (grid, Storage("RF", state), merge, *after))
        notes.partials.append(
            f"{loop.rank} is a reduction rank over {self.slices(loop)} CTAs; {' '.join(state)} of a slice go to "
            f"{' '.join(f'{t}_p' for t in state)}, kernel {self.name}_merge combines them"
        )

    def merge_sum(self, loop: Loop, body: Block, notes: _Notes) -> None:
        """Partial sums of the kernel's one result, and the kernel that adds them."""
        results = computed(body)
        if len(results) != 1:
            raise Unsupported(f"kernel {self.name} slices {loop.rank} and computes {' '.join(results)}: no merge rule")
        tensor = results[0]
        self.workspaces.append(self.partial(tensor, loop))
        ranks = self.workload.tensor(tensor).ranks
        grid = Spatial((Loop("".join(ranks), MERGE_ELEMENTS),), "grid")
        adds = (Storage("RF", (tensor,)), Temporal((Loop("split", 1),)), Compute((tensor,), "simd"))
        self.merge_kernel(tuple(reversed(ranks)), (grid, *adds))
        einsum = self.workload.einsum(tensor)
        scale = " and applies the scale" if einsum.scale != 1.0 else ""
        mask = " and the mask" if einsum.scale != 1.0 and einsum.domain else ""
        notes.partials.append(
            f"{loop.rank} is a reduction rank over {self.slices(loop)} CTAs; {tensor} of a slice goes to {tensor}_p, "
            f"kernel {self.name}_merge adds them{scale}{mask}"
        )

    # ---- refinements ----
    def note(self, notes: _Notes, carried: Interleaved | None) -> None:
        from theodolite.ir.text import show_loops

        notes.folded += [show_loops((x,)) for n in self.above if isinstance(n, Temporal) for x in n.loops]
        placed = [t for n in walk(self.inside) if isinstance(n, Storage) and n.level == "SMEM" for t in n.tensors]
        if placed:
            notes.placed.append(f"SMEM {' '.join(placed)}")
        if carried:
            weights = [e for e in self.made if self.workload.einsum(e).map == "exp_sub"]
            notes.other.append(Refinement("dtype", f"{_and(weights)} is rounded to fp16 for the second dot"))
            bound = next((b for e in self.made if (b := causal_bound(self.workload.einsum(e), carried.rank))), None)
            if bound:
                reason = f"the loop over {carried.rank} ends at the diagonal; tiles wholly beyond it are skipped"
                notes.other.append(Refinement("domain", reason))
        for rank, tile in self.narrow(self.inside):
            reason = f"a contraction tile of {tile} over {rank} is below 16: multiplied and summed, not a dot"
            notes.other.append(Refinement("simd", reason))

    def narrow(self, block: Iterable[Node]) -> list[tuple[str, int]]:
        """The contraction tiles that the tensor cores cannot take."""
        out = []
        for node in walk(tuple(block)):
            if isinstance(node, Temporal):
                for loop in node.loops:
                    size = self.mapping.decisions.get(loop.tile.name) if isinstance(loop.tile, Key) else loop.tile
                    if isinstance(size, int) and size < 16:
                        out.append((loop.rank, size))
        return out


def _cut(block: Block) -> tuple[Block, Block]:
    """(what lies above the kernel boundary, what the kernel holds): the boundary is the Spatial over the SMs.

    Loops right above the compute, with no storage between, only walk a tile that the kernel takes whole.
    """
    at = next((i for i, n in enumerate(block) if isinstance(n, Spatial)), None)
    if at is None:
        raise Unsupported("a branch without a Spatial over the SMs has no realisation rule yet")
    above, inside = block[: at + 1], block[at + 1 :]
    if any(isinstance(n, Storage) for n in above):
        raise Unsupported("on-chip or L2 storage above a kernel's grid has no realisation rule yet")
    if any(isinstance(n, Spatial) for n in walk(inside)):
        raise Unsupported("a second Spatial inside a kernel has no realisation rule yet")
    kept = [
        n
        for i, n in enumerate(inside)
        if not (isinstance(n, Temporal) and all(isinstance(m, (Temporal, Compute)) for m in inside[i + 1 :]))
    ]
    return above, tuple(kept)


def fusion_label(mapping: Tree) -> str:
    """The manifest's `fusion` field, from the mapping and not from what became of it.

    single-kernel: several Einsums in one nest; on-chip: a Sequential whose branches hand over in SMEM or registers;
    split: a Sequential that hands over off chip; none: one Einsum.  A Sequential alone never implies a fused kernel.
    """
    if not any(isinstance(n, Sequential) for n in walk(mapping.body)):
        return "single-kernel" if len(computed(mapping.body)) > 1 else "none"
    return "on-chip" if _hands_over_on_chip(mapping.body) else "split"


def _hands_over_on_chip(block: Block) -> bool:
    """Whether an on-chip storage above a Sequential holds what one branch computes and a later one reads."""
    held = {t for n in block if isinstance(n, Storage) and n.level not in OFF_CHIP for t in n.tensors}
    for node in block:
        if isinstance(node, Sequential):
            made = {e for branch in node.branches for e in computed(branch)}
            if held & made or any(_hands_over_on_chip(branch) for branch in node.branches):
                return True
    return False
