"""A realised kernel with everything spelled out: which tile is loaded where, what is computed on it, what is stored.

A tree says where tensors wait; loads and stores follow from that:
  - a Storage of a tensor that the kernel does not compute is a load from the tensor's home;
  - an operand without a Storage is loaded at the Compute that reads it;
  - a tensor that the kernel computes is stored to its home at the end of the block that holds its Storage, or at its
    Compute where it has none;
  - a reduction is finished (scale, mask) where its last loop ends, and never before a partial is stored.
The interpreter, the closed-form counts and the printer of kernels each walk these steps, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from theodolite.errors import Unsupported
from theodolite.ir.carries import update_of
from theodolite.ir.tree import (
    Block,
    Compute,
    HostLoop,
    Interleaved,
    Kernel,
    Key,
    Loop,
    Sequential,
    Spatial,
    Storage,
    Temporal,
    Tree,
    Workspace,
    computed,
    walk,
)
from theodolite.ir.workload import Einsum, Workload, causal_bound

SLICES = "split"  # the pseudo rank that a merge kernel loops over: the number of partials


@dataclass(frozen=True)
class Home:
    """Where a tensor lives in global memory.  A partial has one slice of `tensor` for each part of `over`."""

    buffer: str
    dtype: str
    ranks: tuple[str, ...]
    tensor: str
    over: str | None = None
    slices: int | Key = 1
    divisor: str | None = None


@dataclass(frozen=True)
class Load:
    """value := the current tile of the home; lanes outside it read `fill`."""

    value: str
    home: Home
    fill: float


@dataclass(frozen=True)
class Clear:
    """value := the identity of its reduction."""

    value: str
    ranks: tuple[str, ...]
    fill: float


@dataclass(frozen=True)
class Contract:
    """out := [out, rescaled if carried, +] sum over `rank` of a * b.  The tile takes a dot, or multiplies and sums."""

    out: str
    a: str
    b: str
    rank: str
    accumulate: bool
    rescale: bool


@dataclass(frozen=True)
class Finish:
    """value := scale * value, masked to -inf outside the domain.  `exp2`: log2(e) is folded into the scale.

    `mask` is (rank, row rank, offset) for `rank <= row + offset`; `limit` masks the lanes past the rank's end too,
    which a reduction in the same kernel would otherwise see.
    """

    value: str
    ranks: tuple[str, ...]
    scale: float
    exp2: bool
    mask: tuple[str, str, int] | None
    limit: str | None


@dataclass(frozen=True)
class Max:
    """out := max over rank of source; carried: against the old out, whose rescale factor 2^(old - new) is kept.

    `guard`: a row may still see only masked lanes, so that -inf minus -inf must not be taken.
    """

    out: str
    source: str
    rank: str
    carried: bool
    guard: bool


@dataclass(frozen=True)
class Exp:
    """out := exp(source - reference), as 2^x; `log2e` multiplies by log2(e) where the source lacks it."""

    out: str
    source: str
    reference: str
    log2e: bool


@dataclass(frozen=True)
class Sum:
    """out := sum over rank of source; carried: rescaled old out added."""

    out: str
    source: str
    rank: str
    carried: bool


@dataclass(frozen=True)
class Divide:
    """out := a / d, d broadcast."""

    out: str
    a: str
    d: str


@dataclass(frozen=True)
class AddPartial:
    """value += the current slice of its partials."""

    value: str
    home: Home


@dataclass(frozen=True)
class MergeState:
    """(maximum, sum, product) := the carried state merged with one slice's, both rescaled to the larger maximum."""

    maximum: str
    sums: tuple[str, ...]
    products: tuple[str, ...]


@dataclass(frozen=True)
class Store:
    """The home's current tile := value, in the home's dtype."""

    value: str
    home: Home


@dataclass(frozen=True)
class For:
    """A loop over `rank` in steps of `loop.tile`.  `stop` ends it at the domain's edge for this program's rows."""

    loop: Loop
    carries: tuple[str, ...]
    stop: tuple[str, str, int] | None
    body: tuple[Step, ...]


