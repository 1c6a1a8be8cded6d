"""Closed-form counts are the interpreter's, summed over programs; arrays count as numbers do, one by one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.drawn import CASE_A, FLASH, H200, PIPELINE, realised, schedules, workloads
from theodolite.cost import executed as module
from theodolite.cost.executed import executed
from theodolite.cost.profile import KernelProfile
from theodolite.errors import Unsupported
from theodolite.ir import interp
from theodolite.ir.realise import realise_skeleton
from theodolite.ir.scope import grid_counts
from theodolite.ir.steps import KernelSteps, kernel_steps
from theodolite.ir.tree import Tree
from theodolite.ir.workload import DTYPE_BYTES, Workload
from theodolite.mapper.shorthand import FAMILIES, Schedule, parse_schedule, schedule
from theodolite.mapper.skeletons import mapping, skeleton


def counted(tree: Tree, load: Workload) -> list[dict[str, Any]]:
    """What the interpreter sees each kernel do, summed over all its programs."""
    return [_counted(k, tree, load) for k in kernel_steps(tree, load)]


def _counted(kernel: KernelSteps, tree: Tree, load: Workload) -> dict[str, Any]:
    programs = int(np.prod(grid_counts(kernel, load, tree.decisions), dtype=np.int64))
    seen = interp.events(kernel, load, tree.decisions, np.arange(programs))
    homes = {h.buffer: h for h in kernel.homes}
    size = {b: DTYPE_BYTES[h.dtype] for b, h in homes.items()}
    partial = {b for b, h in homes.items() if h.over is not None}
    moved = {kind: seen.elements(kind) for kind in ("load", "store")}
    touched = {
        (kind, b): len(
            np.unique(
                np.concatenate(
                    [a.offsets(p) for a in seen.accesses if (a.kind, a.buffer) == (kind, b) for p in range(programs)]
                )
            )
        )
        for kind, buffers in moved.items()
        for b in buffers
    }
    warps = kernel.warps if isinstance(kernel.warps, int) else tree.decisions[kernel.warps.name]
    flops = {s: 2 * s[0] * s[1] * s[2] * int(n.sum()) for s, n in seen.dots.items()}
    return {
        "programs": programs,
        "trips": int(seen.trips.sum()),
        "trips_longest": int(seen.trips.max()),
        "loads": moved["load"],
        "stores": moved["store"],
        "loaded_bytes": sum(n * size[b] for b, n in moved["load"].items() if b not in partial),
        "stored_bytes": sum(n * size[b] for b, n in moved["store"].items() if b not in partial),
        "partial_bytes": sum(n * size[b] for kind in moved.values() for b, n in kind.items() if b in partial),
        "distinct_bytes": sum(n * size[b] for (_, b), n in touched.items() if b not in partial),
        "partial_distinct_bytes": sum(n * size[b] for (_, b), n in touched.items() if b in partial),
        "flops_dot": sum(flops.values()),
        "flops_wgmma": sum(n for s, n in flops.items() if s[0] >= 64 and warps % 4 == 0),
        "exp2": int(seen.exp2.sum()),
        "fp32": int(seen.fp32.sum()),
        "reductions": int(seen.reductions.sum()),
    }


def closed(profile: KernelProfile) -> dict[str, Any]:
    """The same quantities from a profile."""
    same = ("programs", "trips", "trips_longest", "loads", "stores", "loaded_bytes", "stored_bytes", "partial_bytes")
    same += ("distinct_bytes", "partial_distinct_bytes", "flops_wgmma", "exp2", "reductions")
    out = {name: getattr(profile, name) for name in same}
    out["flops_dot"] = profile.flops_wgmma + profile.flops_mma
    out["fp32"] = profile.fp32 + profile.contraction_fp32
    return out


@given(schedules(), workloads())
def test_closed_forms_are_the_interpreter_s_counts(chosen: Schedule, load: Workload) -> None:
    tree = realised(chosen, load)
    for kernel, seen in zip(executed(tree, load), counted(tree, load), strict=True):
        assert closed(kernel) == seen, kernel.name


@given(schedules(), workloads())
def test_flops_include_contractions_off_the_tensor_cores(chosen: Schedule, load: Workload) -> None:
    """2 m n k a contraction, whatever it runs on: padded tiles of all trips."""
    r, v = load.ranks, chosen.values
    kernels = {k.name: k for k in executed(realised(chosen, load), load)}
    if chosen.family == "pipeline":
        qk = kernels["qk"]
        assert qk.flops == 2 * v["qk.bm"] * v["qk.bn"] * v["qk.bk"] * qk.trips
        assert (qk.flops == qk.flops_wgmma + qk.flops_mma) == (v["qk.bk"] >= 16)
    else:
        e, f = (1 << (r[x] - 1).bit_length() for x in "ef")
        assert kernels["flash"].flops == 2 * v["bm"] * v["bn"] * (e + f) * kernels["flash"].trips


# ---- arrays ------------------------------------------------------------------------------------------------------
@settings(max_examples=30)
@given(st.data(), workloads())
def test_a_grid_counts_as_its_points_one_by_one(data: st.DataObject, load: Workload) -> None:
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    values: dict[str, list[int]] = {}
    for domain in FAMILIES[family]:
        options = list(domain.values)
        if domain.key.endswith("split"):
            options = [1] if data.draw(st.booleans()) else [2, 3, 4, 8]
        values[domain.key] = data.draw(st.lists(st.sampled_from(options), min_size=1, max_size=3, unique=True))
    keys = list(values)
    mesh = dict(zip(keys, np.ix_(*(np.array(values[k]) for k in keys)), strict=True))
    at = tuple(data.draw(st.integers(0, len(values[k]) - 1)) for k in keys)
    chosen = schedule(family, {k: values[k][i] for k, i in zip(keys, at, strict=True)})
    tree = realise_skeleton(mapping(chosen, load, H200), load)
    filled = skeleton(family, load, H200, mesh).decisions
    shape = tuple(len(values[k]) for k in keys)
    for many, one in zip(executed(tree, load, filled), executed(realised(chosen, load), load), strict=True):
        for field in fields(KernelProfile):
            ours, theirs = getattr(many, field.name), getattr(one, field.name)
            if isinstance(theirs, dict):
                assert {b: _pick(v, shape, at) for b, v in ours.items()} == theirs, field.name
            elif isinstance(theirs, str):
                assert ours == theirs
            else:
                assert _pick(ours, shape, at) == theirs, field.name


def _pick(value: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> Any:
    return np.broadcast_to(value, shape)[at]


# ---- the worked example ------------------------------------------------------------------------------------------
FIELDS = ("programs", "trips", "flops", "exp2", "fp32", "reductions")
SECTION_4 = {
    "flash": (32, 64, 33_554_432, 135_168, 802_816, 128),
    "flash_merge": (64, 128, 0, 4_096, 471_040, 0),
    "qk": (128, 128, 16_777_216, 0, 0, 0),
    "qk_merge": (128, 256, 0, 0, 393_216, 0),
    "softmax": (256, 0, 0, 131_072, 655_360, 512),
    "av": (32, 64, 16_777_216, 0, 0, 0),
    "av_merge": (64, 128, 0, 0, 131_072, 0),
}
BYTES_LOADED = {
    "flash": {"Q": 262_144, "K": 262_144, "V": 262_144},
    "flash_merge": {"A_p": 524_288, "M_p": 8_192, "D_p": 8_192},
    "qk": {"Q": 524_288, "K": 262_144},
    "qk_merge": {"S_p": 1_048_576},
    "softmax": {"S_w": 262_144},
    "av": {"P_w": 262_144, "V": 262_144},
    "av_merge": {"O_p": 524_288},
}
BYTES_STORED = {
    "flash": {"A_p": 524_288, "M_p": 8_192, "D_p": 8_192},
    "flash_merge": {"O": 131_072},
    "qk": {"S_p": 1_048_576},
    "qk_merge": {"S_w": 262_144},
    "softmax": {"P_w": 262_144},
    "av": {"O_p": 524_288},
    "av_merge": {"O": 131_072},
}


@pytest.mark.parametrize("text", [FLASH, PIPELINE])
def test_the_worked_example_s_counts(text: str) -> None:
    size = {"Q": 2, "K": 2, "V": 2, "O": 2, "S_w": 2, "P_w": 2, "S_p": 4, "O_p": 4, "A_p": 4, "M_p": 4, "D_p": 4}
    kernels = executed(realised(parse_schedule(text), CASE_A), CASE_A)
    for k in kernels:
        assert tuple(getattr(k, f) for f in FIELDS) == SECTION_4[k.name], k.name
        assert {b: n * size[b] for b, n in k.loads.items()} == BYTES_LOADED[k.name]
        assert {b: n * size[b] for b, n in k.stores.items()} == BYTES_STORED[k.name]
    assert len(kernels) == (2 if text is FLASH else 5)
    loaded = sum(n for k in kernels for n in BYTES_LOADED[k.name].values())
    stored = sum(n for k in kernels for n in BYTES_STORED[k.name].values())
    assert (loaded, stored) == ((1_327_104, 671_744) if text is FLASH else (3_145_728, 2_228_224))


def test_the_worked_example_s_footprint() -> None:
    """Shared memory as compiled: bm d 2 + stages 2 bn d 2 of flash, a ring of stages of both tiles elsewhere."""
    smem = {
        k.name: int(k.smem_bytes)
        for text in (FLASH, PIPELINE)
        for k in executed(realised(parse_schedule(text), CASE_A), CASE_A)
    }
    assert (smem["flash"], smem["qk"], smem["av"]) == (24_576, 12_288, 16_384)


# ---- fail closed -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Teleport:
    """A step that nobody knows."""


def test_an_unknown_step_does_not_cost_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = realised(parse_schedule(FLASH), CASE_A)
    kernel, *_ = kernel_steps(tree, CASE_A)
    odd = KernelSteps(**{**vars(kernel), "steps": (*kernel.steps, Teleport())})
    monkeypatch.setattr(module, "kernel_steps", lambda *_: (odd,))
    with pytest.raises(Unsupported, match="no count for the step Teleport"):
        executed(tree, CASE_A)


def test_loops_inside_loops_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = realised(parse_schedule(FLASH), CASE_A)
    kernel, *_ = kernel_steps(tree, CASE_A)
    loop = next(s for s in kernel.steps if isinstance(s, module.For))
    nested = KernelSteps(**{**vars(kernel), "steps": (type(loop)(**{**vars(loop), "body": (loop,)}),)})
    monkeypatch.setattr(module, "kernel_steps", lambda *_: (nested,))
    with pytest.raises(Unsupported, match="loops inside loops"):
        executed(tree, CASE_A)
