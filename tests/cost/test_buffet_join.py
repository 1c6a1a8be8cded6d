"""Which Einsums AccelForge can join, and what a memory holds where Einsums wait for each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.parity.ours import ours
from theodolite.cost.buffet import count, why_not
from theodolite.gpus import gpu
from theodolite.ir.tree import Block, Compute, Key, Loop, Sequential, Storage, Temporal
from theodolite.ir.workload import Access, Einsum, Tensor, View, ViewEinsum, Workload

ARCH = """arch:
  nodes:
  - !Memory
    name: Main
    size: {size}
    leak_power: 0
    area: 0
    actions: [{{name: read, energy: 1, throughput: 1}}, {{name: write, energy: 1, throughput: 1}}]
  - !Memory
    name: Buffer
    size: 1000
    leak_power: 0
    area: 0
    actions: [{{name: read, energy: 1, throughput: 1}}, {{name: write, energy: 1, throughput: 1}}]
  - !Compute
    name: MAC
    leak_power: 0
    area: 0
    actions: [{{name: compute, energy: 1, throughput: 1}}]
"""
# C waits for A, which B does not touch
WAITING = ("A[m] = I[m]", "B[m] = J[m] * K[m]", "C[m] = A[m] * B[m]")
# S reads T across the diagonal
TRANSPOSED = ("T[m, n] = I[m, n]", "S[m, n] = T[M:n, N:m]")


def costed(folder: Path, einsums: tuple[str, ...], above: tuple[str, ...], size: str = "1e6") -> dict[str, float]:
    """The table for a root of `above` nodes and one branch an Einsum with a loop down to 1 over each of its ranks."""
    ranks = sorted({r for r in "mn" if any(f"{r}" in e.partition("=")[0] for e in einsums)})
    workload = ["workload:", f"  rank_sizes: {{{', '.join(f'{r.upper()}: 8' for r in ranks)}}}"]
    workload += ["  bits_per_value: {All: 8}", "  einsums:", *(f'  - "{e}"' for e in einsums)]
    mapping = ["mapping:", "  nodes:", *(f"  - !{node}" for node in above), "  - !Sequential", "    nodes:"]
    for einsum in einsums:
        mapping += ["    - !Nested", "      nodes:"]
        mapping += [f"      - !Temporal {{rank_variable: {r}, tile_shape: 1}}" for r in ranks]
        mapping.append(f"      - !Compute {{einsum: {einsum[0]}, component: MAC}}")
    files = []
    for name, text in (("arch", ARCH.format(size=size)), ("workload", workload), ("mapping", mapping)):
        files.append(folder / f"{name}.yaml")
        files[-1].write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
    return ours(tuple(files), {})


def loop(rank: str, tile: int) -> str:
    return f"Temporal {{rank_variable: {rank}, tile_shape: {tile}}}"


def storage(tensors: str, memory: str) -> str:
    return f"Storage {{tensors: [{tensors}], component: {memory}}}"


def refusals(table: dict[str, float]) -> list[str]:
    return [key.partition("|")[2] for key in table if key.startswith("refused|")]


def test_shares_of_a_size_that_depends_on_the_einsum_are_added(tmp_path: Path) -> None:
    """64 bits each: A is a share of 2,000 where it is made, and stays that beside B, J and K, shares of 3,000."""
    table = costed(tmp_path, WAITING, (storage("I, J, K, A, B, C", "Main"),), size="1000 * len(All)")
    assert table["peak|Main"] == pytest.approx(64 / 2000 + 3 * 64 / 3000, rel=1e-12)


def test_what_waits_under_a_loop_that_the_next_einsum_does_not_share_is_refused(tmp_path: Path) -> None:
    above = (storage("I, J, K, B, C", "Main"), loop("m", 2), storage("A", "Buffer"))
    reason = "B: A waits under more shared loops than anything that it hands on"
    assert refusals(costed(tmp_path, WAITING, above)) == [reason]
    shared = (storage("I, J, K, C", "Main"), loop("m", 2), storage("A", "Buffer"), storage("B", "Main"))
    assert refusals(costed(tmp_path, WAITING, shared)) == []


def test_a_shared_loop_runs_over_the_same_rank_of_what_is_handed_on(tmp_path: Path) -> None:
    """Each pass makes two rows of T and reads two columns."""
    above = (storage("I, S", "Main"), loop("m", 2), storage("T", "Buffer"))
    reason = "S: a shared loop above T runs over another rank of it here than where it was before"
    assert refusals(costed(tmp_path, TRANSPOSED, above)) == [reason]


@pytest.mark.parametrize(("tile", "joined"), [(2, True), (4, False)])
def test_shared_loops_with_equal_tiles_may_change_places(tile: int, joined: bool, tmp_path: Path) -> None:
    """AccelForge joins a square tile with its mirror image, which is another one."""
    above = (storage("I, S", "Main"), loop("m", 2), loop("n", tile), storage("T", "Buffer"))
    assert (refusals(costed(tmp_path, TRANSPOSED, above)) == []) == joined


def test_no_loop_changes_places_across_a_storage(tmp_path: Path) -> None:
    """With I between the loops the first Einsum keeps their order, with J the second."""
    einsums = (TRANSPOSED[0], "S[m, n] = T[M:n, N:m] * J[m, n]")
    for held, joined in (("I", True), ("J", True), ("I, J", False)):
        above = (
            storage("I, J, S", "Main"),
            loop("m", 2),
            storage(held, "Buffer"),
            loop("n", 2),
            storage("T", "Buffer"),
        )
        assert (refusals(costed(tmp_path, einsums, above)) == []) == joined


# ---- a GPU's mapping: a loop of one trip is none ---------------------------------------------------------------------
def test_where_the_loop_is_one_trip_nothing_waits_under_it() -> None:
    at = {t: Access(t, ("m",)) for t in "IJABC"}
    load = Workload(
        "waiting",
        {"m": 8},
        tuple(Tensor(t, ("m",), "fp16") for t in "IJABC"),
        (
            Einsum(at["A"], (at["I"],), "copy"),
            Einsum(at["B"], (at["J"],), "copy"),
            Einsum(at["C"], (at["A"], at["B"]), "mul_add"),
        ),
        inputs=("I", "J"),
        outputs=("C",),
    )
    view = View("all", tuple(ViewEinsum(e.output.tensor, (e.output.tensor,), e.output.tensor,
                                        tuple(a.tensor for a in e.inputs)) for e in load.einsums))  # fmt: skip
    leaves = tuple(
        (Temporal((Loop("m", 1),)), Compute((e.output.tensor,), unit))
        for e, unit in zip(load.einsums, ("simd", "simd", "mma"), strict=True)
    )
    head: Block = (Storage("HBM", ("I", "J", "B", "C")), Temporal((Loop("m", Key("bm")),)), Storage("L2", ("A",)))
    profiles = count((*head, Sequential(leaves)), load, view, gpu("h200").accelforge(), {"bm": np.array([2, 8])})
    assert {reason: where.tolist() for reason, where in why_not(profiles).items()} == {
        "B: A waits under more shared loops than anything that it hands on": [True, False]
    }
