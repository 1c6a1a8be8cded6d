"""The gate that a kernel does what its realised tree says: counts and footprints, read back from compiled code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from theodolite.auditing.manifest import GateResult
from theodolite.auditing.ttir.evaluate import evaluate
from theodolite.auditing.ttir.footprint import MAX_RUNS, Coverage, canonical, extremes, joined, runs_per_program
from theodolite.errors import TheodoliteError, Unsupported
from theodolite.ir.events import Access, Events, Ints
from theodolite.lowering.plan import Launch, Program

GATE = "fidelity"
STRATIFIED = 64
CHUNK_ELEMENTS = 4_000_000
Expected = Callable[[int, Ints], Events]


def compare(compiled: Events, expected: Events, elementwise: Sequence[int]) -> str | None:
    """None where both say the same of every program, else one line that names the first difference.

    For all programs: trips, dots, exp2, fp32, reductions, and for each buffer the ordered loads and the ordered stores
    as factored footprints (`canonical`).  `elementwise` are positions in `programs` whose sorted element offsets are
    compared one by one as well.  Accesses that move nothing are left out on both sides; the order between different
    buffers is not compared.
    """
    if not np.array_equal(compiled.programs, expected.programs):
        return "the two sides ran different programs"
    return (
        _counts(compiled, expected)
        or _footprints(compiled, expected)
        or next(filter(None, (_elements(compiled, expected, p) for p in elementwise)), None)
    )


def _counts(compiled: Events, expected: Events) -> str | None:
    nothing = np.zeros(len(compiled.programs), np.int64)
    pairs = [("trips", compiled.trips, expected.trips)]
    pairs += [
        (f"dots of {m} x {n} x {k}", compiled.dots.get((m, n, k), nothing), expected.dots.get((m, n, k), nothing))
        for m, n, k in sorted({*compiled.dots, *expected.dots})
    ]
    pairs += [(name, getattr(compiled, name), getattr(expected, name)) for name in ("exp2", "fp32", "reductions")]
    for name, got, want in pairs:
        wrong = np.flatnonzero(got != want)
        if wrong.size:
            p = wrong[0]
            return f"{name}: program {compiled.programs[p]} has {got[p]}, the tree says {want[p]}"
    return None


def _by_buffer(events: Events) -> dict[tuple[str, str], list[Access]]:
    groups: dict[tuple[str, str], list[Access]] = {}
    for access in map(canonical, events.accesses):
        if access.active.any():
            groups.setdefault((access.kind, access.buffer), []).append(access)
    return groups


def _footprints(compiled: Events, expected: Events) -> str | None:
    got, want = _by_buffer(compiled), _by_buffer(expected)
    for key in dict.fromkeys([*want, *got]):
        mine, theirs = got.get(key, []), want.get(key, [])
        if len(mine) == len(theirs) and all(map(_equal, mine, theirs)):
            continue
        difference = _first_difference(compiled.programs, mine, theirs)
        if difference:
            return f"{key[0]} of {key[1]}: {difference}"
    return None


def _equal(a: Access, b: Access) -> bool:
    """Whether two canonical footprints of the same lockstep agree in every active program."""
    if [(x.stride, x.size) for x in a.axes] != [(x.stride, x.size) for x in b.axes]:
        return False
    pairs = [(a.base, b.base), *((x.valid, y.valid) for x, y in zip(a.axes, b.axes, strict=True))]
    return np.array_equal(a.active, b.active) and all(((x == y) | ~a.active).all() for x, y in pairs)


def _first_difference(programs: Ints, got: Sequence[Access], want: Sequence[Access]) -> str | None:
    """Program by program, each side's accesses in order: the lockstep may differ where the programs do not."""
    axes = max(len(a.axes) for a in (*got, *want))
    length = max(int(_active_count(side, programs).max(initial=0)) for side in (got, want))
    mine, theirs = _table(programs, got, length, axes), _table(programs, want, length, axes)
    wrong = np.argwhere((mine != theirs).any(axis=2))
    if not wrong.size:
        return None
    p, at = wrong[0]
    kernel, tree = _describe(mine[p, at]), _describe(theirs[p, at])
    return f"program {programs[p]}, access {at + 1}: the kernel moves {kernel}, the tree says {tree}"


