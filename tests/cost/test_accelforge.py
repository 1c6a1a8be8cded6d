"""Costs of AccelForge's own files: published numbers, what its release said of many triples, whole grids at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.cases import BY_HAND, CASE_A, DATA, SLIPS, SMALL, TRIPS, drawn, slip, stored
from tests.parity.ours import differences, ours
from theodolite.cost.buffet import EinsumProfile, count, joules, seconds, why_not
from theodolite.errors import Infeasible, TheodoliteError
from theodolite.gpus.accelforge import hierarchies
from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of
from theodolite.ir.tree import Block, Key, Loop, Temporal

RECORDED = json.loads(gzip.decompress((DATA / "recorded.json.gz").read_bytes()))
BY_NAME = {c["name"]: c for c in RECORDED["cases"]}
STORED = tuple(stored())
# Published for these mappings: joules, seconds (see docs/accelforge.md)
PUBLISHED = {
    "one product": (2228224, 65536),
    "two products, unfused": (17629184, 524288),
    "two products, fused": (4833280, 131072),
    "three products, fused": (7069696, 196608),
    "vectors, unfused": (4080, 24),
    "vectors, untiled": (3552, 24),
    "vectors, tiled": (6192, 24),
    "vectors, tiled_reuse_A": (4960, 24),
}
# Joules of main memory for T0, W0 and T1
MAIN = {
    "one product": (16384, 8192, 16384),
    "one product, T0 of 4 bits": (8192, 8192, 16384),
    "one product, all of 16 bits": (32768, 16384, 32768),
    "one product, output read": (16384, 8192, 32768),
}


def by_hand(name: str) -> dict[str, float]:
    return next(ours(tuple(DATA / f for f in files), v) for n, files, v in BY_HAND if n == name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_totals(name: str) -> None:
    table = by_hand(name)
    assert (table["total|energy"], table["total|latency"]) == PUBLISHED[name]


@pytest.mark.parametrize("name", MAIN)
def test_the_published_energies_of_main_memory(name: str) -> None:
    table = by_hand(name)
    found = [
        sum(v for k, v in table.items() if k.startswith(f"energy|Matmul0|MainMemory|{t}|")) for t in ("T0", "W0", "T1")
    ]
    assert found == list(MAIN[name])


def test_the_published_occupancy() -> None:
    assert by_hand("three products, fused")["peak|GlobalBuffer"] == pytest.approx(0.025088, rel=1e-12)


def test_the_mapping_that_the_mapper_returns_unsound_costs_what_it_said() -> None:
    """414,080 J and 10,240 s are its mapper's own figures; the tree breaks a rule: tests/ir/accelforge."""
    files = tuple(DATA / f"softmax_unsound.{what}.yaml" for what in ("arch", "workload", "mapping"))
    table = ours(files, {"L": 16, "S": 64})
    assert (table["total|energy"], table["total|latency"]) == (414080, 10240)


def test_the_published_invalid_mapping_is_refused() -> None:
    files = tuple(DATA / f for f in (*SMALL, "matmuls_unfused.yaml"))
    table = ours(files, {"N": 1, "M": 64, "KN": 64, "BROKEN": True})
    assert "refused|Matmul0: m ends at 64; AccelForge wants loops down to 1" in table


@pytest.mark.parametrize(
    ("given", "values"),
    [("values_per_action: {All: 2}", 2), ("bits_per_action: 16", 2), ("leak_power_scale: 2", 0.125)],
)
def test_what_an_action_moves(given: str, values: float, tmp_path: Path) -> None:
    """Every value passes main memory once: 8,192 values, an energy of 1 an action."""
    plain = (DATA / "two_memories.yaml").read_text()
    arch = tmp_path / "arch.yaml"
    arch.write_text(
        plain.replace("    tensors: {keep: ~Intermediates", f"    {given}\n    tensors: {{keep: ~Intermediates", 1)
    )
    files = (arch, DATA / "matmuls.yaml", DATA / "matmuls_unfused.yaml")
    table = ours(files, {"N": 1, "M": 64, "KN": 64})
    main = sum(v for k, v in table.items() if k.startswith("energy|Matmul0|MainMemory"))
    assert main == 3 * 4096 / values


