"""The interpreter's values are attention's, for any schedule and shape; and wrong trees and steps give wrong values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests.ir.drawn import realised, schedules, workloads
from theodolite.errors import Unsupported
from theodolite.ir import interp
from theodolite.ir.interp import values
from theodolite.ir.steps import Clear, Contract, Exp, Finish, For, KernelSteps, Load, Max, MergeState, Step, Sum
from theodolite.ir.text import parse, show
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import Schedule, parse_schedule
from theodolite.workloads import entry, sdpa

HALF_ULP = 2.0**-11  # of fp16, relative
LEAST_FP16 = 2.0**-25  # half of the smallest subnormal


def attention(load: Workload, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """O[b,h,l,f], one query at a time, written from the definition and from nothing of the package."""
    q, k, v = (arrays[t].astype(np.float64) for t in "QKV")
    rows, keys = q.shape[2], k.shape[2]
    out = np.empty((*q.shape[:3], v.shape[3]))
    for at in np.ndindex(q.shape[:3]):
        seen = min(keys, at[2] + keys - rows + 1) if "causal" in load.name else keys
        scores = k[at[:2]][:seen] @ q[at] / np.sqrt(q.shape[3])
        weights = np.exp(scores - scores.max())
        out[at] = weights @ v[at[:2]][:seen] / weights.sum()
    return out


@given(schedules(), workloads())
def test_values_are_attention(chosen: Schedule, load: Workload) -> None:
    arrays = entry("sdpa").inputs(load, 0)
    got = values(realised(chosen, load), load, arrays, rounding=False)
    np.testing.assert_allclose(got["O"], attention(load, arrays), rtol=1e-12, atol=1e-12)


@settings(max_examples=25)
@given(schedules(), workloads())
def test_rounded_values_are_attention_within_fp16(chosen: Schedule, load: Workload) -> None:
    """A score is off by half an ulp at most, its weight by twice that (numerator and sum) and by its own rounding."""
    arrays = entry("sdpa").inputs(load, 0)
    got = values(realised(chosen, load), load, arrays)["O"]
    q, k, v = (arrays[t].astype(np.float64) for t in "QKV")
    largest = np.abs(q @ np.swapaxes(k, -1, -2)).max() / np.sqrt(q.shape[3])
    relative = 2.2 * HALF_ULP * largest + 3 * HALF_ULP
    allowed = np.abs(v).max() * (relative + load.ranks["s"] * LEAST_FP16)
    assert np.abs(got - attention(load, arrays)).max() <= allowed
    np.testing.assert_array_equal(got, got.astype(np.float16))


@pytest.mark.parametrize("name", ["sdpa:b=1,h=1,l=5,s=3,d=4", "sdpa:b=2,h=1,l=3,s=9,d=4,causal"])
def test_empty_slices_and_slices_beyond_the_diagonal(name: str) -> None:
    """More slices than keys: the last hold none, and under the mask the first rows see nothing of the later ones."""
    load = entry("sdpa").parse(name.removeprefix("sdpa:"))
    arrays = entry("sdpa").inputs(load, 0)
    tree = realised(parse_schedule("flash:bm=16,bn=16,split=12,warps=4,stages=2"), load)
    got = values(tree, load, arrays, rounding=False)
    np.testing.assert_allclose(got["O"], attention(load, arrays), rtol=1e-12, atol=1e-12)
    empty = got["M_p"][-1]
    assert np.isneginf(empty).all()
    assert not got["D_p"][-1].any()
    assert not got["A_p"][-1].any()


# ---- the oracle can refute ---------------------------------------------------------------------------------------
LOAD = sdpa(b=2, h=2, l=33, s=70, d=20, causal=True)
# several trips in each slice, ragged ones at the end
SMALL = {
    "flash": "flash:bm=16,bn=16,split=2,warps=4,stages=2",
    "pipeline": "pipeline:qk.bm=16,qk.bn=16,qk.bk=4,qk.split=2,sm.rows=4,av.bm=16,av.bs=8,av.split=2,warps=4,stages=2",
}
TREES = {name: realised(parse_schedule(text), LOAD) for name, text in SMALL.items()}
ARRAYS = entry("sdpa").inputs(LOAD, 0)


def wrong(got: np.ndarray) -> bool:
    error = np.abs(got - attention(LOAD, ARRAYS))
    return bool(np.isnan(error).any() or error.max() > 1e-3)


@pytest.mark.parametrize("family", TREES)
def test_the_programs_that_the_wrong_ones_vary_are_right(family: str) -> None:
    assert not wrong(values(TREES[family], LOAD, ARRAYS, rounding=False)["O"])


def test_kernels_in_another_order_read_what_nobody_wrote() -> None:
    tree = realised(parse_schedule(SMALL["pipeline"].replace("split=2", "split=1")), LOAD)
    assert not wrong(values(tree, LOAD, ARRAYS, rounding=False)["O"])
    *rest, qk, softmax, av = tree.body
    memory = values(replace(tree, body=(*rest, qk, softmax, av)), LOAD, ARRAYS, rounding=False)
    with pytest.raises(KeyError, match="S_w"):
        values(replace(tree, body=(*rest, softmax, qk, av)), LOAD, ARRAYS, rounding=False)
    assert np.isfinite(memory["P_w"]).all()


def test_a_missing_kernel_leaves_poison() -> None:
    for family, tree in TREES.items():
        got = values(replace(tree, body=tree.body[:-1]), LOAD, ARRAYS, rounding=False)
        assert "O" not in got or np.isnan(got["O"]).all(), family


def test_a_tree_that_merges_too_few_slices_is_wrong() -> None:
    text = show(TREES["flash"])
    parts = [text.replace(f"_p fp32 [2,{r}]", f"_p fp32 [1,{r}]") for r in ("b,h,l,f", "b,h,l")]
    for changed in parts:
        assert changed != text
    one = parse(parts[1].replace("_p fp32 [2,b,h,l,f]", "_p fp32 [1,b,h,l,f]"))
    with pytest.raises(IndexError):  # the second slice has nowhere to go
        values(one, LOAD, ARRAYS, rounding=False)


def changed(step: Step, rule: Callable[[Step], list[Step]]) -> list[Step]:
    """The step after a rule, loops entered first."""
    if isinstance(step, For):
        step = replace(step, body=tuple(s for inner in step.body for s in changed(inner, rule)))
    return rule(step)


def planted(tree: Tree, rule: Callable[[Step], list[Step]], monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """O where every kernel's steps went through a rule; at least one step has to change."""
    right = interp.kernel_steps(tree, LOAD)
    bad = tuple(replace(k, steps=tuple(s for step in k.steps for s in changed(step, rule))) for k in right)
    assert [k.steps for k in bad] != [k.steps for k in right], "nothing was planted"

    def steps(*_: object) -> tuple[KernelSteps, ...]:
        return bad

    monkeypatch.setattr(interp, "kernel_steps", steps)
    return values(tree, LOAD, ARRAYS, rounding=False)["O"]


