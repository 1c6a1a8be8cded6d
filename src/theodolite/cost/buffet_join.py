"""How AccelForge joins Einsums: which loops the next one shares, what is handed over under them, what cannot be joined.

AccelForge takes the Einsums in the workload's order.  On the left is all that it has joined so far, reduced to the
tensors that a later Einsum needs; on the right is the next Einsum.  The loops above a tensor that both have must run
over the same ranks of it with the same tiles, where loops may change places that no storage parts (`compatibility.py`,
`join_pmappings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise, permutations, product

import numpy as np

from theodolite.cost.buffet_path import Hold
from theodolite.cost.buffet_space import lowered
from theodolite.cost.buffet_trips import Nest

Loop = tuple[int | None, bool, object]  # the place of its rank in the tensor, if spatial, its tile
Order = tuple[int, ...]


@dataclass(frozen=True)
class Handed:
    """A tensor that several Einsums use, as one of them sees it: its first storage and the loops above that."""

    tensor: str
    memory: str
    loops: tuple[Loop, ...]

    @property
    def level(self) -> int:
        return len(self.loops)


@dataclass(frozen=True)
class Side:
    """What one side of a join hands on or is handed; besides its tensors' levels no loop may cross the `stops`."""

    tensors: Mapping[str, Handed]
    stops: frozenset[int]

    @property
    def deepest(self) -> int:
        """The loops above the innermost of its tensors."""
        return max((one.level for one in self.tensors.values()), default=0)

    def of(self, tensors: frozenset[str]) -> Side:
        """The same, of some tensors."""
        out = Side({t: one for t, one in self.tensors.items() if t in tensors}, frozenset())
        return replace(out, stops=frozenset(min(stop, out.deepest) for stop in self.stops))

    def ordered(self, order: Order) -> Side:
        """The same with its outermost loops in another order."""
        tensors = {t: replace(one, loops=_permuted(one.loops, order)) for t, one in self.tensors.items()}
        return replace(self, tensors=tensors)

    def orders(self) -> Iterator[Order]:
        """The orders that its loops may take, their own first."""
        cuts = sorted({0, self.deepest, *self.stops, *(one.level for one in self.tensors.values())})
        blocks = [range(a, b) for a, b in pairwise(cuts)]
        for chosen in product(*(permutations(block) for block in blocks)):
            yield tuple(chain.from_iterable(chosen))


@dataclass(frozen=True)
class Join:
    """One Einsum joined to those before it.

    `shared` loops lie above what the left hands on, `following` above what is still needed after.  `freed` tensors
    were counted on both sides, `kept` ones live on and the right does not touch them.  `why_not` is empty where
    AccelForge can join.
    """

    shared: int
    following: int
    freed: tuple[Handed, ...]
    kept: tuple[Handed, ...]
    why_not: str

    def within(self, memory: str) -> Join:
        """The same, of one memory."""
        freed, kept = (tuple(one for one in some if one.memory == memory) for some in (self.freed, self.kept))
        return replace(self, freed=freed, kept=kept)


def sides(row: tuple[Nest, ...], counts: Callable[[Nest, int], bool]) -> tuple[Side, ...]:
    """Each Einsum as the right side of a join; `counts` says which steps are loops."""
    out: list[Side] = []
    for nest in row:
        tensors: dict[str, Handed] = {}
        for tensor in handed(nest, row):
            loops = tuple(_seen(nest, k, tensor) for k in outside(nest, tensor) if counts(nest, k))
            tensors[tensor] = Handed(tensor, nest.path.holders(tensor)[0].memory, loops)
        last = max((nest.path.steps.index(nest.path.holders(tensor)[0]) for tensor in tensors), default=0)
        out.append(Side(tensors, frozenset(_stops(nest, last, counts))))
    return tuple(out)


def handed(nest: Nest, row: tuple[Nest, ...]) -> tuple[str, ...]:
    """The tensors of an Einsum that others use too."""
    return tuple(t for t in nest.path.ranks if sum(t in other.path.ranks for other in row) > 1)


def outside(nest: Nest, tensor: str) -> list[int]:
    """The loops above a tensor's first storage."""
    return nest.loops(nest.path.steps.index(nest.path.holders(tensor)[0]))


def joins(row: tuple[Side, ...]) -> tuple[Join, ...]:
    """The join of each Einsum but the first."""
    out: list[Join] = []
    left = row[0]
    for k, right in enumerate(row[1:], 1):
        both = frozenset(left.tensors.keys() & right.tensors.keys())
        later = frozenset(t for side in row[k + 1 :] for t in side.tensors)
        orders = _match(left.of(both), right.of(both))
        if orders is not None:
            left, right = left.ordered(orders[0]), right.ordered(orders[1])
        why = _why_not(left.of(later), right.of(later)) if orders is not None else _mismatch(left, right, both)
        joined = Side({**right.tensors, **left.tensors}, left.stops | right.stops).of(later)
        freed = tuple(one for t, one in left.tensors.items() if t in both and one.level < left.deepest)
        kept = tuple(one for t, one in joined.tensors.items() if t not in right.tensors and one.level >= left.deepest)
        out.append(Join(left.deepest, joined.deepest, freed, kept, why))
        left = joined
    return tuple(out)


def _seen(nest: Nest, index: int, tensor: str) -> Loop:
    """A loop as a tensor sees it.  A tile that varies over a grid is the same only where it is the same loop's."""
    step, ranks, tile = nest.path.steps[index], nest.path.ranks[tensor], nest.tile(index)
    place = ranks.index(nest.rank(index)) if nest.rank(index) in ranks else None
    return place, nest.dim(index) is not None, float(tile) if np.ndim(tile) == 0 else step.at


def _stops(nest: Nest, last: int, counts: Callable[[Nest, int], bool]) -> Iterator[int]:
    """The loops above each storage, and above where its reservation is lowered to, down to a step of the path."""
    for index, step in enumerate(nest.path.steps[:last]):
        if isinstance(step, Hold):
            above = sum(counts(nest, k) for k in nest.loops(index))
            yield above
            if step is not nest.path.holders(step.tensor)[0]:
                yield above + sum(counts(nest, k) for k, where in lowered(nest, index, step).items() if np.all(where))


def _match(left: Side, right: Side) -> tuple[Order, Order] | None:
    """The first orders in which both sides see the same loops above what they share; None where there are none."""
    if any(sorted(map(str, left.tensors[t].loops)) != sorted(map(str, right.tensors[t].loops)) for t in left.tensors):
        return None
    if _key(left) == _key(right):
        own = tuple(range(left.deepest))
        return own, own
    known: dict[object, Order] = {}
    for order in right.orders():
        known.setdefault(_key(right.ordered(order)), order)
    for order in left.orders():
        if (key := _key(left.ordered(order))) in known:
            return order, known[key]
    return None


def _key(side: Side) -> object:
    return frozenset(side.tensors.values())


def _permuted(loops: tuple[Loop, ...], order: Order) -> tuple[Loop, ...]:
    count = min(len(order), len(loops))
    return tuple(loops[i] for i in order[:count]) + loops[count:]


def _mismatch(left: Side, right: Side, both: frozenset[str]) -> str:
    tensor = min(t for t in both if left.tensors[t].loops != right.tensors[t].loops)
    return f"a shared loop above {tensor} runs over another rank of it here than where it was before"


def _why_not(left: Side, right: Side) -> str:
    """AccelForge carries no loop past an Einsum that hands on nothing under it."""
    if left.deepest <= right.deepest:
        return ""
    waiting = max(left.tensors.values(), key=lambda one: one.level)
    return f"{waiting.tensor} waits under more shared loops than anything that it hands on"
