"""The worked flash program and a causal one as plan records, and what their programs do, written down by hand."""

from __future__ import annotations

import numpy as np

from tests.auditing.ttir_compiled import SOURCE, compiled
from theodolite.ir.events import Access, Axis, Events
from theodolite.lowering.plan import Buffer, KernelSpec, Launch, Program


def tile(kind, buffer, active, base, *axes):
    """`axes` are (stride, size, valid) with valid a number or one a program."""
    p = len(active)
    full = tuple(Axis(s, n, np.broadcast_to(np.asarray(v, np.int64), p)) for s, n, v in axes)
    return Access(kind, buffer, active, np.asarray(base, np.int64), full)


def flash_events(programs, bm, bn, f, bh, l, s, s_slice):  # noqa: E741
    tiles = -(-l // bm)
    i_l, i_bh, i_s = programs % tiles, programs // tiles % bh, programs // (tiles * bh)
    low, high = i_s * s_slice, np.minimum((i_s + 1) * s_slice, s)
    trips = np.maximum(0, -(-(high - low) // bn))
    rows = (f, bm, np.minimum(bm, l - i_l * bm))
    everyone = np.ones(len(programs), bool)
    out = [tile("load", "Q", everyone, (i_bh * l + i_l * bm) * f, rows, (1, f, f))]
    for j in range(trips.max()):
        first = low + j * bn
        keys = (f, bn, np.clip(high - first, 0, bn))
        out += [tile("load", t, trips > j, (i_bh * s + first) * f, keys, (1, f, f)) for t in "KV"]
    row = (i_s * bh + i_bh) * l + i_l * bm
    out.append(tile("store", "A_p", everyone, row * f, rows, (1, f, f)))
    out += [tile("store", t, everyone, row, (1, *rows[1:])) for t in ("M_p", "D_p")]
    dots = {}
    for shape in ((bm, bn, f), (bm, f, bn)):
        dots[shape] = dots.get(shape, 0) + trips
    fp32 = trips * (4 * bm * bn + 4 * bm + bm * f)
    return Events(programs, tuple(out), trips, dots, trips * (bm * bn + bm), fp32, 2 * trips)


def merge_events(programs, rows, f, bh, l, split):  # noqa: E741
    tiles = -(-l // rows)
    i_l, i_bh = programs % tiles, programs // tiles
    valid = np.minimum(rows, l - i_l * rows)
    everyone = np.ones(len(programs), bool)
    out = []
    for i in range(split):
        row = (i * bh + i_bh) * l + i_l * rows
        out += [tile("load", t, everyone, row, (1, rows, valid)) for t in ("M_p", "D_p")]
        out.append(tile("load", "A_p", everyone, row * f, (f, rows, valid), (1, f, f)))
    out.append(tile("store", "O", everyone, (i_bh * l + i_l * rows) * f, (f, rows, valid), (1, f, f)))
    each = np.ones(len(programs), np.int64)
    fp32 = each * (split * (6 * rows + 3 * rows * f) + rows * f)
    return Events(programs, tuple(out), each * split, {}, each * 2 * split * rows, fp32, each * 0)


def causal_events(programs, bm, bn, f, l, s):  # noqa: E741
    tiles = -(-l // bm)
    i_l, i_bh = programs % tiles, programs // tiles
    high = np.minimum(s, (i_l + 1) * bm + s - l)
    trips = -(-high // bn)
    rows = (f, bm, np.minimum(bm, l - i_l * bm))
    everyone = np.ones(len(programs), bool)
    out = [tile("load", "Q", everyone, (i_bh * l + i_l * bm) * f, rows, (1, f, f))]
    for j in range(trips.max()):
        keys = (f, bn, np.clip(high - j * bn, 0, bn))
        out += [tile("load", t, trips > j, (i_bh * s + j * bn) * f, keys, (1, f, f)) for t in "KV"]
    out.append(tile("store", "O", everyone, (i_bh * l + i_l * bm) * f, rows, (1, f, f)))
    dots = {(bm, bn, f): trips * (2 if bn == f else 1)} | ({(bm, f, bn): trips} if bn != f else {})
    fp32 = trips * (3 * bm * bn + 4 * bm + bm * f) + bm * f
    return Events(programs, tuple(out), trips, dots, trips * (bm * bn + bm), fp32, 2 * trips)


def inputs(bh, l, s, f):  # noqa: E741
    shapes = {"Q": (bh, l, f), "K": (bh, s, f), "V": (bh, s, f)}
    return [Buffer(name, "fp16", shape, "input") for name, shape in shapes.items()]


def flash_program(bh=4, l=100, s=77, split=2, source=SOURCE):  # noqa: E741
    """(program, compiled text a kernel, expected events) of flash with tiles of 16 x 32 and its merge; ragged."""
    f, s_slice = 16, -(-s // split)
    sizes = {"BH": bh, "L": l}
    partials = {"A_p": (split, bh, l, f), "M_p": (split, bh, l), "D_p": (split, bh, l)}
    buffers = inputs(bh, l, s, f) + [Buffer(n, "fp32", shape, "workspace") for n, shape in partials.items()]
    buffers.append(Buffer("O", "fp16", (bh, l, f), "output"))
    args = {n: n for n in ("Q", "K", "V", "A_p", "M_p", "D_p")} | {"scale": 0.36} | sizes | {"S": s, "S_SLICE": s_slice}
    merge_args = {n: n for n in ("A_p", "M_p", "D_p", "O")} | sizes | {"SPLIT": split}
    tiles = -(-l // 16) * bh
    launches = (
        Launch("flash", (tiles * split, 1, 1), args, ("Q", "K", "V"), ("A_p", "M_p", "D_p")),
        Launch("flash_merge", (tiles, 1, 1), merge_args, ("A_p", "M_p", "D_p"), ("O",)),
    )
    consts = {"flash": {"BM": 16, "BN": 32, "F": f}, "flash_merge": {"ROWS": 16, "F": f}}
    ttir = {name: compiled(name, c, source=source) for name, c in consts.items()}

    def expected(index, programs):
        if index:
            return merge_events(programs, 16, f, bh, l, split)
        return flash_events(programs, 16, 32, f, bh, l, s, s_slice)

    return _program(source, consts, buffers, launches), ttir, expected


def causal_program(bh=2, l=70, s=90, source=SOURCE):  # noqa: E741
    """The same for causal flash in one kernel."""
    consts = {"causal": {"BM": 16, "BN": 32, "F": 16}}
    args = {n: n for n in "QKVO"} | {"BH": bh, "L": l, "S": s, "OFFSET": s - l}
    launches = (Launch("causal", (-(-l // 16) * bh, 1, 1), args, ("Q", "K", "V"), ("O",)),)
    buffers = [*inputs(bh, l, s, 16), Buffer("O", "fp16", (bh, l, 16), "output")]
    ttir = {"causal": compiled("causal", consts["causal"], source=source)}

    def expected(_, programs):
        return causal_events(programs, 16, 32, 16, l, s)

    return _program(source, consts, buffers, launches), ttir, expected


def _program(source, consts, buffers, launches):
    kernels = tuple(KernelSpec(name, (), c, (), 4, 2) for name, c in consts.items())
    return Program("sdpa", source, kernels, tuple(buffers), launches)
