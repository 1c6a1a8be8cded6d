"""What of a kernel has to be evaluated, and what only has to be counted.

The *slice* of a function holds the values that an address, a mask, a loop's bound or a branch depends on.  All else is
floating point: it is counted once a block and multiplied by how often the block runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from theodolite.auditing.ttir.operators import RULES
from theodolite.auditing.ttir.parse import Function, Op, Region, element_of, shape_of
from theodolite.errors import Unsupported

FP32 = ("arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.maxnumf", "arith.maximumf")
COMBINES = ("arith.addf", "arith.maxnumf", "arith.maximumf")
# Data movement, casts, compares and selects: the counting convention prices none of them.
FREE = (
    *("arith.truncf", "arith.extf", "arith.cmpf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.bitcast"),
    *("tt.bitcast", "tt.fp_to_fp", "ub.poison", "scf.yield", "tt.return"),
)
STRUCTURE = ("scf.for", "scf.if")
ACCESS = ("tt.load", "tt.store")


@dataclass(frozen=True)
class Work:
    """Lanes of work of one run through a block, blocks inside it left out."""

    dots: Mapping[tuple[int, int, int], int]
    exp2: int
    fp32: int
    reductions: int


@dataclass(frozen=True)
class Plan:
    """A block, ready to run: `once` does not depend on the trip, `steps` do or have an effect."""

    args: tuple[int, ...]
    work: Work
    once: tuple[Op, ...]
    steps: tuple[Op, ...]
    yields: tuple[int, ...]
    nested: Mapping[int, tuple[Plan, ...]]


def plan(function: Function) -> tuple[Plan, frozenset[int]]:
    """The function's plan and its slice.

    Raises Unsupported for an operation that has no place in the counting convention, and where a value of the slice
    comes from memory or from floating point.
    """
    needed = _needed(function.body)
    return _plan(function.body, needed), needed


def _plan(region: Region, needed: frozenset[int]) -> Plan:
    varying = set(region.args)
    once: list[Op] = []
    steps: list[Op] = []
    for op in region.ops:
        if op.name in ACCESS + STRUCTURE:
            steps.append(op)
        elif needed.isdisjoint(op.results):
            continue
        elif varying.isdisjoint(op.operands):
            once.append(op)
            continue
        else:
            steps.append(op)
        varying.update(op.results)
    nested = {op.line: tuple(_plan(r, needed) for r in op.regions) for op in region.ops if op.name in STRUCTURE}
    return Plan(region.args, _work(region), tuple(once), tuple(steps), region.yields, nested)


def _work(region: Region) -> Work:
    """Count a block's operations by name; an unknown name raises, so that nothing costs zero by neglect."""
    dots: Counter[tuple[int, int, int]] = Counter()
    exp2 = fp32 = reductions = 0
    for op in region.ops:
        if op.name in FP32:
            fp32 += lanes(op.type)
        elif op.name == "math.exp2":
            exp2 += lanes(op.type)
        elif op.name == "tt.reduce":
            fp32 += _lanes_reduced(op)
            reductions += 1
        elif op.name == "tt.dot":
            dots[_dot_shape(op)] += 1
        elif op.name not in RULES and op.name not in FREE and op.name not in ACCESS + STRUCTURE:
            raise Unsupported(f"{op.where}: no rule says what this operation does or costs")
    return Work(dict(dots), exp2, fp32, reductions)


def lanes(kind: str) -> int:
    """Elements of a type; 1 for a scalar."""
    element_of(kind)
    return math.prod(shape_of(kind))


def _lanes_reduced(op: Op) -> int:
    """Lanes that enter a reduction of one float tensor by a sum or a maximum; Unsupported for any other."""
    combine = [inner.name for inner in op.regions[0].ops]
    kind = op.type.partition(") -> ")[0].removeprefix("(")
    if len(op.operands) != 1 or len(combine) != 2 or combine[0] not in COMBINES or combine[1] != "tt.reduce.return":
        raise Unsupported(f"{op.where}: only a sum or a maximum of one tensor is understood")
    inner = op.regions[0]
    if set(inner.ops[0].operands) != set(inner.args) or inner.ops[1].operands != inner.ops[0].results:
        raise Unsupported(f"{op.where}: the reduction does not combine its two operands")
    return lanes(kind)


def _dot_shape(op: Op) -> tuple[int, int, int]:
    found = re.fullmatch(r"(tensor<\S+>) \* (tensor<\S+>) -> (tensor<\S+>)", op.type)
    a, b, c = (shape_of(found[i]) for i in (1, 2, 3)) if found else ((), (), ())
    if len(a) != 2 or len(b) != 2 or a[1] != b[0] or c != (a[0], b[1]):
        raise Unsupported(f"{op.where}: only the product of two matrices is understood")
    return a[0], b[1], a[1]


def _walk(region: Region) -> Iterator[Op]:
    for op in region.ops:
        yield op
        if op.name in STRUCTURE:
            for inner in op.regions:
                yield from _walk(inner)


def _needed(body: Region) -> frozenset[int]:
    """The slice, walked backwards from every access, bound and condition."""
    source: dict[int, tuple[Op, tuple[int, ...]]] = {}
    pending: list[int] = []
    for op in _walk(body):
        if op.name == "scf.for":
            pending += op.operands[:3]
            inside = op.regions[0]
            for j, start in enumerate(op.operands[3:]):
                carried = (start, inside.yields[j], inside.args[1 + j])
                source[inside.args[1 + j]] = source[op.results[j]] = (op, carried)
        elif op.name == "scf.if":
            pending += op.operands
            for j, result in enumerate(op.results):
                source[result] = (op, tuple(r.yields[j] for r in op.regions))
        else:
            pending += _roots(op)
            source.update((result, (op, op.operands)) for result in op.results)
    needed: set[int] = set()
    while pending:
        value = pending.pop()
        if value in needed:
            continue
        needed.add(value)
        if value in source:
            op, behind = source[value]
            if op.name not in RULES and op.name not in STRUCTURE:
                raise Unsupported(f"{op.where}: its result decides an address, a mask, a bound or a branch")
            pending += behind
    return frozenset(needed)


def _roots(op: Op) -> tuple[int, ...]:
    """The pointer and the mask of an access."""
    if op.name == "tt.load" and 1 <= len(op.operands) <= 3:
        return op.operands[:2]
    if op.name == "tt.store" and 2 <= len(op.operands) <= 3:
        return (op.operands[0], *op.operands[2:])
    if op.name in ACCESS:
        raise Unsupported(f"{op.where}: an access of a form that is not understood")
    return ()
