from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from theodolite import gpus
from theodolite.errors import Infeasible, TheodoliteError, UnknownName
from theodolite.gpus import gpu, known
from theodolite.gpus.gpu import Gpu
from theodolite.records import dump, load

# EXAMPLE section 5 of the design: the worked numbers stand on these
WORKED = {
    "hbm_bytes_per_s": 4.0e12,
    "l2_bytes_per_s": 10e12,
    "sms": 132,
    "clock_hz": 1.755e9,
    "wgmma_flop_per_clk_sm": 4096,
    "mufu_per_clk_sm": 16,
    "fp32_lanes_per_clk_sm": 128,
    "dispatch_s_per_cta": 0.60e-9,
    "prologue_clk": 570,
    "epilogue_clk": 260,
    "first_launch_s": 4.2e-6,
    "further_launch_s": 0.94e-6,
}


def test_the_h200_has_the_worked_constants() -> None:
    constants = gpu("h200").constants()
    assert {k: constants[k] for k in WORKED} == WORKED


def test_the_h200_rates_of_the_worked_example() -> None:
    h200 = gpu("h200")
    assert h200.sms * h200.clock_hz * h200.wgmma_flop_per_clk_sm == pytest.approx(9.489e14, rel=1e-4)
    assert h200.sms * h200.clock_hz * h200.mufu_per_clk_sm == pytest.approx(3.707e12, rel=1e-3)
    assert (h200.prologue_clk + h200.epilogue_clk) / h200.clock_hz == pytest.approx(0.4729e-6, rel=1e-3)
    assert (h200.smem_bytes_per_sm, h200.smem_bytes_per_cta) == (233_472, 232_448)


def test_the_rtx4090_counts_flop_and_not_mac() -> None:
    """165.2 TFLOP/s with fp32 accumulation, published; twice the multiply-accumulates."""
    card = gpu("rtx4090")
    assert card.sms * card.clock_hz * card.tensor_flop_per_clk_sm == pytest.approx(165.2e12, rel=1e-3)
    assert card.accelforge().compute("mma").ops_per_s * card.sms == pytest.approx(82.6e12, rel=1e-3)
    assert card.smem_bytes_per_cta == 101_376


@pytest.mark.parametrize("name", sorted(known()))
def test_every_number_has_a_source_and_survives_json(name: str) -> None:
    record = gpu(name)
    assert set(record.sources) == set(record.constants())
    assert all(isinstance(v, float) for v in record.constants().values())
    again = load(Gpu, dump(record), name)
    assert again == record
    assert hash(again) == hash(record)


def test_no_number_has_a_default() -> None:
    with pytest.raises(TypeError):
        Gpu("new", ("cuda", 90, 32))  # type: ignore[call-arg]
    assert not [f.name for f in fields(Gpu) if f.default is not f.default_factory]  # both are MISSING


def test_the_hierarchy_of_the_worked_example() -> None:
    hierarchy = gpu("h200").accelforge()
    assert [m.name for m in hierarchy.memories] == ["MainMemory", "L2", "SharedMemory"]
    assert [m.read_bits_per_s / 8 for m in hierarchy.memories] == [4.0e12, 10e12, pytest.approx(224.64e9)]
    assert hierarchy.memory("SharedMemory").fanout == ("SM", 132)
    assert hierarchy.memory("SharedMemory").size_bits == 8 * 233_472
    assert hierarchy.compute("mma").ops_per_s == pytest.approx(3.594e12, rel=1e-3)
    assert hierarchy.compute("simd").ops_per_s == 1e15
    assert hierarchy.holding("RF") == hierarchy.holding("SMEM")


@pytest.mark.parametrize("call", [lambda h: h.owner("warp"), lambda h: h.memory("Register")])
def test_what_the_hierarchy_lacks_raises(call: Any) -> None:
    with pytest.raises(Infeasible):
        call(gpu("h200").accelforge())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"smem_bytes_per_cta": 300_000}, "smem_bytes_per_cta 300000 is over smem_bytes_per_sm 233472"),
        ({"sms": 0}, "sms is 0.0: it must be positive"),
        ({"clock_hz": float("nan")}, "clock_hz is nan and not a finite number"),
        ({"sms": True}, "sms is True and not a finite number"),
        ({"hbm_bytes_per_s": 5e12}, "hbm_bytes_per_s 5e+12 is over peak_hbm_bytes_per_s 4.8e+12"),
        ({"wgmma_flop_per_clk_sm": -1.0}, "wgmma_flop_per_clk_sm is -1.0: it must not be negative"),
        ({"wgmma_flop_per_clk_sm": 8192}, "the tensor rate at clock_hz is over peak_flop_per_s"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TheodoliteError) as error:
        replace(gpu("h200"), **change)
    assert str(error.value) == f"gpu h200: {said}"


def test_a_number_without_a_source_and_a_source_without_a_number_are_refused() -> None:
    sources = dict(gpu("h200").sources)
    with pytest.raises(TheodoliteError, match="mufu_per_clk_sm names no source"):
        replace(gpu("h200"), sources={**sources, "mufu_per_clk_sm": " "})
    with pytest.raises(TheodoliteError, match="'tensor_cores', which is no number"):
        replace(gpu("h200"), sources={**sources, "tensor_cores": "a guess"})


def test_an_unknown_gpu_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="unknown gpu 'b200': use one of h200, rtx4090"):
        gpu("b200")


def test_a_new_gpu_is_one_new_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "from dataclasses import replace\nfrom theodolite.gpus.h200 import GPU as _H\nGPU = replace(_H, name={!r})\n"
    (tmp_path / "newcomer.py").write_text(body.format("newcomer"))
    monkeypatch.setattr(gpus, "__path__", [*gpus.__path__, str(tmp_path)])
    known.cache_clear()
    try:
        assert gpu("newcomer").sms == 132
        (tmp_path / "twin.py").write_text(body.format("h200"))
        known.cache_clear()
        with pytest.raises(TheodoliteError, match="two GPUs are called 'h200'"):
            gpu("h200")
    finally:
        monkeypatch.undo()
        known.cache_clear()
