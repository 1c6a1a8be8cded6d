"""Numbers as people read them.  Every function takes None and answers with a dash: absent is never zero."""

from __future__ import annotations

from theodolite.auditing.metrics import Metrics
from theodolite.auditing.ranking import Ranking
from theodolite.auditing.resample import Interval

DASH = "–"
NARROW = "\u00a0"  # a number and its unit stay on one line


def us(seconds: float | None) -> str:
    """Seconds as microseconds with four significant digits, without the unit (it stands in the column's head)."""
    if seconds is None:
        return DASH
    value = seconds * 1e6
    digits = 3 if value < 10 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage; finer where it is small."""
    if fraction is None:
        return DASH
    value = fraction * 100
    return f"{value:,.1f}{NARROW}%" if abs(value) < 100 else f"{value:,.0f}{NARROW}%"


def times(ratio: float | None) -> str:
    """A ratio, as in 1.24x."""
    if ratio is None:
        return DASH
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x" if ratio < 100 else f"{ratio:,.0f}x"


def p_value(value: float | None) -> str:
    """A p-value; below a millionth only that."""
    if value is None:
        return DASH
    return "< 1e-6" if value < 1e-6 else f"{value:.2g}"


def tie_groups(ranking: Ranking) -> str:
    """Sizes of the tie groups, largest first: "6, 5 and 3 alike", or "" without ties."""
    sizes = sorted((len(t.candidates) for t in ranking.ties), reverse=True)
    if not sizes:
        return ""
    shown = ", ".join(str(s) for s in sizes[:4]) + (f" and {len(sizes) - 4} more" if len(sizes) > 4 else "")
    return f"tie groups of {shown}; measured up to {times(max(t.spread for t in ranking.ties))} apart"


def percents(interval: Interval | None) -> str:
    """An interval of fractions, as in 79.9–80.5 %; "" without one, or where both ends print alike."""
    if interval is None or percent(interval.low) == percent(interval.high):
        return ""
    return f"{percent(interval.low).removesuffix(NARROW + '%')}–{percent(interval.high)}"


def taus(interval: Interval | None) -> str:
    """An interval of tau-b, as in +0.64..+0.68; "" without one, or where both ends print alike."""
    if interval is None or f"{interval.low:+.2f}" == f"{interval.high:+.2f}":
        return ""
    return f"{interval.low:+.2f}..{interval.high:+.2f}"


def near_tau(near: Metrics) -> str:
    return DASH if near.tau_b is None else f"{near.tau_b:+.2f}"


def tau(ranking: Ranking) -> str:
    """tau-b with two decimals, or "no resolution" with the reason."""
    if ranking.tau_b is None:
        return f"no resolution ({ranking.no_resolution})"
    return f"{ranking.tau_b:+.2f}"