def _active_count(side: Sequence[Access], programs: Ints) -> Ints:
    return np.sum([a.active for a in side], axis=0, dtype=np.int64) if side else np.zeros(len(programs), np.int64)


def _table(programs: Ints, side: Sequence[Access], length: int, axes: int) -> Ints:
    """[program, access, (1, base, then stride, size, valid an axis)], zeros where there is nothing."""
    table = np.zeros((len(programs), length, 2 + 3 * axes), np.int64)
    slot = np.zeros(len(programs), np.int64)
    for access in side:
        p = np.flatnonzero(access.active)
        table[p, slot[p], 0] = 1
        table[p, slot[p], 1] = access.base[p]
        for i, axis in enumerate(access.axes):
            table[p, slot[p], 2 + 3 * i] = axis.stride
            table[p, slot[p], 3 + 3 * i] = axis.size
            table[p, slot[p], 4 + 3 * i] = axis.valid[p]
        slot[p] += 1
    return table


def _describe(row: Ints) -> str:
    if not row[0]:
        return "nothing"
    axes = [f"{valid} of {size} by {stride}" for stride, size, valid in row[2:].reshape(-1, 3) if size]
    return f"from {row[1]}" + "".join(f" x {a}" for a in axes)


def _elements(compiled: Events, expected: Events, p: int) -> str | None:
    """The offsets that one program touches, element by element."""
    sides: list[dict[tuple[str, str], list[Ints]]] = []
    for events in (compiled, expected):
        groups: dict[tuple[str, str], list[Ints]] = {}
        for access in events.accesses:
            offsets = access.offsets(p)
            if offsets.size:
                groups.setdefault((access.kind, access.buffer), []).append(offsets)
        sides.append(groups)
    got, want = sides
    for key in dict.fromkeys([*want, *got]):
        mine, theirs = got.get(key, []), want.get(key, [])
        same = len(mine) == len(theirs) and all(map(np.array_equal, mine, theirs))
        if not same:
            return f"{key[0]} of {key[1]}: program {compiled.programs[p]} touches other elements than the tree says"
    return None


def stratified(total: int) -> Ints:
    """At most STRATIFIED programs: the first, the last, and evenly between them."""
    return np.unique(np.linspace(0, total - 1, min(total, STRATIFIED)).round().astype(np.int64))


@dataclass
class _Tally:
    """What the gate has seen so far."""

    programs: int = 0
    elementwise: int = 0
    accesses: int = 0
    covered: int = 0
    counted: int = 0
    partial: dict[str, list[Coverage]] = field(default_factory=dict)


def fidelity(program: Program, ttir: Mapping[str, str], expected: Expected, full: bool) -> GateResult:
    """Hold every launch of a program against what the realised tree says of it.

    `ttir` maps a kernel's name to its compiled text; `expected(launch index, programs)` gives the tree's events.
    Proven for all programs: `compare`'s counts and factored footprints, and that every access stays inside its buffer.
    Element by element: STRATIFIED programs a launch, or every program where `full` (for a twin).  Proven of stores:
    every element of a buffer that a launch stores to is stored to exactly once by it, or, where it leaves some out, by
    all such launches together (a host loop's).  Where a launch would make more than MAX_RUNS stretches, only that the
    number of stored elements is the buffer's size (figure `counted_buffers`).  Not proven: values, and the order
    between different buffers.  Never raises for a kernel that cannot be read: that fails the gate.
    """
    tally = _Tally()
    reason = None
    for index, launch in enumerate(program.launches):
        try:
            reason = _launch(program, ttir, expected, index, full, tally)
        except TheodoliteError as error:
            reason = str(error)
        if reason:
            reason = f"launch {index} ({launch.kernel}): {reason}"
            break
    else:
        reason = _leftovers(tally)
    figures = {
        "launches": len(program.launches),
        "programs": tally.programs,
        "elementwise_programs": tally.elementwise,
        "accesses": tally.accesses,
        "covered_buffers": tally.covered,
        "counted_buffers": tally.counted,
    }
    return GateResult(GATE, reason is None, reason or "every launch does what the tree says", figures)


