"""A grid bundle: ids are those of a full freeze, each kernel stands once, and nothing is shared that differs."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.auditing import made_up
from theodolite import pipeline
from theodolite.auditing.bench.collecting.grid import read_grid
from theodolite.auditing.bench.grid_bundle import (
    CANDIDATES,
    GridManifest,
    Lowered,
    freeze_grid,
    own_text,
    read_grid_manifest,
    unique_kernels,
    write_grid,
)
from theodolite.collect import _ttir
from theodolite.errors import KernelError, RunError
from theodolite.gpus import gpu
from theodolite.lowering.plan import Program
from theodolite.mapper.skeletons import mapping_of
from theodolite.workloads import workload

H200 = gpu("h200")
CAUSAL = "sdpa:b=1,h=2,l=40,s=72,d=64,causal"
FLASH = "flash:bm=32,bn=32,split={},warps=4,stages={}"
PIPELINE = "pipeline:qk.bm=16,qk.bn=32,qk.bk=16,qk.split=2,sm.rows=4,av.bm={},av.bs=16,av.split=2,warps=4,stages=2"


def asked(text: str, workload_name: str = CAUSAL) -> pipeline.Asked:
    load = workload(workload_name)
    return pipeline.Asked(load.name, load, mapping_of(text, load, H200), ("by hand",))


def lowered(*texts: str) -> list[Lowered]:
    return [Lowered(workload(CAUSAL).name, t, pipeline.lower_one(asked(t), H200).program) for t in texts]


def manifest(every: Sequence[Lowered]) -> GridManifest:
    ttir = {key: _ttir(program, H200.target) for key, program in unique_kernels(every).items()}
    return freeze_grid(every, ttir, H200, "3.6.0", 7)


@pytest.fixture(scope="module")
def three() -> GridManifest:
    return manifest(lowered(FLASH.format(2, 2), FLASH.format(3, 2), PIPELINE.format(16)))


def test_a_kernel_id_is_that_of_the_whole_program(three: GridManifest) -> None:
    """The oracle freezes the program whole; here each kernel was cut out of it and compiled alone."""
    for candidate in three.candidates:
        made = pipeline.lower_one(asked(candidate.schedule), H200)
        assert pipeline.freeze_one(made, H200, 7, pipeline.draft([made], H200, 7, {}).models).kernel_id == (
            candidate.kernel_id
        )
        assert candidate.source == hashlib.sha256(made.program.source.encode()).hexdigest()
    assert len({c.kernel_id for c in three.candidates}) == 3


def names(found: GridManifest, schedule: str) -> dict[str, int]:
    candidate = next(c for c in found.candidates if c.schedule == schedule)
    return {found.kernels[n].name: n for n in candidate.kernels}


def test_schedules_share_what_is_the_same_and_nothing_else() -> None:
    texts = [FLASH.format(2, 2), FLASH.format(3, 2), FLASH.format(2, 3), PIPELINE.format(16), PIPELINE.format(32)]
    found = manifest(lowered(*texts))
    two, three, stages, narrow, wide = (names(found, t) for t in texts)
    assert two == three, "the number of slices is an argument"
    assert two["flash"] != stages["flash"], "stages are an option"
    assert two["flash_merge"] == stages["flash_merge"]
    assert {k for k in narrow if narrow[k] == wide[k]} == set(narrow) - {"av"}
    assert len(found.kernels) == len({(found.texts[k.text], str(replace(k, text=0))) for k in found.kernels})


def test_a_kernels_own_text_is_its_function(three: GridManifest) -> None:
    for kernel in three.kernels:
        tree = ast.parse(three.texts[kernel.text])
        assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] == [kernel.name]
        assert "#" not in three.texts[kernel.text]


def test_a_kernel_that_calls_another_function_is_refused() -> None:
    source = made_up.SOURCE + "\n\n@triton.jit\ndef caller(X):\n    copy(X, X, 1, 64)\n"
    with pytest.raises(KernelError, match="caller calls copy"):
        own_text(source, "caller")
    with pytest.raises(KernelError, match="no function 'paste'"):
        own_text(source, "paste")


def test_the_device_side_reads_what_was_frozen(three: GridManifest, tmp_path: Path) -> None:
    write_grid(three, tmp_path / "bundle")
    grid = read_grid(tmp_path / "bundle", tmp_path / "work")
    assert list(grid.members) == [c.id for c in three.candidates]
    for candidate in three.candidates:
        program: Program = pipeline.lower_one(asked(candidate.schedule), H200).program
        there = grid.candidate(candidate.id)
        assert [(b.name, b.dtype, b.shape, b.role) for b in there.buffers] == [
            (b.name, b.dtype, b.shape, b.role) for b in program.buffers
        ]
        assert [(x.kernel, x.grid, dict(x.args)) for x in there.launches] == [
            (x.kernel, x.grid, dict(x.args)) for x in program.launches
        ]
        for kernel in program.kernels:
            unit = grid.units[grid.members[candidate.id].unit_of[kernel.name]]
            assert unit.kernel.params == tuple((p.name, p.type) for p in kernel.params)
            assert (unit.kernel.num_warps, unit.kernel.num_stages) == (kernel.num_warps, kernel.num_stages)
            assert dict(unit.kernel.constexprs) == dict(kernel.constexprs)
            assert unit.kernel.divisible_by_16 == kernel.divisible_by_16
            assert unit.path.read_text() == own_text(program.source, kernel.name)


def test_the_harness_compiles_the_frozen_ttir(three: GridManifest, tmp_path: Path) -> None:
    """What a GPU machine would hold against the ids: the same hash from the file that it wrote itself."""
    from theodolite.auditing.bench.harness import compile as compiling

    write_grid(three, tmp_path / "bundle")
    grid = read_grid(tmp_path / "bundle", tmp_path / "work")
    unit = grid.units[0]
    before = sys.dont_write_bytecode
    patch = pytest.MonkeyPatch()
    try:
        patch.setenv("TRITON_DISABLE_LINE_INFO", "1")
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        built = compiling.built(unit.path, unit.kernel, H200.target)
    finally:
        patch.undo()
        sys.dont_write_bytecode = before
    assert compiling.binary(built).ttir == unit.ttir


def test_a_changed_manifest_is_refused(three: GridManifest, tmp_path: Path) -> None:
    write_grid(three, tmp_path / "bundle")
    path = tmp_path / "bundle" / CANDIDATES
    assert read_grid_manifest(path) == three
    with pytest.raises(RunError, match="not empty"):
        write_grid(three, tmp_path / "bundle")
    write_grid(replace(three, seed=8), tmp_path / "other")
    with pytest.raises(RunError, match="was changed"):
        read_grid_manifest(tmp_path / "other" / CANDIDATES)
