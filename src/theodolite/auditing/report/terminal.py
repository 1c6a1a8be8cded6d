"""The summary of a judgement, and of one of pairs, as a table for a terminal."""

from __future__ import annotations

from collections import Counter

from rich.markup import escape
from rich.table import Table

from theodolite.auditing.judge import Judgement
from theodolite.auditing.metrics import NEAR_BEST
from theodolite.auditing.pairs import OUTCOMES, PairJudgement
from theodolite.auditing.ranking import Ranking
from theodolite.auditing.report.units import DASH, near_tau, percent, percents, tau, taus, us

COLUMNS = ("case", "model", "ranked/measured", "tau-b", "pairs right > 5 %", "regret", "pick", "best")

CAPTION = "times are medians in us; a range below a figure is what noise leaves open (95 % of a bootstrap over rounds)"


def summary_table(judgement: Judgement) -> Table:
    """Two rows a case and model, of all candidates and of those near the best; times in microseconds."""
    title = "; ".join((f"{judgement.run_id} on {judgement.gpu}: {judgement.provenance}", *judgement.conditions))
    table = Table(title=escape(title), caption=CAPTION)
    for name in COLUMNS:
        right = name in ("ranked/measured", "pairs right > 5 %", "regret")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name == "ranked/measured")
    for ranking in judgement.rankings:
        table.add_row(*(escape(cell) for cell in _row(ranking)))
        table.add_row(*(escape(cell) for cell in _near(ranking)), end_section=True)
    return table


def _row(ranking: Ranking) -> tuple[str, ...]:
    pick = ranking.pick
    clear = ranking.clear
    whole = ranking.whole
    right = f"{percent(clear.accuracy)} of {clear.pairs}" if clear.pairs else DASH
    chosen = DASH if pick is None else f"{pick.candidate} {us(pick.measured_s)}"
    if pick is not None and pick.tied > 1:
        chosen += f" (slowest of {pick.tied} tied)"
    return (
        ranking.case,
        ranking.model,
        f"{ranking.ranked}/{ranking.measured}",
        _over(tau(ranking), taus(whole.tau_b_interval)),
        _over(right, percents(whole.accuracy_interval)),
        DASH if pick is None else _over(percent(pick.regret), percents(whole.regret_interval)),
        chosen,
        DASH if pick is None else f"{pick.best} {us(pick.best_s)}",
    )


def _near(ranking: Ranking) -> tuple[str, ...]:
    """The same figures among the candidates within NEAR_BEST of the best."""
    near = ranking.near
    right = f"{percent(near.accuracy)} of {near.pairs}" if near.pairs else DASH
    return (
        "",
        f"≤ {NEAR_BEST}x best",
        f"{near.ranked}/{near.pool}",
        _over(near_tau(near), taus(near.tau_b_interval)),
        _over(right, percents(near.accuracy_interval)),
        _over(percent(near.regret), percents(near.regret_interval)),
        "",
        "",
    )


def _over(figure: str, spread: str) -> str:
    return f"{figure}\n{spread}" if spread else figure


def pairs_table(judgement: PairJudgement) -> Table:
    """A row a model, and one for each decision that its pairs turn on, with how many verdicts came out how."""
    words = " and ".join(sorted({j.provenance for j in judgement.judged}))
    count = len(judgement.judged) // max(len(judgement.models), 1)
    title = "; ".join((f"{judgement.run_id} on {judgement.gpu}: {count} pairs, {words}", *judgement.conditions))
    caption = "\n".join(t for t in (_open(judgement), f"an order stands with {judgement.thresholds}") if t)
    table = Table(title=escape(title), caption=escape(caption))
    for column in ("model", "decision", *OUTCOMES):
        table.add_column(column, justify="right" if column in OUTCOMES else "left", no_wrap=True)
    for model in judgement.models:
        rows = [("all", None), *((d, d) for d in judgement.decisions)]
        for name, decision in rows:
            counts = judgement.counts(model, decision)
            cells = (escape(model if decision is None else ""), escape(name), *(str(counts[o]) for o in OUTCOMES))
            table.add_row(*cells, end_section=name == rows[-1][0])
    return table


def _open(judgement: PairJudgement) -> str:
    """Why pairs are UNRESOLVED, model by model; "" where none is."""
    parts = []
    for model in judgement.models:
        reasons = Counter(j.verdict.reason for j in judgement.of(model) if j.verdict.outcome == "UNRESOLVED")
        if reasons:
            parts.append(f"{model} " + ", ".join(f"{n} {reason}" for reason, n in reasons.most_common()))
    return f"UNRESOLVED: {'; '.join(parts)}" if parts else ""
