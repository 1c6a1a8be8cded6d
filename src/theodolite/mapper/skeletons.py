"""The abstract trees of the two shorthand families, with holes for decisions.

The ranks of a grid fill the SMs from the innermost outward, each by the largest divisor of its trips that there is
room for; what is left is temporal, above.  The tiles of those temporal loops are derived decisions (`fill.*`), so that
one skeleton serves a whole grid of decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from theodolite.gpus.gpu import Gpu
from theodolite.ir.scope import loop_count
from theodolite.ir.tree import (
    Block,
    Compute,
    Interleaved,
    Key,
    Loop,
    Node,
    Part,
    Sequential,
    Size,
    Spatial,
    Storage,
    Temporal,
    Tree,
    evaluate_size,
)
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule, schedule

Grid = tuple[Loop, ...]  # outermost first

GRIDS: Mapping[str, Mapping[str, Grid]] = {
    "flash": {
        "flash": (Loop("b", 1), Loop("h", 1), Loop("l", Key("bm")), Loop("s", Part("s", "split"))),
    },
    "pipeline": {
        "qk": (
            Loop("b", 1),
            Loop("h", 1),
            Loop("l", Key("qk.bm")),
            Loop("s", Key("qk.bn")),
            Loop("e", Part("e", "qk.split")),
        ),
        "sm": (Loop("b", 1), Loop("h", 1), Loop("l", Key("sm.rows"))),
        "av": (Loop("b", 1), Loop("h", 1), Loop("l", Key("av.bm")), Loop("s", Part("s", "av.split"))),
    },
}


# ---- the fill rule -----------------------------------------------------------------------------------------------
@cache
def _largest_divisor(n: int, room: int) -> int:
    return next(x for x in range(min(n, room), 0, -1) if n % x == 0)


def largest_divisor(n: Any, room: Any) -> Any:
    """The largest divisor of n that is at most `room`, elementwise."""
    if np.ndim(n) == 0 and np.ndim(room) == 0:
        return _largest_divisor(int(n), int(room))
    return np.vectorize(_largest_divisor, otypes=[np.int64])(n, room)


def fill(label: str, grid: Grid, workload: Workload, decisions: Mapping[str, Any], sms: int) -> dict[str, Any]:
    """Derived decisions `fill.LABEL.RANK`: the tile of each rank's temporal loop above the SMs."""
    room: Any = sms
    out: dict[str, Any] = {}
    for loop in reversed(grid):
        extent = workload.ranks[loop.rank]
        here = largest_divisor(loop_count(loop, workload, decisions), room)
        out[f"fill.{label}.{loop.rank}"] = evaluate_size(loop.tile, decisions, extent) * here
        room = room // here
    return out


def fills(family: str, workload: Workload, decisions: Mapping[str, Any], sms: int) -> dict[str, Any]:
    """The derived decisions of all the family's grids."""
    out: dict[str, Any] = {}
    for label, grid in GRIDS[family].items():
        out.update(fill(label, grid, workload, decisions, sms))
    return out


# ---- skeletons ---------------------------------------------------------------------------------------------------
def _grid_nodes(family: str, label: str) -> tuple[Node, Node]:
    grid = GRIDS[family][label]
    return Temporal(tuple(Loop(x.rank, Key(f"fill.{label}.{x.rank}")) for x in grid)), Spatial(grid, "SM")


def _flash() -> Block:
    loop = (
        Temporal((Loop("s", Key("bn")),)),
        Storage("SMEM", ("K", "V")),
        Storage("RF", ("S", "P")),
        Compute(("S",), "mma"),
        Compute(("M", "P", "D"), "simd"),
        Compute(("A",), "mma"),
    )
    return (
        Storage("HBM", ("Q", "K", "V", "O")),
        *_grid_nodes("flash", "flash"),
        Storage("SMEM", ("Q",)),
        Storage("RF", ("M", "D", "A")),
        Interleaved("s", ("M", "D", "A"), loop),
        Compute(("O",), "simd"),
    )


def _inside(*ranks: str) -> Temporal:
    """The loops that walk a tile down to single elements; AccelForge counts them, a GPU takes the tile whole."""
    return Temporal(tuple(Loop(r, 1) for r in ranks))


