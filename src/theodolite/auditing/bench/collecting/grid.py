"""A grid bundle as records: unique kernels, and candidates that name them by number."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..harness.spec import Buffer, Bundle, Candidate, Config, Kernel, Launch

CANDIDATES = "candidates.json.gz"


@dataclass(frozen=True)
class Unit:
    """One kernel to compile, with the file that its text was written to and the SHA-256 of its TTIR as frozen."""

    number: int
    path: Path
    kernel: Kernel
    ttir: str


@dataclass(frozen=True)
class Member:
    """One candidate; `unit_of` gives a kernel's number by its name.  `checked`: what was proved before the freeze."""

    candidate: Candidate
    schedule: str
    checked: str
    unit_of: Mapping[str, int]


@dataclass(frozen=True)
class Grid:
    """The bundle.  `bundle` is what `harness` expects to see of a run; its candidates stand in `members`."""

    bundle: Bundle
    units: tuple[Unit, ...]
    members: Mapping[str, Member]

    def candidate(self, name: str) -> Candidate:
        return self.members[name].candidate


def read_grid(folder: Path, work: Path) -> Grid:
    """Read candidates.json.gz of `folder` and write each kernel's text into `work`, where Triton can read it back.

    KeyError or ValueError where the file is no such thing.
    """
    raw = json.loads(gzip.decompress((folder / CANDIDATES).read_bytes()))
    paths = []
    (work / "kernels").mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(raw["texts"]):
        paths.append(work / "kernels" / f"text_{number}.py")
        paths[-1].write_text(text)
    units = tuple(Unit(n, paths[k["text"]], _kernel(k), k["ttir"]) for n, k in enumerate(raw["kernels"]))
    target = (raw["target"][0], int(raw["target"][1]), int(raw["target"][2]))
    config = Config(raw["gpu"], target, raw["triton"], int(raw["seed"]), raw["floors_s"], raw["protocol"])
    cases = {w: w for w in raw["floors_s"]}
    bundle = Bundle(raw["run_id"], folder, cases, (), config)
    return Grid(bundle, units, {c["id"]: _member(c, units) for c in raw["candidates"]})


def _kernel(raw: Mapping[str, Any]) -> Kernel:
    return Kernel(
        name=raw["name"],
        params=tuple((p["name"], p["type"]) for p in raw["params"]),
        constexprs=raw["constexprs"],
        divisible_by_16=tuple(raw["divisible_by_16"]),
        num_warps=raw["num_warps"],
        num_stages=raw["num_stages"],
    )


def _member(raw: Mapping[str, Any], units: tuple[Unit, ...]) -> Member:
    mine = [units[n] for n in raw["kernels"]]
    candidate = Candidate(
        id=raw["id"],
        case=raw["workload"],
        kernel_id=raw["kernel_id"],
        passed=True,
        path="",
        kernels=tuple(u.kernel for u in mine),
        buffers=tuple(Buffer(b["name"], b["dtype"], tuple(b["shape"]), b["role"]) for b in raw["buffers"]),
        launches=tuple(
            Launch(launch["kernel"], (launch["grid"][0], launch["grid"][1], launch["grid"][2]), launch["args"])
            for launch in raw["launches"]
        ),
        ttir={u.kernel.name: u.ttir for u in mine},
    )
    return Member(candidate, raw["schedule"], raw["checked"], {u.kernel.name: u.number for u in mine})
