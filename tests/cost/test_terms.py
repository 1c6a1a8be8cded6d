"""Terms read what they declare and nothing else, and all that they declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE
from theodolite.cost.ledger import Charge
from theodolite.cost.model import Model, charges, score
from theodolite.cost.profile import KERNEL_FIELDS, KernelProfile
from theodolite.cost.profiles import profile_of
from theodolite.cost.terms import term, terms
from theodolite.cost.terms.term import Term
from theodolite.errors import TheodoliteError, UnknownName
from theodolite.mapper.skeletons import mapping_of
from theodolite.workloads import workload

CAUSAL = workload("sdpa:b=1,h=3,l=300,s=300,d=64,causal")
NARROW = PIPELINE.replace("qk.bk=32", "qk.bk=8").replace("av.bm=64", "av.bm=16")
SPILLS = "flash:bm=128,bn=64,split=2,warps=1,stages=2"
CROWDED = "flash:bm=16,bn=64,split=64,warps=1,stages=2"  # many CTAs of one warp: shared memory decides how many fit
KERNELS = [
    kernel
    for load in (CASE_A, CAUSAL)
    for text in (FLASH, PIPELINE, NARROW, SPILLS, CROWDED)
    for kernel in profile_of(mapping_of(text, load, H200), load, H200, "executed").kernels
]
NUMBERS = sorted(f for f in KERNEL_FIELDS if f not in ("name", "first", "merge", "loads", "stores"))


class Proxy:
    """A kernel's profile that shows a term only what it declares."""

    def __init__(self, kernel: KernelProfile, declared: frozenset[str]) -> None:
        self._kernel, self._declared, self.read = kernel, declared, set[str]()

    def __getattr__(self, name: str) -> Any:
        assert name in self._declared, f"{name} is read and not declared"
        self.read.add(name)
        return getattr(self._kernel, name)


def other(kernel: KernelProfile, name: str) -> KernelProfile:
    """The profile with one field changed."""
    value = getattr(kernel, name)
    return replace(kernel, **{name: not value if isinstance(value, bool) else 7 * value + 3})


def same(a: Charge, b: Charge) -> bool:
    return (dict(a.work), dict(a.factors), a.serial_s) == (dict(b.work), dict(b.factors), b.serial_s)


def charge(name: str, kernel: Any) -> Charge:
    (only,) = charges(Model("", "executed", (term(name),)), kernel, H200)
    return only


@pytest.mark.parametrize("name", terms())
def test_a_term_gets_what_it_declares_and_nothing_else(name: str) -> None:
    for kernel in KERNELS:
        proxy = Proxy(kernel, term(name).fields)
        assert same(charge(name, proxy), charge(name, kernel))
        assert proxy.read == term(name).fields


@pytest.mark.parametrize("name", terms())
def test_an_undeclared_field_is_not_priced(name: str) -> None:
    for field in sorted({*NUMBERS, "first", "merge"} - term(name).fields):
        for kernel in KERNELS:
            assert same(charge(name, other(kernel, field)), charge(name, kernel)), field


@pytest.mark.parametrize("name", terms())
def test_a_declared_field_is_priced(name: str) -> None:
    for field in sorted(term(name).fields):
        assert any(not same(charge(name, other(k, field)), charge(name, k)) for k in KERNELS), field


def test_the_proxy_would_show_a_term_that_reads_more() -> None:
    with pytest.raises(AssertionError, match="flops is read"):
        Proxy(KERNELS[0], frozenset({"exp2"})).flops  # noqa: B018


def test_a_term_cannot_declare_what_no_profile_has() -> None:
    def price(gpu: Any, *, wishes: Any) -> Charge:
        return Charge({"HBM": wishes})

    with pytest.raises(TheodoliteError, match="wishes, which no profile has"):
        Term("odd", 99, price)
    with pytest.raises(UnknownName, match="unknown term 'odd': use one of traffic, compute, splitk"):
        term("odd")


def test_each_term_s_charge_by_hand() -> None:
    """One kernel of round numbers: 264 CTAs of 8 warps on 132 SMs, 30 registers too many, half the FLOPs on mma."""
    kernel = replace(
        KERNELS[0], name="k", first=False, merge=False, programs=264, warps=8, trips=528, trips_longest=4,
        loaded_bytes=1000, stored_bytes=100, distinct_bytes=10, partial_bytes=40, partial_distinct_bytes=20,
        flops=2000, flops_mma=1000, contraction_fp32=7, exp2=5, fp32=9, smem_bytes=1024, registers=285,
    )  # fmt: skip
    assert charge("traffic", kernel).work == {"L2": 1100, "HBM": 10}
    assert charge("compute", kernel).work == {"MMA": 2000}
    assert charge("splitk", kernel).work == {"L2": 40, "HBM": 20}
    assert charge("softmax", kernel).work == {"MUFU": 5, "FP32": 9}
    assert charge("launch", kernel).serial_s == 0.94e-6
    assert charge("launch", replace(kernel, first=True)).serial_s == 4.2e-6
    merge = replace(kernel, merge=True)
    assert charge("launch", merge).serial_s == 0
    assert charge("splitk", merge).serial_s == 0.94e-6
    assert charge("splitk", merge).work == {"L2": 40, "HBM": 20, "MUFU": 5, "FP32": 9}
    assert charge("softmax", merge).work == {}
    # 255 registers a thread, 256 threads: one CTA an SM, so two rounds; mma runs at 0.62
    fragmentation = charge("fragmentation", kernel)
    assert fragmentation.work == {"dispatch": 264, "FP32": 7}
    assert fragmentation.serial_s == pytest.approx(2 * 830 / 1.755e9)
    assert fragmentation.factors["MMA"] == pytest.approx(0.5 + 0.5 / 0.62)
    # two trips a CTA on the mean, four at most: the busiest SM runs 4 trips and 2 more, where 4 would be even
    waves = charge("waves", kernel)
    assert dict(waves.factors) == dict.fromkeys(("MMA", "MUFU", "FP32"), 1.5)
    assert waves.work == {"SMEM": 2 * 30 * 4 * 32 * 8 * 528}


def test_factors_multiply_and_work_adds() -> None:
    """Fragmentation and waves both slow the tensor cores: one kernel's seconds by hand."""
    kernel = replace(KERNELS[0], flops=1 << 40, flops_mma=1 << 40, programs=100, registers=32, smem_bytes=0)
    told = profile_of(mapping_of(FLASH, CASE_A, H200), CASE_A, H200, "executed")
    some = Model("", "executed", tuple(term(n) for n in ("compute", "fragmentation", "waves")))
    (seconds,) = score(some, replace(told, kernels=(kernel,)), H200).steps_s
    rate = 132 * 1.755e9 * 4096
    uneven = 1 + 132 * max(kernel.trips_longest - kernel.trips / 100, 0) / kernel.trips
    waves = max(132 / 100, uneven)
    assert float(np.asarray(seconds)) == pytest.approx((1 << 40) / rate / 0.62 * waves + 830 / 1.755e9, rel=1e-12)
