"""The gate on the launch DAG: which kernels run in which order, and who writes and who reads each buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from theodolite.auditing.gates.fidelity import stratified
from theodolite.auditing.manifest import GateResult
from theodolite.auditing.ttir.evaluate import evaluate
from theodolite.auditing.ttir.parse import Function, Region, parse
from theodolite.errors import TheodoliteError, Unsupported
from theodolite.lowering.plan import Launch, Program

GATE = "launches"
MAX_GRID = ((1 << 31) - 1, 65_535, 65_535)
TYPES = {"fp16": "!tt.ptr<f16>", "fp32": "!tt.ptr<f32>", "i32": "!tt.ptr<i32>"}


def check_launches(program: Program, ttir: Mapping[str, str], expected: Sequence[Launch]) -> GateResult:
    """Hold a program's launches against those that the realised tree implies, and against the compiled kernels.

    Of `expected` the kernels' order, grids, reads and writes are compared; argument values are fidelity's business.
    Each launch's declared reads and writes must be exactly those of its compiled text: no other buffer may be reached
    by any load or store in it, and each declared one is seen to be touched.  Every workspace is written before it is
    read, and read; inputs are never written; outputs are.  No launch reads what it writes.  Grids fit CUDA's limits.
    """
    try:
        reason = _against_tree(program.launches, expected) or _against_text(program, ttir) or _order(program)
    except TheodoliteError as error:
        reason = str(error)
    figures = {"launches": len(program.launches), "workspaces": len(program.workspaces)}
    return GateResult(GATE, reason is None, reason or "the launches are those of the tree", figures)


def _against_tree(launches: Sequence[Launch], expected: Sequence[Launch]) -> str | None:
    names, wanted = [x.kernel for x in launches], [x.kernel for x in expected]
    if names != wanted:
        return f"the program launches {' '.join(names)}, the tree says {' '.join(wanted)}"
    for i, (got, want) in enumerate(zip(launches, expected, strict=True)):
        for what in ("grid", "reads", "writes"):
            a, b = getattr(got, what), getattr(want, what)
            if what != "grid":
                a, b = sorted(a), sorted(b)
            if tuple(a) != tuple(b):
                return f"launch {i} ({got.kernel}): {what} {list(a)}, the tree says {list(b)}"
    return None


def _against_text(program: Program, ttir: Mapping[str, str]) -> str | None:
    for i, launch in enumerate(program.launches):
        if launch.kernel not in ttir:
            raise Unsupported(f"launch {i}: there is no compiled text of kernel {launch.kernel}")
        if any(not 1 <= n <= most for n, most in zip(launch.grid, MAX_GRID, strict=True)):
            return f"launch {i} ({launch.kernel}): grid {list(launch.grid)} does not fit {list(MAX_GRID)}"
        reason = _types(program, launch, parse(ttir[launch.kernel])) or _touched(launch, ttir[launch.kernel])
        if reason:
            return f"launch {i} ({launch.kernel}): {reason}"
    return None


def _types(program: Program, launch: Launch, function: Function) -> str | None:
    """Every pointer gets a buffer of its own type."""
    kinds = {b.name: TYPES.get(b.dtype) for b in program.buffers}
    for param in function.params:
        given = launch.args.get(param.name)
        if param.is_pointer and kinds.get(str(given)) != param.type:
            return f"{param.name} is compiled as {param.type} and launched with {given}"
    return None


def _touched(launch: Launch, text: str) -> str | None:
    """Compare what the text may reach, and what programs do reach, with what is declared."""
    declared = {"load": set(launch.reads), "store": set(launch.writes)}
    reachable = reached_buffers(parse(text), launch.args)
    for kind, word in (("load", "reads"), ("store", "writes")):
        if reachable[kind] != declared[kind]:
            return f"{word} {sorted(reachable[kind])}, declared is {sorted(declared[kind])}"
    events = evaluate(text, launch.args, stratified(math.prod(launch.grid)), launch.grid)
    for kind, word in (("load", "read"), ("store", "written")):
        idle = sorted(name for name in declared[kind] if not events.elements(kind).get(name))
        if idle:
            return f"{idle[0]} is declared to be {word}, and none of the programs looked at touches it"
    return None


def reached_buffers(function: Function, args: Mapping[str, str | int | float]) -> dict[str, set[str]]:
    """The buffers that a load or a store of the text may reach, from where each pointer comes.

    Raises Unsupported where a launch leaves out an argument.
    """
    origin: dict[int, frozenset[str]] = {}
    for param in function.params:
        if param.name not in args:
            raise Unsupported(f"kernel {function.name}: the launch gives no argument {param.name}")
        origin[param.value] = frozenset({str(args[param.name])} if param.is_pointer else ())
    found: dict[str, set[str]] = {"load": set(), "store": set()}
    _trace(function.body, origin, found)
    return found


def _trace(region: Region, origin: dict[int, frozenset[str]], found: dict[str, set[str]]) -> None:
    """Follow pointers through a block: a result may point where any operand does, so that nothing is missed."""

    def of(*values: int) -> frozenset[str]:
        return frozenset().union(*(origin.get(i, frozenset()) for i in values))

    for op in region.ops:
        if op.name in ("tt.load", "tt.store"):
            found[op.name.removeprefix("tt.")] |= of(op.operands[0])
        elif op.name == "scf.for":
            (body,) = op.regions
            origin.update((arg, of(start)) for arg, start in zip(body.args[1:], op.operands[3:], strict=True))
            _trace(body, origin, found)
            for arg, result, after in zip(body.args[1:], op.results, body.yields, strict=True):
                if not of(after) <= of(arg):
                    raise Unsupported(f"{op.where}: a carried pointer moves to another buffer")
                origin[result] = of(arg)
        elif op.name == "scf.if":
            for side in op.regions:
                _trace(side, origin, found)
            origin.update((result, of(*(s.yields[j] for s in op.regions))) for j, result in enumerate(op.results))
        else:
            origin.update((result, of(*op.operands)) for result in op.results)


def _order(program: Program) -> str | None:
    """Walk the launches in order; each buffer is ready before it is read."""
    roles = {b.name: b.role for b in program.buffers}
    ready = {name for name, role in roles.items() if role == "input"}
    read: set[str] = set()
    for i, launch in enumerate(program.launches):
        where = f"launch {i} ({launch.kernel})"
        unknown = [x for x in (*launch.reads, *launch.writes) if x not in roles]
        if unknown:
            return f"{where}: {unknown[0]} is no buffer of the program"
        for name in launch.reads:
            if name not in ready:
                return f"{where}: reads {name} before anything has written it"
            if name in launch.writes:
                return f"{where}: reads and writes {name} in one launch"
        for name in launch.writes:
            if roles[name] == "input":
                return f"{where}: writes the input {name}"
        read.update(launch.reads)
        ready.update(launch.writes)
    for name, role in roles.items():
        if role == "output" and name not in ready:
            return f"no launch writes the output {name}"
        if role == "workspace" and name not in read:
            return f"workspace {name} is never read"
    return None