def test_a_unit_that_is_turned_off_is_not_used(tmp_path: Path) -> None:
    """The tensor core takes Einsums of three tensors; AccelForge's model costs one of two on it all the same."""
    mapping = tmp_path / "mapping.yaml"
    text = (DATA / "case-a" / "000.yaml").read_text()
    mapping.write_text(
        text.replace("{einsum: Weights, component: ScalarUnit}", "{einsum: Weights, component: TensorCore}")
    )
    assert mapping.read_text() != text
    with pytest.raises(Infeasible, match="compute on mma: the hierarchy has no such unit"):
        ours((DATA / "gpu_three_level.yaml", DATA / "sdpa.yaml", mapping), CASE_A)


def test_what_waits_in_a_memory_that_an_einsum_lacks_stays_there(tmp_path: Path) -> None:
    """Y is made in between, of three tensors, for which the buffer is turned off."""
    arch = tmp_path / "arch.yaml"
    text = (DATA / "two_sizes.arch.yaml").read_text()
    arch.write_text(text.replace("    name: Buffer\n", "    name: Buffer\n    enabled: len(All) == 2\n"))
    workload = tmp_path / "workload.yaml"
    einsums = ("X[m] = I[m]", "Y[m] = J[m] * K[m]", "Z[m] = X[m]")
    workload.write_text("workload:\n  rank_sizes: {M: 4}\n  bits_per_value: {All: 8}\n  einsums:\n"
                        + "".join(f'  - "{e}"\n' for e in einsums))  # fmt: skip
    branch = "    - !Nested\n      nodes:\n      - !Temporal {{rank_variable: m, tile_shape: 1}}\n" \
             "      - !Compute {{einsum: {}, component: MAC}}\n"  # fmt: skip
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("mapping:\n  nodes:\n  - !Storage {tensors: [I, J, K, Y, Z], component: Main}\n"
                       "  - !Storage {tensors: [X], component: Buffer}\n  - !Sequential\n    nodes:\n"
                       + "".join(branch.format(e) for e in "XYZ"))  # fmt: skip
    table = ours((arch, workload, mapping), {})
    assert [table[f"peak|{m}"] * 2**20 for m in ("Buffer", "Main")] == [32, 96]


@pytest.mark.parametrize("name", SLIPS)
def test_a_memory_holds_what_accelforge_says_that_it_does(name: str) -> None:
    """Its own numbers, also where they are not what lies there: docs/accelforge.md."""
    memory, said_bits, _ = SLIPS[name]
    assert ours(slip(name).files, {})[f"peak|{memory}"] * 2**20 == said_bits


@pytest.mark.parametrize("name", TRIPS)
def test_what_stops_accelforge_is_refused(name: str) -> None:
    _, _, reason = TRIPS[name]
    refused = [k for k in ours(slip(name).files, {}) if k.startswith("refused|")]
    assert len(refused) == 1
    assert refused[0].endswith(reason)


def test_the_slips_decide_what_fits(tmp_path: Path) -> None:
    """X is twice in the table: a main memory of 120 bits is too small for 64."""
    case = slip("spatial_above")
    for size, fits in ((128, True), (120, False)):
        arch = tmp_path / f"{size}.yaml"
        arch.write_text(case.files[0].read_text().replace("size: 2**20", f"size: {size}", 1))
        refused = [k for k in ours((arch, *case.files[1:]), {}) if k.startswith("refused|")]
        assert refused == ([] if fits else ["refused|Y: Main occupancy of 16 over 15 bytes"])


def test_an_einsum_fits_alone_too(tmp_path: Path) -> None:
    """The table says 32 bits, but Z holds 40 itself."""
    case = slip("too_little")
    arch = tmp_path / "arch.yaml"
    arch.write_text("size: 32\n".join(case.files[0].read_text().rsplit("size: 2**20\n", 1)))
    refused = [k for k in ours((arch, *case.files[1:]), {}) if k.startswith("refused|")]
    assert refused == ["refused|Z: Buffer occupancy of 5 over 4 bytes"]


# ---- what the release said ---------------------------------------------------------------------------------------
def test_the_recording_is_of_one_release() -> None:
    assert RECORDED["accelforge"] == "1.0.467"
    assert sum("table" in c for c in RECORDED["cases"]) >= 140
    assert sum("refused" in c for c in RECORDED["cases"]) >= 5


@pytest.mark.parametrize("case", STORED, ids=lambda c: c.name)
def test_the_stored_triples_cost_what_accelforge_said(case: Any) -> None:
    recorded = BY_NAME[case.name]
    assert case.mark == recorded["mark"], "the files changed: record them anew (tests/parity/record.py)"
    assert differences(ours(case.files, case.variables), recorded["table"]) == []


