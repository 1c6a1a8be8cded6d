"""The pieces of a bundle, each against an oracle: triton's launcher, the compiler, the workload's own file."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auditing import made_up
from tests.fixtures import example_program
from theodolite.auditing.bench.bundle import floor_s, write_bundle
from theodolite.auditing.bench.harness import compile as compiling
from theodolite.auditing.bench.harness import sdpa, spec
from theodolite.auditing.bench.harness.environment import event_tick_s
from theodolite.auditing.bench.harness.isolated import judge_numerics
from theodolite.auditing.bench.harness.rounds import order, plan_counts, slots_of
from theodolite.auditing.ids import input_record, kernel_id
from theodolite.auditing.manifest import Manifest
from theodolite.errors import Drift, RunError
from theodolite.gpus import gpu
from theodolite.lowering.compile import normalise, ttir
from theodolite.workloads import workload

# by its name: the package has a function of that name, which hides the module
attention = importlib.import_module("theodolite.workloads.sdpa")
H200 = gpu("h200")
CASE = "sdpa:b=1,h=8,l=128,s=128,d=64"


def real_manifest() -> Manifest:
    """One candidate with kernels that compile and the kernel_id that follows from them."""
    program = example_program.CASE_A
    identity, _ = kernel_id(program, ttir(program), H200.target, input_record(workload(CASE), 0))
    candidate = replace(made_up.candidate("flash-1", {}), program=program, kernel_id=identity)
    return made_up.manifest([candidate])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> spec.Bundle:
    folder = tmp_path_factory.mktemp("run") / "bundle"
    write_bundle(real_manifest(), folder)
    return spec.read_bundle(folder)


class Pointer:
    """What a launch takes for a tensor."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def pointers(candidate: spec.Candidate, address: int = 512) -> dict[str, Any]:
    return {b.name: Pointer(address) for b in candidate.buffers}


def test_launch_arguments_fit_the_installed_triton_launcher(bundle: spec.Bundle) -> None:
    """The launcher's C source parses one value a parameter, constexprs as objects that it drops."""
    from triton.backends.nvidia.driver import _BASE_ARGS_FORMAT, make_launcher

    (candidate,) = bundle.candidates
    letters = {"O": object, "i": int, "d": float}
    for launch in candidate.launches:
        kernel = candidate.kernel(launch.kernel)
        source = make_launcher({}, dict(enumerate(kind for _, kind in kernel.params)), None)
        wanted = source.split('PyArg_ParseTuple(args, "')[1].split('"')[0].removeprefix(_BASE_ARGS_FORMAT)
        values = spec.launch_arguments(kernel, launch, pointers(candidate))
        assert len(values) == len(wanted)
        for value, letter, (name, kind) in zip(values, wanted, kernel.params, strict=True):
            assert isinstance(value, letters[letter]), name
            if kind == "constexpr":
                assert value == kernel.constexprs[name]


