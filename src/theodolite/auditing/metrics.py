"""Three figures of an order, with what the noise of a run leaves open: tau-b, pairs right, regret.

All three are computed by the same few lines for the measured medians and for the medians of each bootstrap draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from theodolite.auditing.resample import RANKING_LEVEL, Interval, interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CLEAR_GAP = 0.05  # below it two runs of the same schedules disagree now and then; above it, hardly ever
NEAR_BEST = 1.5


@dataclass(frozen=True)
class Metrics:
    """How well a model orders one pool of measured candidates, of which it ranks `ranked`.

    accuracy: the share of the ranked pairs measured more than CLEAR_GAP apart that it orders rightly; `pairs` counts
    them.  regret: its pick, in a tie the slowest, over the pool's best.  None where a figure has no meaning.
    Each interval holds RANKING_LEVEL of the bootstrap's draws; None without samples.
    """

    pool: int
    ranked: int
    tau_b: float | None
    tau_b_interval: Interval | None
    pairs: int
    accuracy: float | None
    accuracy_interval: Interval | None
    regret: float | None
    regret_interval: Interval | None


def metrics(group: Ints, measured_s: Floats, draws: Floats | None) -> Metrics:
    """The figures of a pool.

    group: the model's rank of each candidate that it ranks, equal for ties.  measured_s: their medians, then those of
    the pool's other candidates.  draws: the same rows, one column a draw of the bootstrap.
    """
    tau_b, accuracy, regret, pairs = _figures(group, measured_s)
    spreads: list[Interval | None] = [None, None, None]
    if draws is not None and draws.size:
        rows = np.array([_figures(group, draw)[:3] for draw in draws.T])
        known = (tau_b, accuracy, regret)
        # A figure without meaning in the run itself has none in the draws, whatever single draws may say.
        spreads = [None if math.isnan(k) else interval(rows[:, n], RANKING_LEVEL) for n, k in enumerate(known)]
    return Metrics(
        len(measured_s),
        len(group),
        _known(tau_b),
        spreads[0],
        pairs,
        _known(accuracy),
        spreads[1],
        _known(regret),
        spreads[2],
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _figures(group: Ints, measured_s: Floats) -> tuple[float, float, float, int]:
    """(tau-b, pairs right, regret, clear pairs); NaN for a figure without meaning."""
    ranked = measured_s[: len(group)]
    i, j = np.triu_indices(len(group), 1)
    predicted, seen = np.sign(group[i] - group[j]), np.sign(ranked[i] - ranked[j])
    agreement = predicted * seen
    ordered = math.sqrt(np.count_nonzero(predicted) * np.count_nonzero(seen))
    tau_b = float(agreement.sum()) / ordered if ordered else math.nan
    gap = np.maximum(ranked[i], ranked[j]) / np.minimum(ranked[i], ranked[j]) - 1
    clear = agreement[gap >= CLEAR_GAP]
    accuracy = float(np.count_nonzero(clear > 0)) / len(clear) if len(clear) else math.nan
    regret = float(ranked[group == group.min()].max() / measured_s.min() - 1) if len(group) else math.nan
    return tau_b, accuracy, regret, len(clear)