def _launch(
    program: Program, ttir: Mapping[str, str], expected: Expected, index: int, full: bool, tally: _Tally
) -> str | None:
    launch = program.launches[index]
    if launch.kernel not in ttir:
        raise Unsupported("there is no compiled text of this kernel")
    total = math.prod(launch.grid)
    marks = stratified(total)
    sample = evaluate(ttir[launch.kernel], launch.args, marks, launch.grid)
    reason = compare(sample, expected(index, marks), range(len(marks)))
    tally.elementwise += len(marks)
    coverage = _coverages(program, sample, total)
    for programs in () if reason else _chunks(total, sample):
        events = evaluate(ttir[launch.kernel], launch.args, programs, launch.grid)
        reason = compare(events, expected(index, programs), range(len(programs)) if full else ())
        reason = reason or _stored(program, launch, events, coverage)
        if reason:
            return reason
        tally.programs += len(programs)
        tally.elementwise += len(programs) * full
        tally.accesses += sum(int(a.active.sum()) for a in events.accesses)
    return reason or _covered(coverage, tally)


def _chunks(total: int, sample: Events) -> Iterator[Ints]:
    """Program numbers in pieces that keep arrays of accesses, and of stretches stored to, below CHUNK_ELEMENTS."""
    stretches = sum(runs_per_program(canonical(a)) for a in sample.accesses if a.kind == "store")
    size = max(STRATIFIED, CHUNK_ELEMENTS // max(1, 4 * len(sample.accesses), stretches))
    for start in range(0, total, size):
        yield np.arange(start, min(total, start + size), dtype=np.int64)


def _coverages(program: Program, sample: Events, total: int) -> dict[str, Coverage]:
    """One for each buffer that the sampled programs store to."""
    stretches: dict[str, int] = {}
    for access in sample.accesses:
        if access.kind == "store":
            stretches[access.buffer] = stretches.get(access.buffer, 0) + runs_per_program(canonical(access)) * total
    sizes = {b.name: b.elements for b in program.buffers}
    return {name: Coverage(sizes.get(name, 0), n <= MAX_RUNS) for name, n in stretches.items()}


def _stored(program: Program, launch: Launch, events: Events, coverage: dict[str, Coverage]) -> str | None:
    """Add a chunk's stores; say where an access leaves its buffer."""
    sizes = {b.name: b.elements for b in program.buffers}
    for access in events.accesses:
        reach = extremes(access)
        if reach is None:
            continue
        if access.buffer not in sizes:
            return f"{launch.kernel} accesses {access.buffer}, which is no buffer of the program"
        if reach[0] < 0 or reach[1] >= sizes[access.buffer]:
            return f"{access.kind} of {access.buffer}: elements {reach[0]} to {reach[1]} of {sizes[access.buffer]}"
        if access.kind == "store":
            coverage.setdefault(access.buffer, Coverage(sizes[access.buffer], True)).add(access)
    return None


def _covered(coverage: Mapping[str, Coverage], tally: _Tally) -> str | None:
    """No element twice; what is left out has to come from other launches."""
    for name, stored in coverage.items():
        twice = stored.twice()
        if twice:
            return f"store of {name}: {twice}"
        tally.counted += not stored.exact
        if stored.missing() is None:
            tally.covered += stored.exact
        else:
            tally.partial.setdefault(name, []).append(stored)
    return None


def _leftovers(tally: _Tally) -> str | None:
    for name, parts in tally.partial.items():
        whole = joined(parts)
        reason = whole.twice() or whole.missing()
        if reason:
            return f"store of {name}: {reason}"
    return None