def test_the_drawn_triples_cost_what_accelforge_said(tmp_path: Path) -> None:
    seeds = [int(n.split()[1]) for n in BY_NAME if n.startswith("seed ")]
    assert len(seeds) >= 80
    for seed in seeds:
        case, recorded = drawn(seed, tmp_path), BY_NAME[f"seed {seed}"]
        assert case.mark == recorded["mark"], f"seed {seed} draws another triple: record anew (tests/parity/record.py)"
        try:
            table = ours(case.files, {})
        except TheodoliteError:
            table = {"refused|": 1.0}
        if "refused" in recorded:
            assert any(k.startswith("refused|") for k in table), f"seed {seed}: AccelForge refuses it"
        else:
            assert differences(table, recorded["table"]) == [], f"seed {seed}"


def test_the_oracle_can_refute() -> None:
    """One action more than recorded, a bit of space less: either is seen."""
    case = STORED[-1]
    table = dict(BY_NAME[case.name]["table"])
    assert differences(ours(case.files, case.variables), table) == []
    for kind in ("action|", "latency|", "energy|", "usage|", "peak|", "total|"):
        key = next(k for k in table if k.startswith(kind))
        changed = {**table, key: table[key] * (1 + 3e-6)}
        assert [d.partition(":")[0] for d in differences(ours(case.files, case.variables), changed)] == [key]


# ---- decisions in place of numbers -------------------------------------------------------------------------------
def test_a_grid_of_tiles_counts_as_its_points(tmp_path: Path) -> None:
    """The tile of the outermost temporal loop of a leaf varies over its divisors, for every number of the profile."""
    done = 0
    for seed in range(60):
        case = drawn(seed, tmp_path)
        sections = load(*case.files)
        arch, cascade = arch_of(sections), cascade_of(sections)
        tree = mapping_of(sections, arch, cascade)
        found = _with_hole(tree.body, cascade.workload.ranks)
        if found is None:
            continue
        body, tiles = found
        machines = hierarchies(arch, cascade, names_of(arch))

        def counted(value: Any, body: Block = body, cascade: Any = cascade, machines: Any = machines) -> Any:
            view = cascade.workload.view("accelforge")
            return count(body, cascade.workload, view, machines, {"hole": value}, bits=cascade.bits, literal=True)

        try:
            grid = counted(np.array(tiles))
        except Infeasible:
            continue
        for i, tile in enumerate(tiles):
            point = counted(tile)
            assert _at(seconds(grid), i) == seconds(point)
            assert _at(joules(grid), i) == pytest.approx(joules(point), rel=1e-15)
            assert [_flat(p, i) for p in grid] == [_flat(p, 0) for p in point]
            assert any(_at(w, i) for w in why_not(grid).values()) == bool(why_not(point))
        done += 1
    assert done >= 15


def _with_hole(body: Block, ranks: Any) -> tuple[Block, list[int]] | None:
    """The body with the tile of its first temporal loop a key, where that loop is the rank's first at the root."""
    for n, node in enumerate(body):
        if isinstance(node, Temporal):
            first, *others = node.loops
            after = [x.tile for x in others if x.rank == first.rank]
            tiles = [
                t for t in range(1, ranks[first.rank] + 1) if ranks[first.rank] % t == 0 and t % (after or [1])[0] == 0
            ]
            hole = Temporal((Loop(first.rank, Key("hole")), *others))
            return ((*body[:n], hole, *body[n + 1 :]), tiles) if len(tiles) > 1 else None
    return None


def _at(value: Any, i: int) -> float:
    return float(np.atleast_1d(value)[i if np.ndim(value) else 0])


def _flat(profile: EinsumProfile, i: int) -> dict[Any, float]:
    numbers: dict[Any, Any] = {("calls", a.memory, a.tensor, a.kind): a.total_calls for a in profile.actions}
    numbers |= {("unit", a.memory, a.tensor, a.kind): a.unit_bits for a in profile.actions}
    numbers |= {("latency", k): v for k, v in profile.latencies_s.items()}
    numbers |= {("reserved", r.memory, r.tensor): r.bits for r in profile.reserved}
    numbers |= {("above", r.memory, r.tensor): r.loops_above for r in profile.reserved}
    numbers |= {("peak", k): v for k, v in profile.peak_bits.items()}
    return {k: _at(v, i) for k, v in numbers.items()}
