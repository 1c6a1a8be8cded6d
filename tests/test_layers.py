"""Imports go one way, and the core needs neither torch nor triton."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import theodolite

ROOT = Path(theodolite.__file__).parent
HARNESS = "auditing.bench.harness"
COLLECTING = "auditing.bench.collecting"  # what a grid bundle adds to the harness
DEVICE_SIDE = (HARNESS, COLLECTING)
BASE = {"errors", "records"}
# part of the package -> what it may import, besides itself and the standard library
MAY_IMPORT = {
    "errors": set(),
    "records": {"errors"},
    "ir": BASE,
    "gpus": BASE | {"ir"},
    "workloads": BASE | {"ir"},
    "cost": BASE | {"ir", "gpus", "workloads"},
    "mapper": BASE | {"ir", "gpus", "workloads", "cost"},
    "lowering": BASE | {"ir", "gpus"},
    "auditing": BASE | {"ir", "gpus", "workloads", "lowering"},
}
CALIBRATION = {"calibration": BASE | {"ir", "gpus", "workloads", "cost", "mapper", "lowering", "auditing"}}
TOP = {
    "pipeline", "batch", "cli", "cli_collect", "collect", "collect_study", "cli_pairs", "pair_audit", "cli_import",
    "looptrees", "cli_options", "cli_trees", "gate_journal", "workers", "__init__",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of the package by its name below it."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports(path: Path, name: str, *, inside: bool) -> Iterator[str]:
    """What a module imports, by full name; `inside` functions (and `if TYPE_CHECKING`) too."""
    tree = ast.parse(path.read_text())
    package = ["theodolite", *name.split(".")]
    if path.name != "__init__.py":
        package = package[:-1]
    nodes = ast.walk(tree) if inside else _at_import(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            # a name may be a module of its own; the package that holds it is then only the way there
            yield from (f"{whole}.{a.name}" if _is_module(f"{whole}.{a.name}") else whole for a in node.names)


def _is_module(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when the module is imported: all but the bodies of functions."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from _at_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _at_import(handler.body)


def parts_of(name: str, path: Path) -> set[str]:
    """The parts of the package that a module imports."""
    own = [i.split(".") for i in imports(path, name, inside=True)]
    return {i[1] for i in own if i[0] == "theodolite" and len(i) > 1}


MODULES = modules()


def test_the_package_is_seen() -> None:
    assert {"errors", "ir.tree", "cost.terms.waves", "auditing.gates.every", "pipeline", "cli"} <= set(MODULES)
    assert parts_of("ir.check", MODULES["ir.check"]) == {"errors", "ir"}
    parts = {n.split(".")[0] for n in MODULES}
    assert parts == set(MAY_IMPORT) | set(CALIBRATION) | TOP


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name: str) -> None:
    part = name.split(".")[0]
    allowed = {**MAY_IMPORT, **CALIBRATION}.get(part)
    if allowed is None:
        assert name in TOP
        return
    assert parts_of(name, MODULES[name]) <= allowed | {part}


def test_the_top_imports_the_pipeline_and_nothing_imports_the_top() -> None:
    for name, path in MODULES.items():
        if name not in TOP:
            assert not parts_of(name, path) & TOP, name
    assert "cli" not in parts_of("pipeline", MODULES["pipeline"])
    assert {"mapper", "lowering", "auditing", "cost"} <= parts_of("pipeline", MODULES["pipeline"])


def test_parts_do_not_import_in_a_circle_below_the_file() -> None:
    """Modules too: what is imported when a module is loaded never leads back to it."""
    edges = {
        n: {i.removeprefix("theodolite.") for i in imports(p, n, inside=False)} & set(MODULES) - {n}
        for n, p in MODULES.items()
    }
    done: set[str] = set()
    while ready := {n for n, needs in edges.items() if n not in done and needs <= done}:
        done |= ready
    assert done == set(edges)


@pytest.mark.parametrize("name", MODULES)
def test_torch_and_triton_are_imported_inside_functions_alone(name: str) -> None:
    heads = {i.split(".")[0] for i in imports(MODULES[name], name, inside=False)}
    assert not heads & {"torch", "triton"}


def test_who_imports_torch_at_all() -> None:
    users = {n for n, p in MODULES.items() if "torch" in {i.split(".")[0] for i in imports(p, n, inside=True)}}
    assert users
    assert all(n.startswith(HARNESS) for n in users)


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith(DEVICE_SIDE) or n == "auditing.bench.run"])
def test_the_harness_needs_the_standard_library_torch_and_triton_alone(name: str) -> None:
    """NumPy and pynvml it uses where they are there: never when it is loaded, and behind an ImportError."""
    own = {"harness"} if name == "auditing.bench.run" else set()
    for imported in imports(MODULES[name], name, inside=True):
        head = imported.split(".")[0]
        if head == "theodolite":
            assert imported.startswith(tuple(f"theodolite.{part}" for part in DEVICE_SIDE)), imported
        else:
            assert head in sys.stdlib_module_names | {"torch", "triton", "numpy", "pynvml"} | own, imported
    at_import = {i.split(".")[0] for i in imports(MODULES[name], name, inside=False)}
    assert at_import <= sys.stdlib_module_names | {"theodolite"}


def test_mapping_costing_and_printing_load_neither_torch_nor_triton() -> None:
    script = """
import sys
import theodolite as t
from theodolite.ir.text import show
load, gpu = t.workload("sdpa:A"), t.gpu("h200")
found = t.map_workload(load, gpu, t.model("corrected"), 1)
tree = found.mapped[0].tree
t.evaluate(tree, load, gpu, t.model("baseline"))
print(show(tree), show(t.realise(tree, load)), t.lower(t.realise(tree, load), load).source)
import theodolite.cli
print(sorted(m for m in sys.modules if m.split(".")[0] in ("torch", "triton")), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "@triton.jit" in done.stdout
