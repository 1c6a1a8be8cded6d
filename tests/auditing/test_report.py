"""The page: self-contained, well formed, deterministic, and saying what the judgement says."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from tests.auditing.made_up import FAILED, SOURCE, candidate, demo, manifest, samples, timing
from theodolite.auditing.judge import judge
from theodolite.auditing.manifest import Candidate, Manifest
from theodolite.auditing.report import render, summary_table, units, write_report
from theodolite.auditing.report.failures import failures
from theodolite.auditing.report.plots import Plot, Point, draw, limits_us
from theodolite.auditing.report.views import page_view
from theodolite.errors import RunError

VOID = {"meta", "link", "br", "path", "use", "circle", "rect", "line", "polyline", "polygon", "ellipse"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [v for k, v in attrs if k == "id" and v]
        self.links += [v for k, v in attrs if k in ("href", "xlink:href") and v]
        self.loads += [v for k, v in attrs if k in ("src", "srcset", "data", "action", "poster") and v]
        if tag == "link":
            self.loads.append(found.get("href") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes something else at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def rendered() -> str:
    frozen, recording = demo()
    return render(frozen, recording, judge(frozen, recording, recorded=False))


def judged(candidates: list[Candidate], times: list[float]) -> str:
    frozen = manifest(candidates)
    recording = samples([timing(c, t, seed=n) for n, (c, t) in enumerate(zip(candidates, times, strict=True))])
    return render(frozen, recording, judge(frozen, recording, recorded=False))


def test_the_page_is_well_formed_and_its_links_lead_somewhere(rendered: str) -> None:
    page = Page(rendered)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inside) > 100
    assert set(inside) <= set(page.ids)


def test_the_page_asks_nothing_of_the_outside(rendered: str) -> None:
    page = Page(rendered)
    assert [link for link in page.links if not link.startswith("#")] == ["data:,"]
    assert page.loads == ["data:,"]
    assert "@import" not in rendered
    assert re.findall(r"url\((?!#)", rendered) == []
    # Names of XML vocabularies are the only addresses there are, and they are never fetched.
    assert set(re.findall(r"https?://[^\"'<> ]+", rendered)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_the_same_records_give_the_same_bytes(rendered: str, tmp_path: Path) -> None:
    frozen, recording = demo()
    write_report(frozen, recording, judge(frozen, recording, recorded=False), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == rendered


def test_the_summary_shows_the_judgement(rendered: str) -> None:
    frozen, recording = demo()
    text = Page(rendered).text
    for ranking in judge(frozen, recording, recorded=False).rankings:
        assert ranking.tau_b is not None
        assert f"{ranking.tau_b:+.2f}" in text
        assert f"{ranking.clear.right} of {ranking.clear.pairs}" in text
        assert f"{ranking.ranked} / {ranking.measured}" in text
        assert units.percent(ranking.pick.regret).replace("\u00a0", " ") in text
    assert "predicted before" in text


def test_every_candidate_is_there_in_full(rendered: str) -> None:
    frozen, _ = demo()
    text = Page(rendered).text
    for one in frozen.candidates:
        for part in (one.id, one.schedule, one.mapping, one.realised, one.kernel_id, one.refinements[0][1]):
            assert re.sub(r"\s+", " ", part) in text
    assert rendered.count(escape(SOURCE, quote=False).replace("'", "&#39;")[:60]) == len(frozen.candidates)


def test_who_failed_and_who_is_unmeasured_is_named_with_the_reason(rendered: str) -> None:
    section = rendered[rendered.index('id="left-out"') :]
    text = Page(section[section.index("<h2>") : section.index("</section>")]).text
    for case in "AC":
        assert f"{case}-pipe-07" in text
        assert f"{case}-pipe-11" in text
    assert FAILED[1].reason in text
    assert "out-of-memory: as planted" in text
    assert f"<td>{FAILED[1].reason}" not in rendered  # its < is escaped


def test_a_full_tie_is_no_resolution_and_its_spread_is_shown() -> None:
    predictions = [{"BASELINE": 1e-6, "CORRECTED": c} for c in (1e-6, 2e-6, 3e-6)]
    tied = [candidate(f"t{n}", p) for n, p in enumerate(predictions)]
    text = Page(judged(tied, [1e-5, 2e-5, 65e-5])).text
    assert "no resolution" in text
    assert "all 3 predictions are one tie" in text
    assert "tie groups of 3" in text
    assert re.search(r"Where BASELINE fails .* 6[456]\.\dx right, 3\.00x", text)
    assert "Where CORRECTED fails Nowhere" in text


def test_a_model_that_ranks_nobody_gets_its_plot_and_no_figures() -> None:
    text = Page(judged([candidate("f", {"BASELINE": "inexpressible: Interleaved", "CORRECTED": 1e-6})], [1e-5])).text
    assert "ranks no measured candidate" in text
    assert "1 inexpressible" in text
    assert "the model ranks" in text


def test_inversions_stand_beside_the_other_model() -> None:
    """BASELINE believes the slow one; CORRECTED does not.  Both predictions and both times must be on the page."""
    slow = candidate("slow", {"BASELINE": 2e-6, "CORRECTED": 9e-6})
    fast = candidate("fast", {"BASELINE": 3e-6, "CORRECTED": 6e-6})
    frozen = manifest([slow, fast])
    known = [timing(slow, 3e-5, seed=1), timing(fast, 1e-5, seed=2), timing(fast, 1e-5, seed=3, name="fast#again")]
    recording = samples(known)
    judgement = judge(frozen, recording, recorded=False)
    baseline, corrected = failures(judgement.rankings, frozen.candidates, judgement)
    (row,) = baseline.inversions
    assert (row.pair.predicted_faster, row.pair.measured_faster) == ("slow", "fast")
    assert row.predicted_s == (2e-6, 3e-6)
    assert row.measured_s[0] / row.measured_s[1] == pytest.approx(3, rel=0.02)
    assert (row.verdict.outcome, row.other.kind, row.other.text) == ("WRONG", "right", "right, 1.50x")
    assert corrected.inversions == ()
    assert "2.000 < 3.000 1.50x" in Page(render(frozen, recording, judgement)).text


def test_without_measurements_the_page_says_so() -> None:
    frozen, _ = demo(count=4)
    text = Page(page := render(frozen, None, None)).text
    assert "Nothing was measured yet" in text
    assert "Kendall" not in text
    assert "not yet" in text
    assert 'class="plot"' not in page


def test_a_retrodiction_is_called_one() -> None:
    frozen, recording = demo(count=4)
    older = replace(recording, run_id="older-run")
    text = Page(render(frozen, older, judge(frozen, older, recorded=True))).text
    assert "retrodicted" in text
    assert "older-run" in text
    assert "predicted before" not in text


def test_records_that_do_not_belong_together_are_refused() -> None:
    frozen, recording = demo(count=3)
    judgement = judge(frozen, recording, recorded=False)
    with pytest.raises(RunError, match="or neither"):
        render(frozen, recording, None)
    with pytest.raises(RunError, match="judge this one"):
        render(replace(frozen, run_id="other"), recording, judgement)
    with pytest.raises(RunError, match="judge these"):
        render(frozen, replace(recording, run_id="other"), judgement)


def test_hostile_names_are_only_text() -> None:
    bad = '<script>alert("x")</script>'
    page = judged(
        [candidate(bad, {"BASELINE": bad, "CORRECTED": 1e-6}), candidate("b", {"CORRECTED": 2e-6})], [1e-5, 2e-5]
    )
    assert bad not in page
    assert page.count("<script>") == 1
    assert bad in unescape(page)


@pytest.mark.parametrize("unranked", [0, 2])
def test_a_plot_draws_each_candidate_once_and_links_it(unranked: int) -> None:
    points = tuple(
        Point(
            f"c{n}", f"a{n}", "none" if n % 2 else "odd", 1e-5 * (n + 1), None if n < unranked else 1e-6, n == 3, n == 4
        )
        for n in range(5)
    )
    plot = Plot("sdpa:A", "BASELINE", points, limits_us([p.measured_s for p in points]))
    svg = draw(plot)
    assert sorted(re.findall(r'<a href="#(a\d)"><title>', svg)) == [p.anchor for p in points]
    assert svg.count("not ranked, measured") == unranked
    assert draw(plot) == svg
    assert not re.search(r"#0[1-6]0[1-6]0[1-6]", svg)  # every stand-in colour was replaced
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', svg)) <= set(ids)


def test_columns_sort_by_numbers_and_the_unmeasured_come_last() -> None:
    frozen, recording = demo()
    view = page_view(frozen, recording, judge(frozen, recording, recorded=False))
    for case in view.cases:
        values = [c.median.value for c in case.candidates]
        known = [v for v in values if v is not None]
        assert values == [*sorted(known), None, None]


def test_the_second_name_of_a_kernel_has_no_row() -> None:
    one = candidate("a", {"BASELINE": 1.0, "CORRECTED": 1.0})
    frozen: Manifest = manifest([one, replace(one, id="a#again")])
    assert list(page_view(frozen, None, None).anchors) == ["a"]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (units.us(6.4873e-6), "6.487"),
        (units.us(12.345678e-6), "12.35"),
        (units.us(2.5e-3), "2,500"),
        (units.us(None), "–"),
        (units.percent(0.046), "4.6\u00a0%"),
        (units.percent(13.0), "1,300\u00a0%"),
        (units.times(65.04), "65.0x"),
        (units.p_value(1e-9), "< 1e-6"),
    ],
)
def test_numbers_read_as_people_write_them(said: str, wanted: str) -> None:
    assert said == wanted


def test_the_terminal_table_says_the_same() -> None:
    frozen, recording = demo()
    judgement = judge(frozen, recording, recorded=False)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary_table(judgement))
    text = console.export_text()
    for ranking in judgement.rankings:
        (line,) = (x for x in text.splitlines() if ranking.case in x and ranking.model in x)
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        assert cells[2] == f"{ranking.ranked}/{ranking.measured}"
        assert cells[3] == f"{ranking.tau_b:+.2f}"
        assert ranking.pick.candidate in cells[6]
        assert ranking.pick.best in cells[7]
