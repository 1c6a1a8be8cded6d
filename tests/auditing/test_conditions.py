"""Who else used the GPU, and what a reader is told of how the samples were taken."""

from __future__ import annotations

from typing import Any

import pytest

from theodolite.auditing.bench.harness import environment
from theodolite.auditing.conditions import SHARED, conditions, disqualified

ORDINARY: dict[str, Any] = {
    "l2": "cold",
    "exclusive": True,
    "dry_samples": 0,
    "during": {"throttle_reasons": ["0x0", "0x1"]},
}


def test_the_default_protocol_has_nothing_to_tell() -> None:
    assert conditions(ORDINARY) == ()
    assert conditions({}) == (), "recordings from before there was anything to ask for"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"l2": "warm"}, "warm L2"),
        ({"exclusive": False}, SHARED),
        ({"exclusive": None}, "nothing said"),
        ({"during": {"throttle_reasons": ["0x0", "0x4"]}}, "0x4"),
        ({"dry_samples": 3}, "3 samples"),
    ],
)
def test_whatever_is_out_of_the_ordinary_is_said(change: dict[str, Any], said: str) -> None:
    (phrase,) = conditions(ORDINARY | change)
    assert said in phrase


def test_only_company_on_the_gpu_makes_samples_worth_nothing() -> None:
    assert disqualified(ORDINARY | {"exclusive": False}) == SHARED
    assert disqualified(ORDINARY | {"exclusive": None, "l2": "warm"}) is None


@pytest.mark.parametrize(
    ("processes", "expected"),
    [((0, 1, 0), True), ((0, 2, 0), False), ((1, 1, 0), False), ((0, "unknown", 0), None), (("unknown", 2, 0), False)],
)
def test_company_is_whoever_is_not_this_run(
    monkeypatch: pytest.MonkeyPatch, processes: tuple[int | str, ...], expected: bool | None
) -> None:
    looks = []
    for number, own in zip(processes, (0, 1, 0), strict=True):
        monkeypatch.setattr(environment, "_nvml", lambda name, number=number: {"processes": number})
        looks.append(environment.reading(own=own))
    assert environment.exclusive(looks) is expected


def test_a_gpu_in_use_is_waited_for_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 1, 0])
    monkeypatch.setattr(environment, "_nvml", lambda name: {"processes": next(counts)})
    monkeypatch.setattr(environment.time, "sleep", lambda s: None)
    assert environment.wait_for_others(0, 60.0) == 0
    monkeypatch.setattr(environment, "_nvml", lambda name: {"processes": 2})
    assert environment.wait_for_others(0, 0.0) == 2
