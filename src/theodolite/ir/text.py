"""The text form of a tree: one node a line, indentation for nesting; what is printed parses back equal.

file  = ("abstract" | "realised") name "on" workload "for" gpu NL
        "decisions" {key "=" value} NL {"refinement" rule ":" reason NL} block
block = {indent node NL [block, two spaces deeper]}
node  = level tensor {tensor}                               level = HBM | L2 | SMEM | RF
      | "temporal" loop {loop}
      | "spatial" loop {loop} "on" dim
      | "interleaved over" rank "carries" tensor {tensor}   opens a block
      | "sequential"                                        opens a block of branches
      | "branch"                                            opens a block
      | "compute" einsum {einsum} "on" ("mma" | "simd")
      | "workspace" name dtype "[" extents "]" ("partial of" tensor "over" rank | "holds" expression)
      | "host" loop                                         opens a block
      | "kernel" name "warps=" int "stages=" int "order=" ranks "loads=" ("pointer" | "tma")    opens a block
loop  = rank "/" size
size  = int | key | "(" rank "/" key ")"                    a key is a hole that `decisions` fills
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from theodolite.errors import TextError
from theodolite.ir.tree import (
    LEVELS,
    Block,
    Compute,
    HostLoop,
    Interleaved,
    Kernel,
    Key,
    Loop,
    Node,
    Part,
    Refinement,
    Sequential,
    Size,
    Spatial,
    Storage,
    Temporal,
    Tree,
    Workspace,
)

INDENT = "  "
NAME = re.compile(r"[A-Za-z_][\w.]*")


# ---- printing ----------------------------------------------------------------------------------------------------
def show(tree: Tree) -> str:
    """The tree as text, header first."""
    words = " ".join(f"{k}={v}" for k, v in tree.decisions.items())
    head = [f"{tree.stage} {tree.name} on {tree.workload} for {tree.gpu}", f"decisions {words}".rstrip()]
    head += [f"refinement {r.rule}: {r.reason}" for r in tree.refinements]
    return "\n".join([*head, *show_block(tree.body)]) + "\n"


def show_block(block: Block, depth: int = 0) -> Iterator[str]:
    """The lines of a block, indented by `depth` levels."""
    for node in block:
        yield INDENT * depth + show_node(node)
        match node:
            case Sequential(branches):
                for branch in branches:
                    yield INDENT * (depth + 1) + "branch"
                    yield from show_block(branch, depth + 2)
            case Interleaved() | HostLoop() | Kernel():
                yield from show_block(node.body, depth + 1)
            case _:
                pass


def show_size(size: Size) -> str:
    match size:
        case Key(name):
            return name
        case Part(rank, key):
            return f"({rank}/{key})"
        case _:
            return str(size)


def show_loops(loops: tuple[Loop, ...]) -> str:
    return " ".join(f"{loop.rank}/{show_size(loop.tile)}" for loop in loops)


def show_node(node: Node) -> str:
    """One node on one line, without what it opens."""
    match node:
        case Storage(level, tensors):
            return f"{level} {' '.join(tensors)}"
        case Temporal(loops):
            return f"temporal {show_loops(loops)}"
        case Spatial(loops, dim):
            return f"spatial {show_loops(loops)} on {dim}"
        case Interleaved(rank, carries, _):
            return f"interleaved over {rank} carries {' '.join(carries)}"
        case Sequential():
            return "sequential"
        case Compute(einsums, unit):
            return f"compute {' '.join(einsums)} on {unit}"
        case Workspace(name, dtype, extents, role, tensor, rank):
            inside = ",".join(e if isinstance(e, str) else show_size(e) for e in extents)
            what = f"partial of {tensor} over {rank}" if role == "partial" else f"holds {tensor}"
            return f"workspace {name} {dtype} [{inside}] {what}"
        case HostLoop(loop, _):
            return f"host {show_loops((loop,))}"
        case Kernel(name, warps, stages, order, loads, _):
            sizes = f"warps={show_size(warps)} stages={show_size(stages)}"
            return f"kernel {name} {sizes} order={','.join(order)} loads={loads}"


# ---- parsing -----------------------------------------------------------------------------------------------------
class _Lines:
    """The lines of a file with their numbers; blank lines at the end are dropped."""

    def __init__(self, text: str, where: str) -> None:
        self.lines, self.where, self.at = text.rstrip().splitlines(), where, 0

    def peek(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def next(self) -> str:
        line = self.peek()
        if line is None:
            raise self.error("the text ends too early")
        self.at += 1
        return line

    def error(self, what: str) -> TextError:
        number = min(max(self.at, 1), len(self.lines)) if self.lines else 1
        shown = self.lines[number - 1].strip() if self.lines else ""
        return TextError(f"{self.where}, line {number}: {what} (at {shown!r})")


def parse(text: str, where: str = "tree") -> Tree:
    """Text -> Tree; TextError names the line.  `check` is a step of its own."""
    lines = _Lines(text, where)
    head = re.fullmatch(r"(abstract|realised) (\S+) on (\S+) for (\S+)", lines.next().strip())
    if not head:
        raise lines.error("a tree begins with 'abstract|realised NAME on WORKLOAD for GPU'")
    decisions = _decisions(lines)
    refinements = []
    while (line := lines.peek()) is not None and line.startswith("refinement "):
        rule, colon, reason = lines.next()[len("refinement ") :].partition(": ")
        if not colon:
            raise lines.error("a refinement reads 'refinement RULE: REASON'")
        refinements.append(Refinement(rule, reason))
    body = _block(lines, 0)
    if lines.peek() is not None:
        lines.at += 1
        raise lines.error("bad indentation: two spaces a level, and only below a node that opens a block")
    stage = cast(Literal["abstract", "realised"], head[1])
    return Tree(stage, head[2], head[3], head[4], decisions, body, tuple(refinements))


def _decisions(lines: _Lines) -> Mapping[str, Any]:
    words = lines.next().split()
    if not words or words[0] != "decisions":
        raise lines.error("the second line reads 'decisions KEY=VALUE ...'")
    out: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not NAME.fullmatch(key) or not value:
            raise lines.error(f"a decision reads KEY=VALUE, not {word!r}")
        if key in out:
            raise lines.error(f"decision {key} is given twice")
        out[key] = int(value) if value.isdecimal() else value
    return out


def _block(lines: _Lines, depth: int) -> Block:
    nodes: list[Node] = []
    while (line := lines.peek()) is not None and line[: len(line) - len(line.lstrip())] == INDENT * depth:
        lines.next()
        nodes.append(_node(lines, line.split(), depth))
    return tuple(nodes)


def _node(lines: _Lines, words: list[str], depth: int) -> Node:
    match words:
        case [level, *tensors] if level in LEVELS and tensors:
            return Storage(level, tuple(tensors))
        case ["temporal", *loops] if loops:
            return Temporal(tuple(_loop(lines, w) for w in loops))
        case ["spatial", *loops, "on", dim] if loops:
            return Spatial(tuple(_loop(lines, w) for w in loops), dim)
        case ["interleaved", "over", rank, "carries", *carries] if carries:
            return Interleaved(rank, tuple(carries), _block(lines, depth + 1))
        case ["sequential"]:
            return Sequential(_branches(lines, depth + 1))
        case ["compute", *einsums, "on", ("mma" | "simd") as unit] if einsums:
            return Compute(tuple(einsums), unit)
        case ["workspace", name, dtype, extents, *what]:
            return _workspace(lines, name, dtype, extents, what)
        case ["host", loop]:
            return HostLoop(_loop(lines, loop), _block(lines, depth + 1))
        case ["kernel", name, *options]:
            return _kernel(lines, name, options, depth)
        case _:
            raise lines.error(f"no node reads like this; a node begins with {', '.join(LEVELS)}, temporal, spatial, "
                              "interleaved, sequential, compute, workspace, host or kernel")  # fmt: skip


def _branches(lines: _Lines, depth: int) -> tuple[Block, ...]:
    branches = []
    while (line := lines.peek()) is not None and line == INDENT * depth + "branch":
        lines.next()
        branches.append(_block(lines, depth + 1))
    if not branches:
        raise lines.error("a sequential holds branches, two spaces deeper")
    return tuple(branches)


def _loop(lines: _Lines, word: str) -> Loop:
    rank, slash, size = word.partition("/")
    if not slash or not NAME.fullmatch(rank):
        raise lines.error(f"a loop reads RANK/SIZE, not {word!r}")
    return Loop(rank, _size(lines, size))


def _size(lines: _Lines, word: str) -> Size:
    if word.isdecimal() and int(word) > 0:
        return int(word)
    if part := re.fullmatch(r"\((\w+)/([\w.]+)\)", word):
        return Part(part[1], part[2])
    if NAME.fullmatch(word):
        return Key(word)
    raise lines.error(f"a size is a number from 1, a decision's name or (RANK/NAME), not {word!r}")


def _count(lines: _Lines, word: str) -> int | Key:
    size = _size(lines, word)
    if isinstance(size, Part):
        raise lines.error(f"a number or a decision's name is wanted, not {word!r}")
    return size


def _workspace(lines: _Lines, name: str, dtype: str, extents: str, what: list[str]) -> Workspace:
    inside = extents[1:-1].split(",")
    if extents[:1] + extents[-1:] != "[]" or not all(inside):
        raise lines.error("a workspace's extents read [2,b,h,l], without spaces")
    sizes = tuple(int(e) if e.isdecimal() else e for e in inside)
    match what:
        case ["partial", "of", tensor, "over", rank]:
            return Workspace(name, dtype, sizes, "partial", tensor, rank)
        case ["holds", *expression] if expression:
            return Workspace(name, dtype, sizes, "holds", " ".join(expression))
        case _:
            raise lines.error("a workspace is 'partial of TENSOR over RANK' or 'holds TENSOR'")


def _kernel(lines: _Lines, name: str, words: list[str], depth: int) -> Kernel:
    options = dict(w.partition("=")[::2] for w in words)
    if set(options) != {"warps", "stages", "order", "loads"} or options["loads"] not in ("pointer", "tma"):
        raise lines.error("a kernel reads 'kernel NAME warps=N stages=N order=RANKS loads=pointer|tma'")
    loads = cast(Literal["pointer", "tma"], options["loads"])
    warps, stages = _count(lines, options["warps"]), _count(lines, options["stages"])
    return Kernel(name, warps, stages, tuple(options["order"].split(",")), loads, _block(lines, depth + 1))
