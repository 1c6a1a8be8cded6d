"""This package's costs against those of AccelForge itself, both computed here: every count, time, energy and space."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("accelforge", reason="AccelForge has an environment of its own: make parity")

from tests.parity.cases import DATA, Case, drawn, stored
from tests.parity.ours import differences, ours
from tests.parity.theirs import theirs

STORED = tuple(stored())
SEEDS = range(200)
# AccelForge stops with an assertion of its own on this one (`Negative reservation`): see docs/accelforge.md
THEIR_BUGS = (964,)


@pytest.mark.parametrize("case", STORED, ids=lambda c: c.name)
def test_the_stored_triples_cost_the_same(case: Case) -> None:
    assert differences(ours(case.files, case.variables), theirs(case.files, case.variables)) == []


def test_what_one_accepts_the_other_accepts_and_prices_the_same(tmp_path: Path) -> None:
    """A draw may break a rule of AccelForge's; both must then refuse it."""
    equal = 0
    for seed in SEEDS:
        case = drawn(seed, tmp_path)
        refused = _theirs_refuses(case)
        table = _ours_or_reason(case)
        if refused is None:
            assert isinstance(table, dict), f"seed {seed}: {table}"
            assert differences(table, theirs(case.files, {})) == [], f"seed {seed}"
            equal += 1
        else:
            assert isinstance(table, str) or any(k.startswith("refused|") for k in table), f"seed {seed}: {refused}"
    assert equal + len(STORED) >= 200
    assert equal < len(SEEDS)  # draws that break a rule are among them


def _theirs_refuses(case: Case) -> str | None:
    try:
        theirs(case.files, {})
    except Exception as error:  # AccelForge raises assertions, ValueErrors and its own classes alike
        return f"{type(error).__name__}: {error}"
    return None


def _ours_or_reason(case: Case) -> dict[str, float] | str:
    from theodolite.errors import TheodoliteError

    try:
        return ours(case.files, {})
    except TheodoliteError as error:
        return str(error)


@pytest.mark.parametrize("seed", THEIR_BUGS)
def test_their_bugs_are_still_there(seed: int, tmp_path: Path) -> None:
    """When a release mends one, it belongs among the draws."""
    case = drawn(seed, tmp_path)
    with pytest.raises(AssertionError, match="Negative reservation"):
        theirs(case.files, {})
    assert not any(k.startswith("refused|") for k in ours(case.files, {}))


def test_a_handed_tensor_of_two_tile_sizes_takes_space_that_nothing_fills() -> None:
    """X is 6 values of 8 bits, spread over 3 units where it is made and whole where it is read, twice.

    16 bits a unit and then 48 bits are what lies in the buffer; AccelForge says 80, and so do we.
    """
    files = tuple(DATA / f"two_sizes.{what}.yaml" for what in ("arch", "workload", "mapping"))
    assert theirs(files, {})["peak|Buffer"] * 2**20 == pytest.approx(80)
    assert ours(files, {})["peak|Buffer"] * 2**20 == pytest.approx(80)


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
