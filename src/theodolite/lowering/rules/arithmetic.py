"""Rules for contractions, the pieces of a softmax, and merges.  `r` is the rescale factor of a carried state."""

from __future__ import annotations

from theodolite.ir.interp import MIN_DOT_K
from theodolite.ir.steps import Contract, Divide, Exp, Finish, Max, MergeState, Sum
from theodolite.ir.values import LOG2E
from theodolite.lowering.emitter import Emitter


def _result(out: str, axes: tuple[str, ...], emitter: Emitter) -> str:
    emitter.axes[out], emitter.dtypes[out] = axes, "fp32"
    emitter.note_tile(axes)
    return emitter.value(out)


def _rows(source: str, rank: str, emitter: Emitter) -> tuple[tuple[str, ...], int]:
    """(axes left after reducing `rank`, the axis that goes)."""
    axes = emitter.axes[source]
    return tuple(r for r in axes if r != rank), axes.index(rank)


# ---- contractions ----
def fits_dot(step: Contract, emitter: Emitter) -> bool:
    return emitter.tile(step.rank) >= MIN_DOT_K


def _contraction_axes(step: Contract, emitter: Emitter) -> tuple[str, ...]:
    a, b = emitter.axes[step.a], emitter.axes[step.b]
    return (*(r for r in a if r != step.rank), *(r for r in b if r != step.rank))


def dot(step: Contract, emitter: Emitter) -> None:
    left, right = emitter.value(step.a), emitter.value(step.b)
    if emitter.dtypes[step.a] != "fp16":
        left += ".to(tl.float16)"
    if emitter.dtypes[step.b] != "fp16":
        right += ".to(tl.float16)"
    if emitter.axes[step.a][-1] != step.rank:
        left = f"tl.trans({left})"
    if emitter.axes[step.b][0] != step.rank:
        right = f"tl.trans({right})"
    axes = _contraction_axes(step, emitter)
    out = _result(step.out, axes, emitter)
    accumulator = f", {_old(out, axes, step, emitter)}" if step.accumulate else ""
    emitter.line(f"{out} = tl.dot({left}, {right}{accumulator})")


def _old(out: str, axes: tuple[str, ...], step: Contract, emitter: Emitter) -> str:
    if not step.rescale:
        return out
    rows = tuple(r for r in axes if r in emitter.axes["r"])
    return f"{out} * {emitter.spread('r', rows, axes)}"


def multiply_and_sum(step: Contract, emitter: Emitter) -> None:
    """A contraction too narrow for the tensor cores: a three-dimensional product, summed along its last axis.

    Summed along the middle one, Triton would fold it back into a dot (in tf32, on operands narrower than it documents).
    """
    a, b = emitter.axes[step.a], emitter.axes[step.b]
    left, right = (f"{emitter.value(x)}.to(tl.float32)" for x in (step.a, step.b))
    if a[-1] != step.rank:
        left = f"tl.trans({left})"
    if b[-1] != step.rank:
        right = f"tl.trans({right})"
    (m,), (n,) = ([r for r in axes if r != step.rank] for axes in (a, b))
    over = (m, n, step.rank)
    emitter.note_tile(over)
    product = f"{emitter.spread(left, (m, step.rank), over)} * {emitter.spread(right, (n, step.rank), over)}"
    out = _result(step.out, (m, n), emitter)
    old = f"{_old(out, (m, n), step, emitter)} + " if step.accumulate else ""
    emitter.line(f"{out} = {old}tl.sum({product}, 2)")


def finish(step: Finish, emitter: Emitter) -> None:
    name = emitter.value(step.value)
    axes = emitter.axes[step.value]
    emitter.numbers["scale"] = step.scale * (LOG2E if step.exp2 else 1.0)
    emitter.line(f"{name} = {name} * scale")
    keep = []
    if step.limit and step.limit in emitter.limits:
        keep.append(f"{emitter.lane(step.limit, axes)} < {emitter.limits[step.limit]}")
    if step.mask:
        rank, row, _ = step.mask
        if axes == (emitter.flat,):
            at_rank, at_row = _unflatten(step.ranks, rank, emitter), _unflatten(step.ranks, row, emitter)
        else:
            at_rank, at_row = emitter.lane(rank, axes), emitter.lane(row, axes)
        keep.append(f"{at_rank} <= {at_row} + ({emitter.extent(rank)} - {emitter.extent(row)})")
    if keep:
        condition = keep[0] if len(keep) == 1 else " & ".join(f"({k})" for k in keep)
        emitter.line(f'{name} = tl.where({condition}, {name}, float("-inf"))')