def where(kind: type, **changes: object) -> Callable[[Step], list[Step]]:
    """A rule that changes fields of one kind of step."""
    known = {f.name for f in fields(kind)}
    assert set(changes) <= known
    return lambda step: [replace(step, **changes)] if isinstance(step, kind) else [step]  # type: ignore[type-var]


def without(kind: type) -> Callable[[Step], list[Step]]:
    return lambda step: [] if isinstance(step, kind) else [step]


def mask_moved(step: Step) -> list[Step]:
    return (
        [replace(step, mask=(*step.mask[:2], step.mask[2] + 1))] if isinstance(step, Finish) and step.mask else [step]
    )


def stop_moved(step: Step) -> list[Step]:
    if isinstance(step, For) and step.stop:
        return [replace(step, stop=(*step.stop[:2], step.stop[2] - 32))]
    return [step]


def every_key_twice(step: Step) -> list[Step]:
    """The state (M, D, A) cannot tell, since D and A double alike; a plain sum can."""
    return [step, step] if isinstance(step, For) and step.loop.rank == "s" else [step]


def maximum_forgotten(step: Step) -> list[Step]:
    return [Clear("M", ("b", "h", "l"), float("-inf")), step] if isinstance(step, Max) else [step]


def values_for_keys(step: Step) -> list[Step]:
    return (
        [replace(step, home=replace(step.home, buffer="V"))] if isinstance(step, Load) and step.value == "K" else [step]
    )


WRONG_STEPS = {
    "flash: scale and mask left out": ("flash", without(Finish)),
    "flash: another scale": ("flash", where(Finish, scale=0.5)),
    "flash: no mask": ("flash", where(Finish, mask=None)),
    "flash: lanes past the end seen": ("flash", where(Finish, limit=None, mask=None)),
    "flash: the mask one key off": ("flash", mask_moved),
    "flash: the loop ends too early": ("flash", stop_moved),
    "flash: the sum is not rescaled": ("flash", where(Sum, carried=False)),
    "flash: the product is not rescaled": ("flash", where(Contract, rescale=False)),
    "flash: exponentials without their factor": ("flash", where(Exp, log2e=True)),
    "flash: the state starts at one": ("flash", where(Clear, fill=1.0)),
    "flash: merged without the sum": ("flash", where(MergeState, sums=())),
    "flash: merged without the product": ("flash", where(MergeState, products=())),
    "flash: the maximum is forgotten": ("flash", maximum_forgotten),
    "flash: values read as keys": ("flash", values_for_keys),
    "pipeline: no mask": ("pipeline", where(Finish, mask=None)),
    "pipeline: the mask one key off": ("pipeline", mask_moved),
    "pipeline: exponentials without their factor": ("pipeline", where(Exp, log2e=False)),
    "pipeline: every key twice": ("pipeline", every_key_twice),
    "pipeline: values read as keys": ("pipeline", values_for_keys),
    "pipeline: the last tile alone": ("pipeline", where(Contract, accumulate=False)),
}


@pytest.mark.parametrize("what", WRONG_STEPS)
def test_a_wrong_step_gives_wrong_values(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, rule = WRONG_STEPS[what]
    load = TREES[family]
    assert wrong(planted(load, rule, monkeypatch))


def test_the_state_cannot_tell_a_key_seen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of this oracle, which the counts of events make up for."""
    assert not wrong(planted(TREES["flash"], every_key_twice, monkeypatch))


@dataclass(frozen=True)
class Teleport:
    """A step that nobody knows."""


def test_an_unknown_step_is_not_passed_over() -> None:
    kernel, *_ = interp.kernel_steps(TREES["flash"], LOAD)
    odd = replace(kernel, steps=(*kernel.steps, Teleport()))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="no meaning for the step Teleport"):
        interp.events(odd, LOAD, TREES["flash"].decisions, np.arange(2))