Step = Load | Clear | Contract | Finish | Max | Exp | Sum | Divide | AddPartial | MergeState | Store | For


@dataclass(frozen=True)
class KernelSteps:
    """One kernel: its grid (outermost loop first; `order` is axis x, fastest first) and its steps."""

    name: str
    warps: int | Key
    stages: int | Key
    grid: tuple[Loop, ...]
    order: tuple[str, ...]
    steps: tuple[Step, ...]
    is_merge: bool
    homes: tuple[Home, ...]

    @property
    def loads(self) -> tuple[Home, ...]:
        """The homes it reads, each once, in order."""
        found = [s.home for s in flatten(self.steps) if isinstance(s, (Load, AddPartial))]
        return tuple(dict.fromkeys(found))

    @property
    def stores(self) -> tuple[Home, ...]:
        found = [s.home for s in flatten(self.steps) if isinstance(s, Store)]
        return tuple(dict.fromkeys(found))


def flatten(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, those inside loops included, in order."""
    for step in steps:
        yield step
        if isinstance(step, For):
            yield from flatten(step.body)


def kernel_steps(tree: Tree, workload: Workload) -> tuple[KernelSteps, ...]:
    """The kernels of a realised tree in launch order; Unsupported names what has no meaning yet."""
    if any(isinstance(n, HostLoop) for n in tree.body):
        raise Unsupported("host loop: kernels launched in a loop of the host cannot be spelled out yet")
    return tuple(_Elaborate(tree, workload, k).kernel() for k in tree.kernels)


@dataclass
class _Elaborate:
    tree: Tree
    workload: Workload
    node: Kernel
    grid: list[Loop] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # ranks of the temporal loops that are open
    held: set[str] = field(default_factory=set)  # tensors with on-chip storage in scope
    homes: list[Home] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = set(computed(self.node.body))
        self.is_merge = any(
            isinstance(n, Temporal) and any(x.rank == SLICES for x in n.loops) for n in walk(self.node.body)
        )

    def kernel(self) -> KernelSteps:
        steps = tuple(self.block(self.node.body, None))
        n = self.node
        return KernelSteps(
            n.name, n.warps, n.stages, tuple(self.grid), n.order, steps, self.is_merge, tuple(dict.fromkeys(self.homes))
        )

    # ---- blocks ----
    def block(self, block: Block, carried: Interleaved | None) -> Iterator[Step]:
        """The steps of a block; what it stores comes at its end."""
        pending: list[str] = []
        for at, node in enumerate(block):
            match node:
                case Spatial(loops, "grid"):
                    self.grid += loops
                case Storage(_, tensors):
                    yield from self.storage(tensors, block[at + 1 :], pending)
                case Temporal(loops):
                    yield from self.temporal(loops, block[at + 1 :], carried, pending)
                    break
                case Interleaved():
                    yield from self.block(node.body, node)
                case Compute(einsums, _):
                    yield from self.compute(einsums, carried)
                case Sequential() | Spatial() | Workspace() | HostLoop() | Kernel():
                    raise Unsupported(f"{type(node).__name__.lower()} inside kernel {self.node.name} has no rule yet")
        for tensor in pending:
            yield from self.finish_and_store(tensor)

    def storage(self, tensors: tuple[str, ...], rest: Block, pending: list[str]) -> Iterator[Step]:
        for tensor in tensors:
            self.held.add(tensor)
            partial = self.partial_named(tensor)
            if partial:
                yield self.load(tensor, partial)
            elif tensor not in self.made:
                yield self.load(tensor, self.home_to_read(tensor))
            else:
                if self.accumulates(tensor, rest):
                    einsum = self.einsum(tensor)
                    yield Clear(tensor, einsum.output.ranks, float("-inf") if einsum.reduce == "max" else 0.0)
                pending.append(tensor)

    def temporal(
        self, loops: tuple[Loop, ...], rest: Block, carried: Interleaved | None, pending: list[str]
    ) -> Iterator[Step]:
        """The first loop round the others round the rest of the block."""
        loop, *inner = loops
        self.loops.append(loop.rank)
        below: Block = (Temporal(tuple(inner)), *rest) if inner else rest
        stop = self.stop(loop.rank) if carried and carried.rank == loop.rank else None
        carries = carried.carries if carried and carried.rank == loop.rank else ()
        yield For(loop, carries, stop, tuple(self.block(below, carried)))
        self.loops.pop()

    def stop(self, rank: str) -> tuple[str, str, int] | None:
        bounds = {b for e in self.made if (b := causal_bound(self.workload.einsum(e), rank))}
        return (rank, *bounds.pop()) if len(bounds) == 1 else None

    # ---- homes ----
    def home(self, workspace: Workspace) -> Home:
        tensor, _, divisor = workspace.tensor.partition(" / ")
        ranks = tuple(e for e in workspace.extents if isinstance(e, str))
        first = workspace.extents[0]
        slices = first if workspace.role == "partial" and not isinstance(first, str) else 1
        return Home(workspace.name, workspace.dtype, ranks, tensor, workspace.rank, slices, divisor or None)

    def partial_named(self, name: str) -> Home | None:
        for workspace in self.tree.workspaces:
            if workspace.name == name and workspace.role == "partial":
                return self.home(workspace)
        return None

    def holder(self, tensor: str) -> Home | None:
        for workspace in self.tree.workspaces:
            if workspace.role == "holds" and self.home(workspace).tensor == tensor:
                return self.home(workspace)
        if tensor in (*self.workload.inputs, *self.workload.outputs):
            t = self.workload.tensor(tensor)
            return Home(t.name, t.dtype, t.ranks, t.name)
        return None

    def partial_of(self, tensor: str) -> Home | None:
        for workspace in self.tree.workspaces:
            if workspace.role == "partial" and workspace.tensor == tensor:
                return self.home(workspace)
        return None

    def home_to_read(self, tensor: str) -> Home:
        home = self.holder(tensor)
        if home is None:
            raise Unsupported(f"kernel {self.node.name} reads {tensor}, which no workspace holds")
        return home

    def home_to_write(self, tensor: str) -> Home | None:
        return self.holder(tensor) if self.is_merge else (self.partial_of(tensor) or self.holder(tensor))

    def load(self, value: str, home: Home) -> Load:
        self.homes.append(home)
        maximum = any(e.name == home.tensor and e.reduce == "max" for e in self.workload.einsums)
        scores = any(e.reduce == "max" and e.inputs[0].tensor == home.tensor for e in self.workload.einsums)
        return Load(value, home, float("-inf") if maximum or scores else 0.0)

    # ---- computes ----
    def einsum(self, name: str) -> Einsum:
        """The Einsum that computes a tensor here.  O = A / D is A's contraction where P already holds P / D."""
        einsum = self.workload.einsum(name)
        numerator = einsum.inputs[0].tensor
        if einsum.map == "div" and numerator not in self.made and not self.is_merge:
            return Einsum(einsum.output, self.workload.einsum(numerator).inputs, "mul", "sum")
        return einsum

    def accumulates(self, tensor: str, rest: Block) -> bool:
        """Whether a loop over one of the tensor's reduction ranks, or over slices, lies in the rest of its block."""
        einsum = self.einsum(tensor)
        ranks = {x.rank for n in walk(rest) if isinstance(n, Temporal) for x in n.loops}
        return bool(ranks & {*einsum.reduced, SLICES}) and (einsum.reduce is not None or self.is_merge)

    def compute(self, einsums: tuple[str, ...], carried: Interleaved | None) -> Iterator[Step]:
        if self.is_merge and SLICES in self.loops:
            yield from self.merge(einsums, carried)
            return
        for name in einsums:
            einsum = self.einsum(name)
            for access in einsum.inputs:
                if access.tensor not in self.held and access.tensor not in self.made:
                    yield self.load(access.tensor, self.home_to_read(access.tensor))
            yield from self.operation(name, einsum, carried)
            if name not in self.held:
                yield from self.finish_and_store(name)

    def operation(self, name: str, einsum: Einsum, carried: Interleaved | None) -> Iterator[Step]:
        rank = einsum.reduced[0] if einsum.reduced else ""
        over = bool(carried and name in carried.carries and carried.rank == rank)
        if over:
            update_of(self.workload, name, rank)  # raises where nothing carries it
        sources = [a.tensor for a in einsum.inputs]
        match einsum.map, einsum.reduce:
            case "mul", "sum" if len(einsum.reduced) == 1:
                accumulate = over or rank in self.loops
                yield Contract(name, sources[0], sources[1], rank, accumulate, over)
                if not accumulate and not over:
                    yield from self.finish(name)
            case "copy", "max":
                yield Max(name, sources[0], rank, over, over and self.may_see_nothing(name, rank))
            case "exp_sub", None:
                yield Exp(name, sources[0], sources[1], sources[0] not in self.made)
            case "copy", "sum":
                yield Sum(name, sources[0], rank, over)
            case "div", None:
                yield Divide(name, sources[0], sources[1])
            case _:
                raise Unsupported(f"{einsum.map} with {einsum.reduce} over {einsum.reduced} has no rule yet ({name})")

    def may_see_nothing(self, name: str, rank: str) -> bool:
        """A row of a slice that starts past the diagonal sees only masked lanes."""
        sliced = any(x.rank == rank for x in self.grid)
        return sliced and causal_bound(self.workload.einsum(name), rank) is not None

    def merge(self, einsums: tuple[str, ...], carried: Interleaved | None) -> Iterator[Step]:
        if carried is None:
            for name in einsums:
                home = self.partial_of(name)
                if home is None:
                    raise Unsupported(f"kernel {self.node.name} merges {name}, of which there are no partials")
                self.homes.append(home)
                yield AddPartial(name, home)
            return
        rank = self.partial_rank(einsums[0])
        updates = {name: update_of(self.workload, name, rank) for name in einsums}
        yield MergeState(
            next(n for n, u in updates.items() if u == "running max"),
            tuple(n for n, u in updates.items() if u == "rescaled sum"),
            tuple(n for n, u in updates.items() if u == "rescaled sum of products"),
        )

    def partial_rank(self, tensor: str) -> str:
        home = self.partial_of(tensor)
        if home is None or home.over is None:
            raise Unsupported(f"kernel {self.node.name} merges {tensor}, of which there are no partials")
        return home.over

    # ---- ends ----
    def finish(self, tensor: str) -> Iterator[Step]:
        """Scale and mask of a contraction whose reduction is complete."""
        einsum = self.workload.einsum(tensor)
        consumers = [e for e in self.workload.einsums if e.name in self.made and tensor in [a.tensor for a in e.inputs]]
        here = [e for e in consumers if e.reduce == "max"]
        # a maximum taken here wants log2(e) and the rank's end, even where the scale is 1 and nothing is masked
        if einsum.map != "mul" or not (here or einsum.domain or einsum.scale != 1.0):
            return
        limit = here[0].reduced[0] if here else None
        mask = next(((r, *b) for r in einsum.output.ranks if (b := causal_bound(einsum, r))), None)
        yield Finish(tensor, einsum.output.ranks, einsum.scale, bool(here), mask, limit)

    def finish_and_store(self, tensor: str) -> Iterator[Step]:
        home = self.home_to_write(tensor)
        if home is None:
            return
        self.homes.append(home)
        if home.over is None:
            einsum = self.einsum(tensor)
            if tensor not in self.workload.outputs and einsum.map == "mul":
                yield from self.finish(tensor)
            if home.divisor:
                yield Divide(tensor, tensor, home.divisor)
        yield Store(tensor, home)
