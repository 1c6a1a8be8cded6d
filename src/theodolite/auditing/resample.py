"""Bootstrap over rounds: how far a figure moves when other rounds of the same run had been drawn.

Sample n of any two candidates stems from round n, and a slow candidate stops after fewer rounds.  So rounds are drawn
once for everybody (what a round did to all of them stays shared), and within each stretch of rounds that the same
candidates took part in: then each candidate keeps exactly as many samples as it has.

An interval says what the noise of this run leaves open.  It knows nothing of another machine or of other candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
RANKING_DRAWS = 400
RANKING_LEVEL = 0.95
SEED = 20406


@dataclass(frozen=True)
class Interval:
    """The percentile interval of a bootstrap."""

    low: float
    high: float


@lru_cache(maxsize=64)
def drawn_rounds(counts: tuple[int, ...], draws: int, seed: int) -> Ints:
    """Rounds of each draw, `draws` x max(counts); for n in counts the first n columns are a draw of the first n rounds.

    The array is shared between callers and cannot be written to.
    """
    random = np.random.default_rng(seed)
    parts, before = [], 0
    for count in sorted(set(counts)):
        parts.append(random.integers(before, count, (draws, count - before)))
        before = count
    rounds: Ints = np.concatenate(parts, axis=1)
    rounds.setflags(write=False)
    return rounds


def interval(values: Floats, level: float) -> Interval | None:
    """The middle `level` of the values; None without values.

    Both ends are values themselves, counted from either side, so that the interval of -x is exactly that of x, turned.
    """
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return None
    cut = int(len(known) * (1 - level) / 2)
    return Interval(float(known[cut]), float(known[len(known) - 1 - cut]))


@lru_cache(maxsize=64)
def _middles(count: int, draws: int, seed: int) -> tuple[Ints, Ints]:
    """Where the two middle values of each draw lie among `count` sorted values.

    Every second draw is the mirror image of another: then -x gives exactly what x gives, turned.
    """
    drawn = np.random.default_rng(seed).integers(0, count, (draws // 2, count))
    drawn.sort(axis=1)
    low, high = drawn[:, (count - 1) // 2], drawn[:, count // 2]
    return np.concatenate([low, count - 1 - high]), np.concatenate([high, count - 1 - low])


def median_interval(values: Floats, level: float, draws: int, seed: int) -> Interval:
    """The bootstrap interval of the median of values that were drawn independently.

    A draw of values is a draw of their ranks, so that one set of draws serves every series of that length.
    """
    ordered = np.sort(values)
    low, high = _middles(len(values), draws, seed)
    found = interval((ordered[low] + ordered[high]) / 2, level)
    assert found is not None
    return found


def resampled_medians(
    series: Mapping[str, Sequence[float]], draws: int = RANKING_DRAWS, seed: int = SEED
) -> dict[str, Floats]:
    """Each candidate's median in each draw of rounds, the same rounds for all; candidates without samples are left out.

    The result depends on the samples alone, not on the order of the candidates.
    """
    sampled = {name: np.asarray(s, dtype=np.float64) for name, s in series.items() if len(s)}
    if not sampled:
        return {}
    rounds = drawn_rounds(tuple(sorted({len(s) for s in sampled.values()})), draws, seed)
    return {name: np.median(s[rounds[:, : len(s)]], axis=1) for name, s in sampled.items()}