def test_the_compiled_object_is_called_as_the_harness_calls_it() -> None:
    import inspect

    from triton.compiler.compiler import CompiledKernel

    source = inspect.getsource(CompiledKernel.__getitem__)
    assert "def runner(*args, stream=None)" in source
    assert "self.run(grid[0], grid[1], grid[2], stream," in source


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a.pop("scale"), "scale has no argument"),
        (lambda a: a.update(scale="Q"), "needs a number"),
        (lambda a: a.update(BH=2.5), "is no i32"),
        (lambda a: a.update(BH=2**31), "is no i32"),
        (lambda a: a.update(Q="nobody"), "needs a buffer"),
        (lambda a: a.update(Q=7), "needs a buffer"),
        (lambda a: a.update(L=100), "marked divisible by 16"),
        (lambda a: a.update(extra=1), "no parameter extra"),
    ],
)
def test_a_launch_at_odds_with_its_kernel_is_refused(
    bundle: spec.Bundle, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    (candidate,) = bundle.candidates
    launch = candidate.launches[0]
    args = dict(launch.args)
    change(args)
    with pytest.raises(spec.SpecError, match=says):
        spec.launch_arguments(candidate.kernel("flash"), replace(launch, args=args), pointers(candidate))


def test_a_misaligned_pointer_is_refused(bundle: spec.Bundle) -> None:
    (candidate,) = bundle.candidates
    with pytest.raises(spec.SpecError, match="marked divisible by 16"):
        spec.launch_arguments(candidate.kernel("flash"), candidate.launches[0], pointers(candidate, address=520))


@pytest.mark.parametrize("grid", [(0, 1, 1), (2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_a_grid_out_of_range_is_refused(bundle: spec.Bundle, grid: tuple[int, int, int]) -> None:
    (candidate,) = bundle.candidates
    spec.check_candidate(candidate)
    launches = (replace(candidate.launches[0], grid=grid), candidate.launches[1])
    with pytest.raises(spec.SpecError, match="out of range"):
        spec.check_candidate(replace(candidate, launches=launches))


def test_a_pointer_of_another_type_than_its_buffer_is_refused(bundle: spec.Bundle) -> None:
    (candidate,) = bundle.candidates
    launch = candidate.launches[0]
    launches = (replace(launch, args={**launch.args, "A_p": "Q"}), candidate.launches[1])
    with pytest.raises(spec.SpecError, match="A_p is \\*fp32"):
        spec.check_candidate(replace(candidate, launches=launches))


@given(st.lists(st.integers(0, 3000), max_size=6))
def test_workspaces_lie_apart_in_the_arena(sizes: list[int]) -> None:
    buffers = tuple(spec.Buffer(str(i), "fp32", (n,), "workspace") for i, n in enumerate(sizes))
    offsets, total = spec.carve(buffers)
    taken: set[int] = set()
    for buffer in buffers:
        mine = set(range(offsets[buffer.name], offsets[buffer.name] + buffer.size_bytes))
        assert offsets[buffer.name] % 16 == 0
        assert not mine & taken
        taken |= mine
    assert total >= max(taken, default=-1) + 1


def test_the_harness_compiles_to_the_frozen_ttir(
    bundle: spec.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ways to the TTIR (one stage here, a whole compile there) and two strippers give the same hashes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    (candidate,) = bundle.candidates
    for kernel in candidate.kernels:
        built = compiling.built(bundle.folder / candidate.path, kernel, bundle.config.target)
        assert compiling.binary(built).ttir == candidate.ttir[kernel.name]
        assert compiling.without_locations(built.asm["ttir"]) == normalise(built.asm["ttir"])
    assert compiling.binary(built).shared_bytes == 64


@given(st.lists(st.sampled_from([" loc(", ")", '"', "\\", "(", "x", "\n", "#loc1 = ", " "]), max_size=12).map("".join))
def test_both_strippers_agree_on_any_text(text: str) -> None:
    def told(strip: Callable[[str], str]) -> str | None:
        try:
            return strip(text)
        except Exception:
            return None

    assert told(compiling.without_locations) == told(normalise)


def test_a_kernel_id_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    manifest = real_manifest()
    wrong = replace(manifest, candidates=(replace(manifest.candidates[0], kernel_id="0" * 64),))
    with pytest.raises(Drift, match="flash-1"):
        write_bundle(wrong, tmp_path / "bundle")
    with pytest.raises(Drift, match=r"9\.9"):
        write_bundle(replace(manifest, toolchain={"triton": "9.9"}), tmp_path / "bundle")
    with pytest.raises(RunError, match="no triton"):
        write_bundle(replace(manifest, toolchain={}), tmp_path / "bundle")


@pytest.mark.parametrize("name", ["../escape", "a/b", "a b", "a#again", ".hidden", ""])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot name a file"):
        write_bundle(made_up.manifest([made_up.candidate(name, {})]), tmp_path / "bundle", ttir={})


@pytest.mark.parametrize(
    "text", ["b=1,h=8,l=128,s=128,d=64", "b=2,h=3,l=5,s=9,d=16,causal", "b=1,h=2,l=7,s=7,d=16,causal"]
)
def test_the_floor_counts_visible_pairs_and_outside_tensors(text: str) -> None:
    what = workload("sdpa:" + text)
    r = what.ranks
    pairs = int(attention.visible(what).sum()) * r["b"] * r["h"]
    moved = 2 * r["b"] * r["h"] * r["e"] * (2 * r["l"] + 2 * r["s"])
    expected = max(moved / H200.peak_hbm_bytes_per_s, 4 * pairs * r["e"] / H200.peak_flop_per_s)
    assert floor_s(what, H200) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "b=2,h=3,l=10,s=20,d=16",
        "b=1,h=2,l=6,s=9,d=16,causal",
        "b=1,h=1,l=33,s=40,d=16",
        "b=1,h=1,l=1,s=97,d=16",
        "b=1,h=1,l=2,s=90,d=16,causal",
        "b=1,h=2,l=6,s=9,d=16,e=24,causal",
    ],
)
def test_inputs_and_probes_are_the_workloads_own(tmp_path: Path, text: str) -> None:
    what = workload("sdpa:" + text)
    assert sdpa.write_inputs(what.name, 5, tmp_path) == "numpy.Philox"
    for name, array in attention.inputs(what, 5).items():
        assert (tmp_path / name).read_bytes() == array.tobytes()
    sizes = sdpa.parse(what.name)
    assert sdpa.input_sets(sizes) == ["random", *(p.name for p in attention.probes(what, 5))]


@pytest.mark.parametrize("text", ["topk:b=1", "sdpa:b=1,h=8,l=128,s=128", "sdpa:b=1,h=8,l=128,s=128,d=64,window"])
def test_an_unknown_workload_has_no_reference(text: str) -> None:
    with pytest.raises(ValueError, match="no reference"):
        sdpa.parse(text)


@pytest.mark.parametrize("text", ["b=2,h=3,l=10,s=20,d=16", "b=1,h=2,l=6,s=9,d=16,e=24,causal"])
def test_the_torch_reference_agrees_with_the_float64_one(tmp_path: Path, text: str) -> None:
    torch = pytest.importorskip("torch")
    what = workload("sdpa:" + text)
    sdpa.write_inputs(what.name, 5, tmp_path)
    sizes = sdpa.parse(what.name)
    drawn = {n: sdpa.read_input(torch, sizes, n, tmp_path, "cpu") for n in sdpa.INPUTS}
    sets = {"random": attention.inputs(what, 5), **{p.name: p.arrays for p in attention.probes(what, 5)}}
    for name, arrays in sets.items():
        queries = sdpa.queries(torch, sizes, drawn, name)
        assert np.array_equal(queries.numpy(), arrays["Q"])
        right = attention.reference(what, arrays)["O"]
        figures = sdpa.compare(torch, sizes, queries, drawn["K"], drawn["V"], torch.from_numpy(right))
        assert figures["relative_norm_head"] < 1e-5
        wrong = torch.from_numpy(right.copy())
        wrong[0, 0] *= 1.01
        figures = sdpa.compare(torch, sizes, queries, drawn["K"], drawn["V"], wrong)
        assert figures["relative_norm_head"] == pytest.approx(0.01, rel=1e-2)
        wrong[0, 0, 0, 0] = float("nan")
        assert sdpa.compare(torch, sizes, queries, drawn["K"], drawn["V"], wrong)["non_finite"] == 1


RIGHT = {"non_finite": 0, "elementwise": 0.2, "relative_norm": 3e-4, "relative_norm_head": 4e-4, "inputs_changed": 0}


@pytest.mark.parametrize("key", sorted(RIGHT))
@pytest.mark.parametrize("value", [float("nan"), 2.0])
def test_any_bad_figure_fails_the_numerics(key: str, value: float) -> None:
    assert judge_numerics(RIGHT, {"relative_norm": 5e-3}) is None
    assert judge_numerics({**RIGHT, key: value}, {"relative_norm": 5e-3}) is not None


@given(
    tick_ns=st.sampled_from([32, 64, 500, 1024]),
    steps=st.lists(st.integers(1, 3000), min_size=12, max_size=60, unique=True),
)
def test_the_tick_is_found_from_elapsed_times(tick_ns: int, steps: list[int]) -> None:
    # what the driver returns: multiples of the tick, as 32-bit milliseconds
    elapsed_s = [float(np.float32(n * tick_ns * 1e-6)) * 1e-3 for n in steps]
    common = math.gcd(*steps)
    found = event_tick_s(elapsed_s)
    assert found == pytest.approx(common * tick_ns * 1e-9, rel=5e-3)


def test_times_of_no_step_have_a_tick_at_the_noise_and_one_time_has_none() -> None:
    spread = np.random.default_rng(0).uniform(1e-6, 2e-6, 200)
    found = event_tick_s([float(s) for s in spread])
    assert found is not None
    assert 2e-9 <= found < 4e-9
    assert event_tick_s([1e-6] * 50) is None
    assert event_tick_s([]) is None


PLAN = {"rounds": 300, "least_rounds": 20, "slow_s": 5e-3, "sample_overhead_s": 1e-4}


@given(st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=20), st.floats(0, 200))
def test_no_slot_gets_fewer_than_the_least_and_faster_ones_get_no_less(times: list[float], left_s: float) -> None:
    estimates = {str(i): t for i, t in enumerate(times)}
    counts = plan_counts(estimates, PLAN, left_s)
    assert all(20 <= n <= 300 for n in counts.values())
    for a in estimates:
        for b in estimates:
            assert counts[a] >= counts[b] or estimates[a] >= estimates[b]
    total = sum(n * (estimates[s] + 1e-4) for s, n in counts.items())
    assert total <= left_s or max(counts.values()) == 20


def test_time_in_plenty_gives_all_rounds_to_all_but_the_slow() -> None:
    assert plan_counts({"a": 1e-5, "b": 5e-3, "c": 1e-2, "d": 1.0}, PLAN, 1e4) == {
        "a": 300,
        "b": 300,
        "c": 150,
        "d": 20,
    }


def test_rounds_are_permutations_that_the_seed_fixes() -> None:
    slots = [str(i) for i in range(40)]
    rounds = [order(3, n, slots) for n in range(5)]
    assert all(sorted(r) == sorted(slots) for r in rounds)
    assert len({tuple(r) for r in rounds}) == 5
    assert rounds[0] == order(3, 0, slots)
    assert rounds[0] != order(4, 0, slots)


def test_the_first_and_last_survivor_of_each_case_have_two_slots(bundle: spec.Bundle) -> None:
    names = ("a", "b", "c", "d", "e")
    candidates = tuple(replace(bundle.candidates[0], id=n, case="sdpa:B" if n > "c" else "sdpa:A") for n in names)
    two = replace(bundle, candidates=candidates)
    assert slots_of(two, names) == ["a", "a#again", "b", "c", "c#again", "d", "d#again", "e", "e#again"]
    assert slots_of(two, ["b", "d"]) == ["b", "b#again", "d", "d#again"]
    assert slots_of(two, ["a", "b", "c"], every=True) == ["a", "a#again", "b", "b#again", "c", "c#again"]


def test_the_bundle_names_no_path_of_this_machine(bundle: spec.Bundle) -> None:
    for path in bundle.folder.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert str(Path(__file__).parents[2]) not in text, path.name
            assert "from theodolite" not in text, path.name
            assert "import theodolite" not in text, path.name
    assert json.loads((bundle.folder / "frozen.json").read_text())["run_id"] == "run-1"