def _pipeline() -> Block:
    qk = (
        *_grid_nodes("pipeline", "qk"),
        Storage("RF", ("S",)),
        Temporal((Loop("e", Key("qk.bk")),)),
        Storage("SMEM", ("Q", "K")),
        _inside("l", "s", "e"),
        Compute(("S",), "mma"),
    )
    softmax = (
        *_grid_nodes("pipeline", "sm"),
        Storage("RF", ("S", "P", "M", "D")),
        _inside("l", "s"),
        Compute(("M", "P", "D"), "simd"),
    )
    av = (
        *_grid_nodes("pipeline", "av"),
        Storage("RF", ("A",)),
        Temporal((Loop("s", Key("av.bs")),)),
        Storage("SMEM", ("P", "V")),
        _inside("l", "f", "s"),
        Compute(("A", "O"), "mma"),
    )
    return (Storage("HBM", ("Q", "K", "V", "O", "S", "P")), Sequential((qk, softmax, av)))


BODIES = {"flash": _flash, "pipeline": _pipeline}


def skeleton(family: str, workload: Workload, gpu: Gpu, decisions: Mapping[str, Any]) -> Tree:
    """The family's tree with every hole open; `decisions` (numbers or open-mesh arrays) get the derived ones added."""
    full = {**decisions, "gridfold": "yes", **fills(family, workload, decisions, gpu.sms)}
    return Tree("abstract", family, workload.name, gpu.name, full, BODIES[family]())


# ---- one mapping -------------------------------------------------------------------------------------------------
def mapping(chosen: Schedule, workload: Workload, gpu: Gpu) -> Tree:
    """The abstract tree that a schedule stands for, as a person would write it: no derived decisions, no idle loops."""
    values = chosen.values
    derived = fills(chosen.family, workload, values, gpu.sms)
    body = _settle(BODIES[chosen.family](), chosen.family, workload, values, derived)
    return Tree("abstract", chosen.family, workload.name, gpu.name, {**values, "gridfold": "yes"}, body)


def _settle(
    block: Block, family: str, workload: Workload, values: Mapping[str, int], derived: Mapping[str, int]
) -> Block:
    """Replace each Temporal and Spatial of a grid by what the fill rule leaves of them."""
    out: list[Node] = []
    for at, node in enumerate(block):
        match node:
            case Sequential(branches):
                out.append(Sequential(tuple(_settle(b, family, workload, values, derived) for b in branches)))
            case Temporal(loops) if isinstance(loops[0].tile, Key) and loops[0].tile.name.startswith("fill."):
                spatial = block[at + 1]
                assert isinstance(spatial, Spatial)
                out += _filled(loops, spatial, workload, values, derived)
            case Spatial():
                pass  # went with its Temporal
            case _:
                out.append(node)
    return tuple(out)


def _filled(
    temporal: Grid, spatial: Spatial, workload: Workload, values: Mapping[str, int], derived: Mapping[str, int]
) -> list[Node]:
    """Temporal loops with trips (and batch ranks of one, which have none to spread), then the spatial ones."""
    above, across = [], []
    for outer, inner in zip(temporal, spatial.loops, strict=True):
        assert isinstance(outer.tile, Key)
        extent, tile = workload.ranks[inner.rank], derived[outer.tile.name]
        units = tile // evaluate_size(inner.tile, values, extent)
        trips = loop_count(inner, workload, values) // units
        idle_batch = trips == units == 1 and inner.tile == 1
        if trips > 1 or idle_batch:
            above.append(Loop(inner.rank, _shown(inner.tile, tile, units)))
        if units > 1 or (trips == 1 and not idle_batch):
            across.append(inner)
    nodes: list[Node] = [Temporal(tuple(above))] if above else []
    # a prime number of tiles above the fanout fills one SM: the Spatial stays, since it marks the kernel boundary
    return [*nodes, Spatial(tuple(across) or spatial.loops[-1:], spatial.dim)]


def _shown(tile: Size, filled: int, units: int) -> Size:
    return tile if units == 1 else int(filled)


def mapping_of(text: str, workload: Workload, gpu: Gpu) -> Tree:
    """The abstract tree of a schedule's text."""
    return mapping(parse_schedule(text), workload, gpu)


def schedule_of(tree: Tree, workload: Workload, gpu: Gpu) -> Schedule | None:
    """The schedule that names a tree exactly, or None."""
    decisions = {k: v for k, v in tree.decisions.items() if k != "gridfold"}
    if tree.name not in FAMILIES or set(decisions) != {d.key for d in FAMILIES[tree.name]}:
        return None
    chosen = schedule(tree.name, decisions)
    same = replace(mapping(chosen, workload, gpu), mapping=None)
    return chosen if same.body == tree.body and same.decisions == tree.decisions else None
