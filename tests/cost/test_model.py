"""What the models say: the worked example to the digit, the floor law, and what is feasible."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, schedules, workloads
from theodolite.cost.ledger import RESOURCES, rates
from theodolite.cost.model import Model, baseline, charges, corrected, evaluate, floor_s, model, score
from theodolite.cost.profile import KernelProfile, Profile
from theodolite.cost.profiles import profile_of
from theodolite.cost.terms import term, terms
from theodolite.errors import UnknownName
from theodolite.gpus import gpu
from theodolite.ir.text import parse, show
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import Schedule
from theodolite.mapper.skeletons import mapping, mapping_of
from theodolite.workloads import workload

ORDER = ("traffic", "compute", "splitk", "fragmentation", "softmax", "launch", "waves")
OPTIONAL = ORDER[2:]


def profile(text: str) -> Profile:
    return profile_of(mapping_of(text, CASE_A, H200), CASE_A, H200)


def us(seconds: Any) -> float:
    return round(float(seconds) * 1e6, 4)


# ---- the worked example ------------------------------------------------------------------------------------------
# kernel: HBM B, L2 B, MMA FLOP, MUFU, FP32, CTAs, waves factor, serial us, kernel us
SECTION_5 = {
    "flash": (933_888, 1_327_104, 33_554_432, 135_168, 802_816, 32, 4.125, 4.6729, 4.9064),
    "flash_merge": (671_744, 671_744, 0, 4_096, 471_040, 64, 2.0625, 1.4129, 1.5809),
    "qk": (1_310_720, 1_835_008, 16_777_216, 0, 0, 128, 1.03125, 4.6729, 5.0006),
    "qk_merge": (1_310_720, 1_310_720, 0, 0, 393_216, 128, 1.03125, 1.4129, 1.7406),
    "softmax": (524_288, 524_288, 0, 131_072, 655_360, 256, 1.03125, 1.4129, 1.5665),
    "av": (917_504, 1_048_576, 16_777_216, 0, 0, 32, 4.125, 1.4129, 1.6423),
    "av_merge": (655_360, 655_360, 0, 0, 131_072, 64, 2.0625, 1.4129, 1.5768),
}


@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_the_worked_example_s_ledger(text: str) -> None:
    told = profile(text)
    seconds = score(corrected(), told, H200).steps_s
    for kernel, took in zip(told.kernels, seconds, strict=True):
        listed = charges(corrected(), kernel, H200)
        work = {r: sum(c.work.get(r, 0) for c in listed) for r in RESOURCES}
        factor = {r: np.prod([c.factors.get(r, 1.0) for c in listed]) for r in ("MMA", "MUFU", "FP32")}
        row = tuple(work[r] for r in ("HBM", "L2", "MMA", "MUFU", "FP32", "dispatch"))
        assert row == SECTION_5[kernel.name][:6], kernel.name
        assert set(factor.values()) == {SECTION_5[kernel.name][6]}
        assert work["SMEM"] == 0  # nothing spills
        assert us(sum(c.serial_s for c in listed)) == SECTION_5[kernel.name][7]
        assert us(took) == SECTION_5[kernel.name][8]


def test_the_worked_example_s_seconds_exactly() -> None:
    machine = gpu("h200")
    said = {t: evaluate(mapping_of(t, CASE_A, machine), CASE_A, machine).seconds for t in (FLASH, PIPELINE)}
    assert said == {FLASH: 6.487276945868945e-06, PIPELINE: 1.1526848364672364e-05}


def test_the_worked_example_term_by_term() -> None:
    told = {
        FLASH: (0.1311, 1.3414, 2.2873, 2.2873, 6.4873, 6.4873),
        PIPELINE: (0.4063, 3.0596, 5.4468, 5.4468, 11.5268, 11.5268),
    }
    for text, expected in told.items():
        cost = evaluate(mapping_of(text, CASE_A, H200), CASE_A, H200)
        assert tuple(cost.terms) == ORDER
        sums = list(itertools.accumulate(cost.terms.values()))
        assert tuple(us(s) for s in sums[1:]) == expected
        for at in range(2, len(ORDER) + 1):  # and the same by models of those terms alone
            some = model(",".join(ORDER[:at]))
            assert us(evaluate(mapping_of(text, CASE_A, H200), CASE_A, H200, some).seconds) == expected[at - 2]


def test_the_worked_example_in_accelforge_s_view() -> None:
    tree = mapping_of(PIPELINE, CASE_A, H200)
    cost = evaluate(tree, CASE_A, H200, baseline())
    assert cost.seconds == pytest.approx(1.19008728e-05, rel=1e-8)
    steps = score(baseline(), profile(PIPELINE), H200).steps_s
    assert [round(float(s) * 1e6, 5) for s in steps] == [2.36125, 0.13107, 9.40855]
    l2 = parse(show(tree).replace("HBM Q K V O S P", "HBM Q K V O\nL2 S P"))
    assert round(evaluate(l2, CASE_A, H200, baseline()).seconds * 1e6, 5) == 11.82223  # type: ignore[operator]
    flash = evaluate(mapping_of(FLASH, CASE_A, H200), CASE_A, H200, baseline())
    assert (flash.seconds, flash.feasible, flash.expressible) == (None, False, False)
    assert flash.why_not == "interleaved over s: no counterpart in AccelForge"


def test_a_pair_that_the_models_order_differently() -> None:
    four = PIPELINE.replace("av.split=2", "av.split=4")
    said = {
        (m.name, t): us(evaluate(mapping_of(t, CASE_A, H200), CASE_A, H200, m).seconds)
        for m in (baseline(), corrected())
        for t in (PIPELINE, four)
    }
    assert (said["BASELINE", PIPELINE], said["BASELINE", four]) == (11.9009, 7.1966)
    assert (said["CORRECTED", PIPELINE], said["CORRECTED", four]) == (11.5268, 11.789)


def test_the_worked_example_s_floors() -> None:
    told = profile(FLASH)
    floors = {n: us(t.floor(H200, told.floor)) for n, t in terms().items() if t.floor}
    assert floors == {"traffic": 0.1311, "compute": 0.0354, "softmax": 0.0354, "launch": 4.2}
    assert (told.floor.hbm_bytes, told.floor.mma_flops, told.floor.mufu_exp2) == (524_288, 33_554_432, 131_072)
    assert floor_s(corrected(), told, H200) == 4.2e-6
    assert told.workspace_bytes == 540_672
    assert profile(PIPELINE).workspace_bytes == 2_097_152


def test_compulsory_work_counts_the_domain_s_points() -> None:
    """Under the mask 1 + 2 + 3 scores of three queries over three keys; two keys more are seen by everybody."""
    for text, scores in (("sdpa:b=1,h=2,l=3,s=3,d=4,causal", 6), ("sdpa:b=1,h=2,l=3,s=5,d=4,causal", 12)):
        load = workload(text)
        floor = profile_of(mapping_of(FLASH, load, H200), load, H200, "executed").floor
        assert floor.mufu_exp2 == 2 * scores
        assert floor.mma_flops == 2 * scores * 2 * (4 + 4)


# ---- the floor law -----------------------------------------------------------------------------------------------
SUBSETS = [c for n in range(len(OPTIONAL) + 1) for c in itertools.combinations(OPTIONAL, n)]


@settings(max_examples=40)
@given(schedules(), workloads(longest=300, widest=130), st.sampled_from(["h200", "rtx4090"]))
def test_no_subset_of_terms_goes_below_its_floor(chosen: Schedule, load: Workload, name: str) -> None:
    machine = gpu(name)
    told = profile_of(mapping(chosen, load, machine), load, machine, "executed")
    assert len(SUBSETS) == 32
    for names in SUBSETS:
        some = Model("", "executed", tuple(term(n) for n in ORDER if n in (*ORDER[:2], *names)))
        # a sum over kernels rounds: the floor to four units in the last place
        assert float(score(some, told, machine).seconds) >= floor_s(some, told, machine) * (1 - 2**-50), names


@settings(max_examples=25)
@given(schedules(), workloads(longest=300, widest=130), st.permutations(OPTIONAL))
def test_a_further_term_never_makes_it_faster(chosen: Schedule, load: Workload, order: tuple[str, ...]) -> None:
    told = profile_of(mapping(chosen, load, H200), load, H200, "executed")
    before = 0.0
    for at in range(len(order) + 1):
        some = Model("", "executed", tuple(term(n) for n in (*ORDER[:2], *order[:at])))
        now = float(score(some, told, H200).seconds)
        assert now >= before * (1 - 1e-15)
        before = now


def test_rates_are_the_whole_gpu_s() -> None:
    assert rates(H200)["MMA"] == 132 * 1.755e9 * 4096
    assert rates(H200)["dispatch"] == 1 / 0.60e-9


# ---- feasible or not ---------------------------------------------------------------------------------------------
@given(schedules(), workloads(longest=600, widest=256), st.sampled_from(["baseline", "corrected", "splitk", "launch"]))
def test_feasible_has_seconds_that_add_up_and_infeasible_a_reason(chosen: Schedule, load: Workload, name: str) -> None:
    some = model(name)
    cost = evaluate(mapping(chosen, load, H200), load, H200, some)
    assert cost.feasible == (cost.seconds is not None) == (cost.why_not is None)
    if cost.seconds is not None:
        assert cost.seconds > 0
        assert sum(cost.terms.values()) == pytest.approx(cost.seconds, rel=1e-12)
        assert tuple(cost.terms) == some.term_names
    else:
        assert cost.why_not
        assert cost.terms == {}


@pytest.mark.parametrize(
    ("load", "text", "reason"),
    [
        ("sdpa:C", "flash:bm=256,bn=256,split=1,warps=8,stages=5", "more than 232,448 bytes of shared memory a CTA"),
        ("sdpa:C", "flash:bm=256,bn=256,split=1,warps=1,stages=1", "registers a thread"),
        (
            "sdpa:b=1,h=1,l=16,s=9000,d=16",
            PIPELINE.replace("sm.rows=4", "sm.rows=256"),
            "a tile of more than 2^20 elements",
        ),
        ("sdpa:b=8,h=64,l=20000,s=20000,d=64", PIPELINE, "do not fit the GPU's 141 GB"),
        ("sdpa:b=64,h=128,l=300000,s=16,d=16", PIPELINE.replace("sm.rows=4", "sm.rows=1"), "2^31-1 CTAs"),
    ],
)
def test_what_does_not_fit_says_so(load: str, text: str, reason: str) -> None:
    what = workload(load)
    cost = evaluate(mapping_of(text, what, H200), what, H200)
    assert not cost.feasible
    assert cost.expressible
    assert reason in str(cost.why_not)


def test_a_tile_that_does_not_divide_is_no_mapping_of_baseline_s() -> None:
    load = workload("sdpa:b=1,h=8,l=100,s=128,d=64")
    cost = evaluate(mapping_of(PIPELINE, load, H200), load, H200, baseline())
    assert not cost.feasible
    assert "100" in str(cost.why_not)
    assert evaluate(mapping_of(PIPELINE, load, H200), load, H200).feasible


def test_an_unknown_term_raises() -> None:
    for text in ("nothing", "splitk,nothing", ""):
        with pytest.raises(UnknownName, match="unknown term"):
            model(text)


def test_terms_come_in_their_order_and_the_usual_ones_always() -> None:
    assert model("waves,splitk").term_names == ("traffic", "compute", "splitk", "waves")
    assert model("CORRECTED").term_names == ORDER
    assert model("splitk").fields < corrected().fields <= set(KernelProfile.__dataclass_fields__)
