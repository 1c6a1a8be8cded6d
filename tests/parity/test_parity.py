"""This package's costs against those of AccelForge itself, both computed here: every count, time, energy and space."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("accelforge", reason="AccelForge has an environment of its own: make parity")

from tests.parity.cases import SLIPS, TRIPS, Case, drawn, slip, stored
from tests.parity.ours import differences, ours
from tests.parity.theirs import theirs

STORED = tuple(stored())
SEEDS = range(250)
# Each must be what speaks against some of the draws: then both sides are known to refuse it
REASONS = ("occupancy", "would cross", "another rank", "waits under", "less than nothing")


@pytest.mark.parametrize("case", STORED, ids=lambda c: c.name)
def test_the_stored_triples_cost_the_same(case: Case) -> None:
    assert differences(ours(case.files, case.variables), theirs(case.files, case.variables)) == []


def test_what_one_accepts_the_other_accepts_and_prices_the_same(tmp_path: Path) -> None:
    """A draw may break a rule of AccelForge's; both must then refuse it."""
    equal = 0
    reasons: Counter[str] = Counter()
    for seed in SEEDS:
        case = drawn(seed, tmp_path)
        said_there, table = _theirs_or_reason(case), _ours_or_reason(case)
        if isinstance(said_there, dict):
            assert isinstance(table, dict), f"seed {seed}: {table}"
            assert differences(table, said_there) == [], f"seed {seed}"
            equal += 1
            continue
        said = [table] if isinstance(table, str) else [k for k in table if k.startswith("refused|")]
        assert said, f"seed {seed}: {said_there}"
        reasons.update(r for r in REASONS if any(r in one for one in said))
    assert equal >= 150
    assert all(reasons[r] for r in REASONS), reasons


def _theirs_or_reason(case: Case) -> dict[str, float] | str:
    try:
        return theirs(case.files, {})
    except Exception as error:  # AccelForge raises assertions, ValueErrors and its own classes alike
        return f"{type(error).__name__}: {error}"


def _ours_or_reason(case: Case) -> dict[str, float] | str:
    from theodolite.errors import TheodoliteError

    try:
        return ours(case.files, {})
    except TheodoliteError as error:
        return str(error)


@pytest.mark.parametrize("name", SLIPS)
def test_accelforge_still_slips_where_we_follow_it(name: str) -> None:
    """When a release mends one, what is really held becomes our number too."""
    memory, said_bits, held_bits = SLIPS[name]
    case = slip(name)
    table = theirs(case.files, {})
    assert table[f"peak|{memory}"] * 2**20 == pytest.approx(said_bits)
    assert said_bits != held_bits
    assert differences(ours(case.files, {}), table) == []


@pytest.mark.parametrize("name", TRIPS)
def test_accelforge_still_stops_where_we_refuse(name: str) -> None:
    _, raised, _ = TRIPS[name]
    with pytest.raises(AssertionError, match=raised):
        theirs(slip(name).files, {})


def test_a_written_mapping_is_one_that_accelforge_reads(tmp_path: Path) -> None:
    from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of, write_mapping

    for case in (*STORED[4:11], *STORED[-3:]):
        sections = load(*case.files, variables=case.variables)
        arch, cascade = arch_of(sections), cascade_of(sections)
        tree = mapping_of(sections, arch, cascade)
        written = tmp_path / "written.yaml"
        written.write_text(write_mapping(tree, arch, cascade, names_of(arch)))
        again = theirs((*case.files[:-1], written), case.variables)
        assert differences(again, theirs(case.files, case.variables)) == []
