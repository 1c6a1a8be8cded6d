"""Evaluate the integer slice of a compiled kernel for many programs at once: what it loads, stores and computes.

Loops run in lockstep: trip j runs for the programs whose trip count passes j.  The result has the form in which the
interpreter of a realised tree gives its events, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import numpy as np

from theodolite.auditing.ttir import values as v
from theodolite.auditing.ttir.operators import RULES, Context
from theodolite.auditing.ttir.parse import Function, Op, Param, parse
from theodolite.auditing.ttir.slicing import Plan, plan
from theodolite.auditing.ttir.values import Affine, Mask, Number, Pointer, Value
from theodolite.errors import TheodoliteError, Unsupported
from theodolite.ir.events import Access, Axis, Bools, Events, Ints

MAX_TRIPS = 1 << 20


def evaluate(
    ttir: str,
    args: Mapping[str, str | int | float],
    programs: Ints,
    grid: tuple[int, int, int] | None = None,
) -> Events:
    """What `programs` (int64[P], axis x fastest) of a kernel do.

    `args` gives, for every runtime parameter, a buffer's name or a number.  `grid` is needed where the kernel asks for
    axis y or z or for the number of programs.  Lanes of exp2 and fp32 count whether masked or not; elements of an
    access count only where its mask is on, and a mask must leave a prefix of each axis on.

    Raises TextError for text that is not understood and Unsupported where an address, a mask, a bound or a branch
    cannot be resolved, an operation has no rule, an integer would wrap, or a parameter is not as it was compiled for.
    """
    function, main, needed = _prepared(ttir)
    if grid is None:
        if "tt.get_num_programs" in ttir or "get_program_id y" in ttir or "get_program_id z" in ttir:
            raise Unsupported(f"kernel {function.name} reads its grid: say how large it is")
        grid = (1 << 31, 1, 1)
    machine = _Machine(Context(np.asarray(programs, np.int64), grid), needed)
    for param, value in _bound(function, args):
        if value is not None:
            machine.env[param.value] = value
    machine.block(main, np.ones(len(programs), bool))
    return machine.events()


@lru_cache(maxsize=32)
def _prepared(ttir: str) -> tuple[Function, Plan, frozenset[int]]:
    function = parse(ttir)
    return function, *plan(function)


def _bound(function: Function, args: Mapping[str, str | int | float]) -> list[tuple[Param, Value | None]]:
    """Parameters with their values; a float has none, since nothing in the slice may depend on it."""
    names = {p.name for p in function.params}
    if names != set(args):
        odd = ", ".join(sorted(names ^ set(args)))
        raise Unsupported(f"kernel {function.name} and its launch disagree on the arguments {odd}")
    return [(p, _argument(function.name, p, args[p.name])) for p in function.params]


def _argument(kernel: str, param: Param, given: str | int | float) -> Value | None:
    where = f"kernel {kernel}, argument {param.name}"
    if param.is_pointer:
        if not isinstance(given, str):
            raise Unsupported(f"{where}: a pointer needs a buffer's name, not {given!r}")
        return Pointer(given, v.affine(64, 0))
    if param.type.startswith("f") and isinstance(given, (int, float)):
        return None
    if not isinstance(given, int) or param.type not in ("i32", "i64"):
        raise Unsupported(f"{where}: {given!r} does not fit type {param.type}")
    if given % param.divisible:
        raise Unsupported(f"{where}: compiled for multiples of {param.divisible}, launched with {given}")
    return v.affine(int(param.type[1:]), int(given))


class _Machine:
    """State of one evaluation: values in sight, accesses in order, counts a program."""

    def __init__(self, context: Context, needed: frozenset[int]) -> None:
        self.context = context
        self.needed = needed
        self.env: dict[int, Value] = {}
        self.accesses: list[Access] = []
        size = len(context.programs)
        self.trips, self.exp2, self.fp32, self.reductions = (np.zeros(size, np.int64) for _ in range(4))
        self.dots: dict[tuple[int, int, int], Ints] = {}
        # Masks of loop-invariant rows, and one mask shared by K and V, are resolved once: the key's objects are kept.
        self.resolved: dict[tuple[int, int], tuple[Mask, Bools, Bools, tuple[Ints, ...]]] = {}

    def events(self) -> Events:
        return Events(
            programs=self.context.programs,
            accesses=tuple(self.accesses),
            trips=self.trips,
            dots=self.dots,
            exp2=self.exp2,
            fp32=self.fp32,
            reductions=self.reductions,
        )

    def count(self, block: Plan, times: Ints) -> None:
        """Add the work of a block that each program runs `times` times."""
        work = block.work
        self.exp2 += work.exp2 * times
        self.fp32 += work.fp32 * times
        self.reductions += work.reductions * times
        for shape, number in work.dots.items():
            self.dots[shape] = self.dots.get(shape, np.zeros(len(times), np.int64)) + number * times

    def block(self, block: Plan, active: Bools) -> None:
        """Run a block once for the active programs, and count it."""
        self.count(block, active.astype(np.int64))
        self.run(block.once, block, active)
        self.run(block.steps, block, active)

    def run(self, ops: tuple[Op, ...], block: Plan, active: Bools) -> None:
        for op in ops:
            if op.name == "scf.for":
                self.loop(op, block.nested[op.line][0], active)
            elif op.name == "scf.if":
                self.branch(op, block.nested[op.line], active)
            else:
                self.plain(op, active)

    def plain(self, op: Op, active: Bools) -> None:
        """An access, or an operation of the slice."""
        try:
            if op.name == "tt.load":
                self.access("load", op, op.operands[1:2], active)
            elif op.name == "tt.store":
                self.access("store", op, op.operands[2:], active)
            else:
                operands = [self.env[i] for i in op.operands]
                self.env[op.results[0]] = RULES[op.name](op, self.context, *operands)
        except TheodoliteError as error:
            raise type(error)(f"{op.where}: {error}") from error

    def scalars(self, op: Op, operands: tuple[int, ...]) -> list[Number]:
        try:
            return [v.scalar(self.env[i]).base for i in operands]
        except TheodoliteError as error:
            raise type(error)(f"{op.where}: {error}") from error

    def loop(self, op: Op, body: Plan, active: Bools) -> None:
        low, high, step = self.scalars(op, op.operands[:3])
        if v.lowest(step) < 1:
            raise Unsupported(f"{op.where}: a step below 1")
        wanted = np.maximum(0, -((low - high) // step))
        trips = np.where(active, wanted, 0).astype(np.int64)
        most = int(trips.max(initial=0))
        if most > MAX_TRIPS:
            raise Unsupported(f"{op.where}: {most} trips are more than can be evaluated")
        self.trips += trips
        self.count(body, trips)
        iv, *carries = body.args
        kept = [j for j, value in enumerate(carries) if value in self.needed]
        current = [self.env[op.operands[3 + j]] for j in kept]
        live = trips > 0
        for j in range(most):
            if j and int(trips.min()) <= j:
                live = trips > j
            # A program that has left the loop repeats its last trip: its values stay those of real addresses.
            at = j if trips.min() == most else np.minimum(j, np.maximum(trips - 1, 0))
            self.env[iv] = v.affine(int(op.type.removeprefix("i").replace("ndex", "64")), low + at * step)
            self.env.update((carries[k], value) for k, value in zip(kept, current, strict=True))
            if j == 0:
                self.run(body.once, body, live)
            self.run(body.steps, body, live)
            yielded = [self.env[body.yields[k]] for k in kept]
            current = [self.met(op, live, new, old) for new, old in zip(yielded, current, strict=True)]
        self.env.update((op.results[k], value) for k, value in zip(kept, current, strict=True))

    def branch(self, op: Op, sides: tuple[Plan, ...], active: Bools) -> None:
        (condition,) = self.scalars(op, op.operands)
        taken = np.broadcast_to(np.asarray(condition, bool), active.shape)
        for side, running in zip(sides, (active & taken, active & ~taken), strict=False):
            self.block(side, running)
        for j, result in enumerate(op.results):
            if result in self.needed:
                then, otherwise = (self.env[side.yields[j]] for side in sides)
                self.env[result] = self.met(op, taken, then, otherwise)

    def met(self, op: Op, condition: Bools, x: Value, y: Value) -> Value:
        if condition.all():
            return x
        try:
            return v.merge(condition, x, y)
        except TheodoliteError as error:
            raise type(error)(f"{op.where}: {error}") from error

    def access(self, kind: Literal["load", "store"], op: Op, mask: tuple[int, ...], active: Bools) -> None:
        pointer = self.env[op.operands[0]]
        if not isinstance(pointer, Pointer):
            raise Unsupported("an access through what is no pointer")
        shape, size = pointer.offset.shape, len(active)
        live, valid = active, tuple(np.broadcast_to(np.int64(n), size) for n in shape)
        if mask:
            live, valid = self.prefixes(self.env[mask[0]], shape, active)
        axes = tuple(
            Axis(stride, n, lanes)
            for stride, n, lanes in zip(pointer.offset.strides, shape, valid, strict=True)
            if n > 1
        )
        base = np.broadcast_to(np.asarray(pointer.offset.base, np.int64), size)
        self.accesses.append(Access(kind, pointer.buffer, live, base, axes))

    def prefixes(self, mask: Value, shape: tuple[int, ...], active: Bools) -> tuple[Bools, tuple[Ints, ...]]:
        """The programs that move anything, and how many lanes of each axis; remembered for the same mask."""
        if isinstance(mask, Affine) and mask.bits == 1:
            mask = Mask(mask.shape, (mask,))
        if not isinstance(mask, Mask) or mask.shape != shape:
            raise Unsupported("a mask that does not fit its access")
        key = (id(mask), id(active))
        if key not in self.resolved:
            if len(self.resolved) > 64:
                self.resolved.clear()
            self.resolved[key] = (mask, active, *_resolve(mask, active))
        return self.resolved[key][2:]


def _resolve(mask: Mask, active: Bools) -> tuple[Bools, tuple[Ints, ...]]:
    """Split a conjunction into one prefix an axis.  Raises Unsupported where the lanes left on are no box."""
    size = len(active)
    live, valid = active, [np.broadcast_to(np.int64(n), size) for n in mask.shape]
    for atom in mask.atoms:
        base = np.broadcast_to(np.asarray(atom.base, np.int64), size)
        along = [a for a, stride in enumerate(atom.strides) if stride]
        spans = [atom.strides[a] * (mask.shape[a] - 1) for a in along]
        if len(along) == 1 and spans[0] < 0:
            axis, stride, n = along[0], -atom.strides[along[0]], mask.shape[along[0]]
            lanes = np.clip(-(-base // stride), 0, n)
            valid[axis] = np.minimum(valid[axis], lanes) if lanes.min(initial=n) < n else valid[axis]
            continue
        everywhere = base + sum(s for s in spans if s < 0) > 0
        nowhere = base + sum(s for s in spans if s > 0) <= 0
        if not (everywhere | nowhere | ~active).all():
            raise Unsupported("a mask that leaves something else on than the first lanes of each axis")
        live = live & everywhere
    return live, tuple(valid)
