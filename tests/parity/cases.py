"""What both sides cost: files that lie beside the tests, and seeded draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.parity.draw import draw

DATA = Path(__file__).parents[1] / "data" / "accelforge"
SMALL = ("two_memories.yaml", "matmuls.yaml")
VECTORS = ("two_memories.yaml", "matvecs.yaml", "matvecs_mappings.yaml")
BY_HAND: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("one product", (*SMALL, "matmuls_unfused.yaml"), {"N": 1, "M": 64, "KN": 32}),
    ("one product, T0 of 4 bits", (*SMALL, "matmuls_unfused.yaml"), {"N": 1, "M": 64, "KN": 32, "T0_BITS": 4}),
    ("one product, all of 16 bits", (*SMALL, "matmuls_unfused.yaml"), {"N": 1, "M": 64, "KN": 32, "ALL_BITS": 16}),
    ("one product, output read", (*SMALL, "matmuls_unfused.yaml"), {"N": 1, "M": 64, "KN": 32, "SKIP_FIRST": False}),
    ("two products, unfused", (*SMALL, "matmuls_unfused.yaml"), {"N": 2, "M": 64, "KN": 64}),
    ("two products, fused", (*SMALL, "matmuls_fused.yaml"), {"N": 2, "M": 64, "KN": 32, "MAIN_ENERGY": 10}),
    ("three products, fused", (*SMALL, "matmuls_fused.yaml"),
     {"N": 3, "M": 64, "KN": 32, "MAIN_ENERGY": 10, "BUFFER_BITS": 1_000_000}),
    *((f"vectors, {how}", VECTORS, {"HOW": how, "MAIN_ENERGY": 10})
      for how in ("unfused", "untiled", "tiled", "tiled_reuse_A")),
)  # fmt: skip
CASE_A = {"BH": 8, "L": 128, "E": 64}
# Where AccelForge's table of reservations slips: memory, bits that it says are held at most, bits that are
SLIPS = {
    "two_sizes": ("Buffer", 80, 48),
    "spatial_above": ("Main", 128, 64),
    "too_little": ("Buffer", 32, 40),
}
# Where it trips over one: memory, what it raises, what we say
TRIPS = {
    "less_than_nothing": ("Buffer", "Negative reservation", "hold less than nothing in Buffer"),
    "no_column": ("Main", "right not in", "table lacks a column of Main"),
}


@dataclass(frozen=True)
class Case:
    """One triple as files; `mark` changes when their text does."""

    name: str
    files: tuple[Path, ...]
    variables: dict[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        return hashlib.sha256("\0".join(f.read_text() for f in self.files).encode()).hexdigest()[:16]


def stored() -> Iterator[Case]:
    """The cases by hand, and the mappings that AccelForge's mapper returned for attention of 8 x 128 x 64."""
    for name, files, variables in BY_HAND:
        yield Case(name, tuple(DATA / f for f in files), variables)
    for path in sorted((DATA / "case-a").glob("*.yaml")):
        yield Case(f"case-a/{path.stem}", (DATA / "gpu_three_level.yaml", DATA / "sdpa.yaml", path), CASE_A)


def slip(name: str) -> Case:
    """The smallest triple for one of the slips."""
    files = ("two_sizes.arch.yaml", f"{name}.workload.yaml", f"{name}.mapping.yaml")
    return Case(name, tuple(DATA / f for f in files))


def drawn(seed: int, folder: Path) -> Case:
    """The triple of a seed, written into a folder."""
    triple = draw(seed)
    files = []
    for what in ("arch", "workload", "mapping"):
        files.append(folder / f"{seed}.{what}.yaml")
        files[-1].write_text(getattr(triple, what))
    return Case(f"seed {seed}", tuple(files))
