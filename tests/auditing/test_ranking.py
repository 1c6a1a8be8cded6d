"""Rankings against a plain O(n^2) count, under reordering, and under swaps."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite import records
from theodolite.auditing.ranking import BUCKETS, Ranking, Standing, rank
from theodolite.errors import RunError

TIMES = st.sampled_from([1.0, 1.02, 1.04, 1.07, 1.2, 1.5, 2.0, 3.0, 7.0, 40.0])
PREDICTIONS = st.one_of(st.none(), st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]))


@st.composite
def standings(draw: st.DrawFn, most: int = 12) -> list[Standing]:
    rows = draw(st.lists(st.tuples(st.one_of(st.none(), TIMES), PREDICTIONS), max_size=most))
    return [Standing(f"c{n}", t, p, None if p else "inexpressible: x") for n, (t, p) in enumerate(rows)]


def both(rows: list[Standing]) -> list[Standing]:
    return [s for s in rows if s.measured_s is not None and s.predicted_s is not None]


def of(*rows: tuple[str, float | None, float | None]) -> Ranking:
    return rank("sdpa:A", "M", [Standing(*row) for row in rows])


@given(standings())
def test_pairs_equal_a_plain_count(rows: list[Standing]) -> None:
    result = rank("sdpa:A", "M", rows)
    counts = {label: [0, 0, 0] for label, _, _ in BUCKETS}
    inversions = equal = 0
    for a, b in combinations(both(rows), 2):
        if a.measured_s == b.measured_s:
            equal += 1
            continue
        gap = max(a.measured_s, b.measured_s) / min(a.measured_s, b.measured_s) - 1
        label = next(name for name, low, high in BUCKETS if low <= gap < high)
        faster, slower = (a, b) if a.measured_s < b.measured_s else (b, a)
        kind = 1 if faster.predicted_s == slower.predicted_s else 0 if faster.predicted_s < slower.predicted_s else 2
        counts[label][kind] += 1
        inversions += kind == 2
    assert {b.label: [b.right, b.tied, b.wrong] for b in result.buckets} == counts
    assert (result.inversions, result.measured_equal_pairs) == (inversions, equal)
    assert result.clear.pairs == sum(b.pairs for b in result.buckets[1:])
    assert result.clear.right == sum(b.right for b in result.buckets[1:])


@given(standings())
def test_tau_equals_its_definition(rows: list[Standing]) -> None:
    """tau-b = (concordant - discordant) / sqrt(pairs untied in x * pairs untied in y)."""
    result = rank("sdpa:A", "M", rows)
    concordance = untied_x = untied_y = 0
    for a, b in combinations(both(rows), 2):
        x = (a.predicted_s > b.predicted_s) - (a.predicted_s < b.predicted_s)
        y = (a.measured_s > b.measured_s) - (a.measured_s < b.measured_s)
        concordance, untied_x, untied_y = concordance + x * y, untied_x + abs(x), untied_y + abs(y)
    if untied_x * untied_y == 0:
        assert result.tau_b is None
        assert result.no_resolution
    else:
        assert result.tau_b == pytest.approx(concordance / math.sqrt(untied_x * untied_y))
        assert result.no_resolution is None


@given(standings(), st.randoms())
def test_order_of_candidates_is_irrelevant(rows: list[Standing], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank("sdpa:A", "M", shuffled) == rank("sdpa:A", "M", rows)


@given(standings(), st.sampled_from([1e-6, 3.0, 1e4]))
def test_scaling_predictions_changes_only_what_shows_them(rows: list[Standing], factor: float) -> None:
    scaled = [Standing(s.candidate, s.measured_s, s.predicted_s and s.predicted_s * factor, s.why_not) for s in rows]
    a, b = rank("sdpa:A", "M", rows), rank("sdpa:A", "M", scaled)
    assert (a.tau_b, a.buckets, a.inversions, a.pick) == (b.tau_b, b.buckets, b.inversions, b.pick)
    assert [t.candidates for t in a.ties] == [t.candidates for t in b.ties]


@given(st.lists(st.floats(1, 100), min_size=2, max_size=9, unique=True), st.data())
def test_swapping_neighbours_flips_exactly_their_pair(times: list[float], data: st.DataObject) -> None:
    times = sorted(times)
    n = data.draw(st.integers(0, len(times) - 2))
    swapped = [*times[:n], times[n + 1], times[n], *times[n + 2 :]]
    a, b = (
        rank("c", "M", [Standing(f"c{k}", t, float(k + 1)) for k, t in enumerate(series)])
        for series in (times, swapped)
    )
    pairs = len(times) * (len(times) - 1) // 2
    assert a.inversions == 0
    assert a.tau_b == pytest.approx(1)
    assert b.inversions == 1
    assert b.tau_b == pytest.approx(1 - 2 / pairs)
    assert [(w.predicted_faster, w.measured_faster) for w in b.worst] == [(f"c{n}", f"c{n + 1}")]
    assert b.worst[0].measured_ratio == pytest.approx(times[n + 1] / times[n])
    assert [x.pairs for x in a.buckets] == [x.pairs for x in b.buckets]


@given(standings())
def test_reversing_the_predictions_exchanges_right_and_wrong(rows: list[Standing]) -> None:
    turned = [Standing(s.candidate, s.measured_s, s.predicted_s and 6 - s.predicted_s, s.why_not) for s in rows]
    a, b = rank("c", "M", rows), rank("c", "M", turned)
    assert [(x.right, x.tied, x.wrong) for x in a.buckets] == [(x.wrong, x.tied, x.right) for x in b.buckets]
    if a.tau_b is not None:
        assert a.tau_b == pytest.approx(-b.tau_b)


@given(standings())
def test_regret_is_what_the_slowest_first_choice_costs(rows: list[Standing]) -> None:
    result = rank("c", "M", rows)
    ranked, measured = both(rows), [s.measured_s for s in rows if s.measured_s is not None]
    if not ranked:
        assert result.pick is None
        return
    first = min(s.predicted_s for s in ranked)
    spent = max(s.measured_s for s in ranked if s.predicted_s == first)
    assert result.pick.regret == pytest.approx(spent / min(measured) - 1)
    assert result.pick.regret_ranked == pytest.approx(spent / min(s.measured_s for s in ranked) - 1)
    assert result.pick.tied == sum(s.predicted_s == first for s in ranked)
    ahead = {s.candidate for s in rows if s.measured_s is None and s.predicted_s is not None and s.predicted_s <= first}
    assert set(result.pick.unmeasured_ahead) == ahead


def test_a_full_tie_has_no_tau_and_every_clear_pair_is_lost() -> None:
    result = of(("a", 1.0, 5.0), ("b", 2.0, 5.0), ("c", 65.0, 5.0 * (1 + 1e-12)))
    assert result.tau_b is None
    assert "one tie" in result.no_resolution
    assert [(t.candidates, t.spread) for t in result.ties] == [(("a", "b", "c"), 65.0)]
    assert (result.clear.pairs, result.clear.right, result.clear.accuracy) == (3, 0, 0.0)
    assert result.inversions == 0
    assert (result.pick.candidate, result.pick.regret) == ("c", 64.0)


def test_predictions_a_millionth_apart_are_no_tie() -> None:
    result = of(("a", 1.0, 5.0), ("b", 2.0, 5.0 * (1 + 1e-6)))
    assert result.ties == ()
    assert result.clear.right == 1


def test_who_is_not_ranked_is_named_with_its_kind() -> None:
    rows = [
        Standing("a", 1.0, None, "inexpressible: Interleaved"),
        Standing("b", 2.0, None, "infeasible: 48 does not divide 128"),
        Standing("c", 3.0, None, None),
        Standing("d", None, None, "inexpressible: not measured either"),
        Standing("e", 4.0, 1.0),
    ]
    result = rank("c", "M", rows)
    assert [(n.candidate, n.kind) for n in result.not_ranked] == [
        ("a", "inexpressible"),
        ("b", "infeasible"),
        ("c", "other"),
    ]
    assert (result.candidates, result.measured, result.ranked, result.unmeasured) == (5, 4, 1, 1)
    assert result.pick.regret == 3.0
    assert result.pick.regret_ranked == 0.0


def test_the_worst_inversions_name_each_slow_favourite_once() -> None:
    result = of(("bad", 90.0, 1.0), ("x", 1.0, 2.0), ("y", 2.0, 3.0), ("worse", 3.0, 2.5))
    assert result.inversions == 4
    listed = [(w.predicted_faster, w.measured_faster, w.measured_ratio) for w in result.worst]
    assert listed == [("bad", "x", 90.0), ("worse", "y", 1.5)]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(value: float) -> None:
    with pytest.raises(RunError, match="positive"):
        of(("a", value, 1.0))
    with pytest.raises(RunError, match="positive"):
        of(("a", 1.0, value))


def test_a_repeated_candidate_is_refused() -> None:
    with pytest.raises(RunError, match="twice"):
        of(("a", 1.0, 1.0), ("a", 2.0, 1.0))


@settings(max_examples=25)
@given(standings())
def test_a_ranking_reads_back_equal(rows: list[Standing]) -> None:
    result = rank("c", "M", rows)
    assert records.load(Ranking, records.dump(result), "ranking") == result