def _unflatten(ranks: tuple[str, ...], rank: str, emitter: Emitter) -> str:
    """The index of one rank out of a row-major index over all of them."""
    after = ranks[ranks.index(rank) + 1 :]
    text = "at" if not after else f"at // {' // '.join(emitter.extent(r) for r in reversed(after))}"
    return f"({text} % {emitter.extent(rank)})"


# ---- softmax ----
def carried_max(step: Max, emitter: Emitter) -> None:
    rows, axis = _rows(step.source, step.rank, emitter)
    out = _result(step.out, rows, emitter)
    emitter.axes["r"] = rows
    emitter.line(f"{out}_new = tl.maximum({out}, tl.max({emitter.value(step.source)}, {axis}))")
    top = f"{out}_new"
    if step.guard:  # a row that has seen no key yet: -inf minus -inf must not be taken
        top = f"{out}_finite"
        emitter.line(f'{top} = tl.where({out}_new > float("-inf"), {out}_new, 0.0)')
        emitter.guarded.add(step.out)
    emitter.line(f"r = tl.exp2({out} - {top})")
    emitter.line(f"{out} = {out}_new")


def row_max(step: Max, emitter: Emitter) -> None:
    rows, axis = _rows(step.source, step.rank, emitter)
    source = emitter.value(step.source)
    emitter.line(f"{_result(step.out, rows, emitter)} = tl.max({source}, {axis})")


def exponential(step: Exp, emitter: Emitter) -> None:
    axes = emitter.axes[step.source]
    top = emitter.value(step.reference) + ("_finite" if step.reference in emitter.guarded else "")
    difference = f"{emitter.value(step.source)} - {emitter.spread(top, emitter.axes[step.reference], axes)}"
    if step.log2e:
        difference = f"({difference}) * {LOG2E}"
    emitter.line(f"{_result(step.out, axes, emitter)} = tl.exp2({difference})")


def carried_sum(step: Sum, emitter: Emitter) -> None:
    rows, axis = _rows(step.source, step.rank, emitter)
    out = _result(step.out, rows, emitter)
    emitter.line(f"{out} = {out} * r + tl.sum({emitter.value(step.source)}, {axis})")


def row_sum(step: Sum, emitter: Emitter) -> None:
    rows, axis = _rows(step.source, step.rank, emitter)
    source = emitter.value(step.source)
    emitter.line(f"{_result(step.out, rows, emitter)} = tl.sum({source}, {axis})")


def divide(step: Divide, emitter: Emitter) -> None:
    axes = emitter.axes[step.a]
    below = emitter.spread(emitter.value(step.d), emitter.axes[step.d], axes)
    above = emitter.value(step.a)
    emitter.line(f"{_result(step.out, axes, emitter)} = {above} / {below}")


# ---- merges ----
def merge_state(step: MergeState, emitter: Emitter) -> None:
    """Both states are rescaled to the larger maximum; a slice without keys has -inf there and adds nothing."""
    top = emitter.value(step.maximum)
    rows = emitter.axes[step.maximum]
    emitter.line(f"{top}_new = tl.maximum({top}, {top}_p)")
    emitter.line(f'r = tl.where({top} > float("-inf"), tl.exp2({top} - {top}_new), 0.0)')
    emitter.line(f'w = tl.where({top}_p > float("-inf"), tl.exp2({top}_p - {top}_new), 0.0)')
    for tensor in (*step.sums, *step.products):
        name, axes = emitter.value(tensor), emitter.axes[tensor]
        keep, add = emitter.spread("r", rows, axes), emitter.spread("w", rows, axes)
        emitter.line(f"{name} = {name} * {keep} + {name}_p * {add}")
    emitter.line(f"{top} = {top}_new")
