"""The mappings that a command line names: by schedule, by a tree's file, or by a folder of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from theodolite.errors import TextError
from theodolite.gpus.gpu import Gpu
from theodolite.ir.check import check
from theodolite.ir.text import parse
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.mapper.skeletons import mapping_of
from theodolite.pipeline import Asked
from theodolite.records import read_text
from theodolite.workloads import workload as workload_named

MAX_BYTES = 256 * 1024  # of a tree: some thousand nodes
SUFFIX = ".tree"


def chosen_tree(workload: Workload, gpu: Gpu, schedule: str | None, tree: Path | None) -> Tree:
    """The checked abstract tree of --schedule or --tree."""
    if (schedule is None) == (tree is None):
        raise TextError("give one of --schedule and --tree")
    if schedule is not None:
        return mapping_of(schedule, workload, gpu)
    assert tree is not None
    return read_tree(tree, workload, gpu)


def read_tree(path: Path, workload: Workload, gpu: Gpu) -> Tree:
    """Parse and check a tree's file; it has to be an abstract tree of this workload and GPU."""
    tree = parse(read_text(path, MAX_BYTES), str(path))
    if tree.stage != "abstract":
        raise TextError(f"{path} holds a realised tree; an abstract one is wanted")
    if workload_named(tree.workload).name != workload.name:
        raise TextError(f"{path} is a tree of {tree.workload}, not of {workload.name}")
    if tree.gpu != gpu.name:
        raise TextError(f"{path} is a tree for {tree.gpu}, not for {gpu.name}")
    check(tree, workload, gpu.sms)
    return replace(tree, workload=workload.name)


def tree_files(path: Path) -> list[Path]:
    """The file itself, or every tree in a folder, by name; TextError for a folder that holds none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise TextError(f"{path} holds no *{SUFFIX} files: give a tree's file, or what `theodolite import` wrote")
    return found


def named_mappings(case: str, gpu: Gpu, schedules: Sequence[str], trees: Sequence[Path]) -> list[Asked]:
    """The mappings of one case that were named on the command line."""
    what = workload_named(case)
    by_schedule = [Asked(case, what, mapping_of(s, what, gpu), ("by hand",)) for s in schedules]
    files = [file for path in trees for file in tree_files(path)]
    return by_schedule + [Asked(case, what, read_tree(f, what, gpu), (f.stem,)) for f in files]
