"""AccelForge's files, read without trusting them: architecture, workload and mapping, each into a frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite import records
from theodolite.errors import TextError
from theodolite.ir.accelforge.arch import ArchSpec, read_arch
from theodolite.ir.accelforge.cascade import Cascade, read_cascade
from theodolite.ir.accelforge.mapping import Names, names_of, read_mapping, write_mapping
from theodolite.ir.accelforge.source import Item, read
from theodolite.ir.accelforge.template import MAX_CHARS
from theodolite.ir.tree import Tree

__all__ = [
    "ArchSpec",
    "Cascade",
    "Names",
    "arch_of",
    "cascade_of",
    "load",
    "mapping_of",
    "names_of",
    "write_mapping",
]

Sections = Mapping[str, Item]
KNOWN = ("arch", "workload", "renames", "mapping", "variables")


def load(*paths: Path, variables: Mapping[str, Any] | None = None) -> Sections:
    """The top-level sections of one or more files, each at most once; TextError or Unsupported says where.

    `variables` fill the files' templates.
    """
    found: dict[str, Item] = {}
    for path in paths:
        for name, item in _top(path, variables or {}).items():
            if name in found:
                raise item.error(f"{name} is given in {found[name].where} already")
            found[name] = item
    return found


def _top(path: Path, variables: Mapping[str, Any]) -> dict[str, Item]:
    text = records.read_text(path, 4 * MAX_CHARS)
    return read(text, str(path), variables).fields("a file", KNOWN)


def arch_of(sections: Sections) -> ArchSpec:
    """The architecture among the sections."""
    return read_arch(_section(sections, "arch"), sections.get("variables"))


def cascade_of(sections: Sections) -> Cascade:
    """The workload among the sections, named after its file."""
    item = _section(sections, "workload")
    return read_cascade(item, sections.get("renames"), Path(item.where).stem.replace(" ", "_"))


def mapping_of(sections: Sections, arch: ArchSpec, cascade: Cascade, names: Names | None = None) -> Tree:
    """The mapping among the sections as an abstract tree, named after its file."""
    item = _section(sections, "mapping")
    name = Path(item.where).stem.replace(" ", "_")
    return read_mapping(item, arch, cascade, names or names_of(arch), name, "accelforge")


def _section(sections: Sections, name: str) -> Item:
    if name not in sections:
        raise TextError(f"none of the files has a section {name!r}")
    return sections[name]
