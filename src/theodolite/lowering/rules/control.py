"""Rules for the grid and for loops."""

from __future__ import annotations

from theodolite.ir.steps import AddPartial, For, Home, Load, flatten
from theodolite.ir.tree import Part
from theodolite.lowering.emitter import Emitter


def grid(emitter: Emitter) -> None:
    """Program id -> tile indices (axis x, fastest first), then the lanes of every rank that no loop walks."""
    if emitter.flat:
        _flat_grid(emitter)
        return
    emitter.line("pid = tl.program_id(0)")
    fastest_first = [emitter.grid[r] for r in emitter.kernel.order]
    outermost_batch = [x.rank for x in fastest_first if emitter.is_unit(x.rank)][-1:]
    rest = "pid"
    for loop in fastest_first:
        text, last = rest, loop is fastest_first[-1]
        if not last:
            count = _count(loop.rank, emitter)
            text, rest = f"{rest} % {count}", f"{rest} // {count}"
        if loop.rank in outermost_batch or isinstance(loop.tile, Part):  # offsets grow from here: 64 bits
            text = f"({text}).to(tl.int64)"
        emitter.line(f"i_{loop.rank} = {text}")
    for loop in fastest_first:
        if isinstance(loop.tile, Part):
            emitter.numbers[f"SLICE_{loop.rank.upper()}"] = _slice_length(loop.rank, loop.tile, emitter)
    lanes(emitter)


def _slice_length(rank: str, part: Part, emitter: Emitter) -> int:
    return -(-emitter.workload.ranks[rank] // int(emitter.decisions[part.key]))


def _count(rank: str, emitter: Emitter) -> str:
    """How many programs a rank makes; printed once where it takes a division."""
    if emitter.is_unit(rank):
        return emitter.extent(rank)
    emitter.line(f"n_{rank} = tl.cdiv({emitter.extent(rank)}, {emitter.block(rank)})")
    return f"n_{rank}"


def _flat_grid(emitter: Emitter) -> None:
    assert emitter.flat is not None
    block = emitter.block(emitter.flat)
    emitter.numbers["N"] = emitter.workload.extent(emitter.flat)
    emitter.limits[emitter.flat] = "N"
    emitter.line(f"at = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})")


def lanes(emitter: Emitter) -> None:
    """Lanes of the grid's tiled ranks and of whole ranks, and what they are masked below."""
    used = [r for home in emitter.kernel.homes for r in home.ranks]
    for rank in dict.fromkeys(used):
        if emitter.is_unit(rank) or rank in emitter.loops:
            continue
        if rank in emitter.grid:
            emitter.line(f"{rank} = i_{rank} * {emitter.block(rank)} + tl.arange(0, {emitter.block(rank)})")
            emitter.limits[rank] = emitter.extent(rank)
        else:
            emitter.line(f"{rank} = tl.arange(0, {emitter.block(rank)})")
            if emitter.extent(rank) != emitter.block(rank):
                emitter.limits[rank] = emitter.extent(rank)


def loop(step: For, emitter: Emitter) -> None:
    """`for s0 in range(lo, hi, BLOCK_S)`, from the slice's start to its end, the rank's end, or the diagonal."""
    rank = step.loop.rank
    low, high = "0", emitter.extent(rank)
    sliced = rank in emitter.grid and isinstance(emitter.grid[rank].tile, Part)
    if sliced:
        emitter.line(f"lo_{rank} = i_{rank}.to(tl.int32) * SLICE_{rank.upper()}")
        low, high = f"lo_{rank}", f"tl.minimum(lo_{rank} + SLICE_{rank.upper()}, {high})"
    if step.stop:
        _, row, _ = step.stop
        edge = f"(i_{row} + 1) * {emitter.block(row)} + ({emitter.extent(rank)} - {emitter.extent(row)})"
        high = f"tl.minimum({high}, {edge})"
    if sliced or step.stop:
        emitter.line(f"hi_{rank} = {high}")
        high = f"hi_{rank}"
    emitter.limits[rank] = high
    emitter.line(f"for {rank}0 in range({low}, {high}, {emitter.block(rank)}):")


def loop_over_slices(step: For, emitter: Emitter) -> None:
    """The partials of each slice lie a whole tensor apart: the pointers advance."""
    for home in _partials(step):
        emitter.line(f"at_{home.buffer} = {emitter.base(home, with_slice=False)}")
        emitter.pointer(home)
    emitter.line(f"for j in range(0, {emitter.slices()}):")


def enter(step: For, emitter: Emitter) -> None:
    """The first lines inside a loop."""
    rank = step.loop.rank
    if rank in emitter.workload.ranks:
        emitter.line(f"{rank} = {rank}0 + tl.arange(0, {emitter.block(rank)})")


def leave(step: For, emitter: Emitter) -> None:
    """The last lines inside a loop."""
    for home in _partials(step):
        if emitter.flat:
            whole = "N"
        else:
            first, *others = (emitter.extent(r) for r in home.ranks)
            whole = " * ".join([f"{first}.to(tl.int64)", *others])
        emitter.line(f"at_{home.buffer} += {whole}")


def _partials(step: For) -> list[Home]:
    if step.loop.rank != "split":
        return []
    return [s.home for s in flatten(step.body) if isinstance(s, (Load, AddPartial))]
