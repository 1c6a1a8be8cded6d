"""The summary of a judgement as a table for a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from theodolite.auditing.judge import Judgement
from theodolite.auditing.ranking import Ranking
from theodolite.auditing.report.units import DASH, percent, tau, us

COLUMNS = ("case", "model", "ranked/measured", "tau-b", "pairs right > 5 %", "regret", "pick", "best")


def summary_table(judgement: Judgement) -> Table:
    """One row a case and model; times in microseconds."""
    title = f"{judgement.run_id} on {judgement.gpu}: {judgement.provenance}"
    table = Table(title=escape(title), caption="times are medians in us")
    for name in COLUMNS:
        right = name in ("ranked/measured", "pairs right > 5 %", "regret")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for ranking in judgement.rankings:
        table.add_row(*(escape(cell) for cell in _row(ranking)))
    return table


def _row(ranking: Ranking) -> tuple[str, ...]:
    pick = ranking.pick
    clear = ranking.clear
    right = f"{percent(clear.accuracy)} of {clear.pairs}" if clear.pairs else DASH
    chosen = DASH if pick is None else f"{pick.candidate} {us(pick.measured_s)}"
    if pick is not None and pick.tied > 1:
        chosen += f" (slowest of {pick.tied} tied)"
    return (
        ranking.case,
        ranking.model,
        f"{ranking.ranked}/{ranking.measured}",
        tau(ranking),
        right,
        DASH if pick is None else percent(pick.regret),
        chosen,
        DASH if pick is None else f"{pick.best} {us(pick.best_s)}",
    )
