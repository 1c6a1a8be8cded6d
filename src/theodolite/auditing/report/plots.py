"""Predicted against measured, as an SVG that follows the page's colours and links each point to its candidate."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib

# Okabe and Ito's palette, which colour-blind readers tell apart; shapes say the same again.
FUSIONS: dict[str, tuple[str, str]] = {
    "single-kernel": ("#0072B2", "o"),
    "on-chip": ("#009E73", "D"),
    "split": ("#E69F00", "s"),
    "none": ("#CC79A7", "^"),
}
OTHER_FUSION = ("#888888", "v")
# Stand-ins that the page's own colours replace, since a figure must read on dark and on light.
TEXT, GRID = "#010203", "#040506"


@dataclass(frozen=True)
class Point:
    """A measured candidate in a plot; `predicted_s` is None where the model does not rank it."""

    candidate: str
    anchor: str
    fusion: str
    measured_s: float
    predicted_s: float | None
    tied: bool
    picked: bool


@dataclass(frozen=True)
class Plot:
    """What is drawn for one model on one case; `y_limits_us` are shared by all models of the case."""

    case: str
    model: str
    points: tuple[Point, ...]
    y_limits_us: tuple[float, float]


def draw(plot: Plot) -> str:
    """The figure as an inline `<svg>`; the same plot gives the same bytes."""
    salt = hashlib.sha256(f"{plot.case} {plot.model}".encode()).hexdigest()[:8]
    settings: Any = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.size": 11,
        "text.color": TEXT,
        "axes.labelcolor": TEXT,
        "axes.edgecolor": TEXT,
        "xtick.color": TEXT,
        "ytick.color": TEXT,
        "grid.color": GRID,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own style must not change the page
        matplotlib.rcParams.update(settings)
        # A figure of its own canvas leaves pyplot's global state, and the user's backend, alone.
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.6, 4.6))
        FigureCanvasSVG(figure)
        main, side = figure.subplots(1, 2, sharey=True, width_ratios=(5, 1), gridspec_kw={"wspace": 0.06})
        _main(main, plot)
        _side(side, plot)
        for axes in (main, side):
            best_us = min(p.measured_s for p in plot.points) * 1e6
            axes.axhline(best_us, color=TEXT, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        figure.subplots_adjust(left=0.13, right=0.97, top=0.93, bottom=0.125)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), salt, plot)


def limits_us(values_s: Sequence[float]) -> tuple[float, float]:
    """Log limits with room about the values, at least a factor of four apart."""
    low, high = min(values_s) * 1e6, max(values_s) * 1e6
    room = max((high / low) ** 0.09, (4 / min(high / low, 4)) ** 0.5, 1.1)
    return low / room, high * room


def _main(axes: Any, plot: Plot) -> None:
    ranked = [p for p in plot.points if p.predicted_s is not None]
    axes.set(xscale="log", yscale="log", ylim=plot.y_limits_us)
    if ranked:
        axes.set_xlim(*limits_us([p.predicted_s for p in ranked if p.predicted_s is not None]))
        low = min(axes.get_xlim()[0], plot.y_limits_us[0])
        high = max(axes.get_xlim()[1], plot.y_limits_us[1])
        axes.plot(
            [low, high], [low, high], color=TEXT, linewidth=0.9, linestyle=(0, (4, 3)), scalex=False, scaley=False
        )
    else:
        axes.set_xticks([])
        axes.text(
            0.5, 0.5, "the model ranks\nno measured candidate", ha="center", va="center", transform=axes.transAxes
        )
    _scatter(axes, ranked, lambda p: (p.predicted_s or 0.0) * 1e6)
    axes.set(xlabel=f"predicted by {plot.model} (us)", ylabel="measured (us)")
    axes.set_title("ranked", fontsize=10)
    _ticks(axes.yaxis)
    if ranked:
        _ticks(axes.xaxis)
    _grid(axes)


def _side(axes: Any, plot: Plot) -> None:
    """The band of those that the model does not rank: seen, at their measured height, with no predicted place."""
    unranked = [p for p in plot.points if p.predicted_s is None]
    axes.set(xlim=(0, 1), xticks=[])
    axes.tick_params(left=False, which="both")
    axes.axvspan(0, 1, facecolor="#888888", alpha=0.14, linewidth=0, zorder=0)
    axes.set_title("not ranked", fontsize=10)
    # Spread by position in the list, so that equal heights do not hide each other.
    place = {p.candidate: 0.2 + 0.6 * (n % 4) / 3 for n, p in enumerate(unranked)}
    _scatter(axes, unranked, lambda p: place[p.candidate])
    _grid(axes)


def _scatter(axes: Any, points: Sequence[Point], x_of: Callable[[Point], float]) -> None:
    for fusion in (*FUSIONS, None):
        for hollow in (False, True):
            mine = [p for p in points if p.tied == hollow and (p.fusion if p.fusion in FUSIONS else None) == fusion]
            if not mine:
                continue
            colour, marker = FUSIONS.get(fusion or "", OTHER_FUSION)
            dots = axes.scatter(
                [x_of(p) for p in mine],
                [p.measured_s * 1e6 for p in mine],
                s=38,
                marker=marker,
                facecolors="none" if hollow else colour,
                edgecolors=colour,
                linewidths=1.4 if hollow else 0.6,
                alpha=0.9,
                zorder=3,
            )
            dots.set_urls([f"#{p.anchor}" for p in mine])
    chosen = [p for p in points if p.picked]
    axes.scatter(
        [x_of(p) for p in chosen],
        [p.measured_s * 1e6 for p in chosen],
        s=170,
        facecolors="none",
        edgecolors=TEXT,
        linewidths=1.3,
        zorder=4,
    )


def _ticks(axis: Any) -> None:
    """Labels such as 5, 20, 300: at 1, 2 and 5 of each decade where few decades show, else at decades alone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _grid(axes: Any) -> None:
    axes.grid(True, which="major", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _inline(svg: str, salt: str, plot: Plot) -> str:
    """The bare `<svg>`: ids of its own, page colours, a title on the whole and on each point."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{salt}-', svg)
    svg = re.sub(r'(<use [^>]*xlink:href="#)', rf"\g<1>{salt}-", svg).replace("url(#", f"url(#{salt}-")
    svg = svg.replace(TEXT, "currentColor").replace(GRID, "var(--grid)")
    for point in plot.points:
        said = "not ranked" if point.predicted_s is None else f"predicted {point.predicted_s * 1e6:.4g} us"
        title = f"<title>{escape(point.candidate)}: {said}, measured {point.measured_s * 1e6:.4g} us</title>"
        link = f'<a href="#{point.anchor}">{title}'
        # The link is to this page: without the `target` that some versions of matplotlib add.
        svg = svg.replace(f'<a xlink:href="#{point.anchor}" target="_blank">', link)
        svg = svg.replace(f'<a xlink:href="#{point.anchor}">', link)
    label = escape(f"{plot.case}: predicted by {plot.model} against measured")
    head = f'<svg role="img" aria-label="{label}" class="plot" '
    return re.sub(r'width="[^"]*pt" height="[^"]*pt" ', "", svg.replace("<svg ", head, 1), count=1)
