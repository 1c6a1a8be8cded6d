"""The bundle as records, and the arguments of a launch.

manifest.json is the frozen manifest; config.json holds what the device side needs beside it (see `Config`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DTYPE_BYTES = {"fp16": 2, "fp32": 4, "i32": 4}
ALIGNMENT_BYTES = 512  # what torch's allocator gives; workspaces carved from one arena keep to it


class SpecError(Exception):
    """A manifest that contradicts itself: nothing is launched from it."""


@dataclass(frozen=True)
class Buffer:
    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Kernel:
    """`params` is (name, type) in the order of the parameters; a constexpr's type is "constexpr"."""

    name: str
    params: tuple[tuple[str, str], ...]
    constexprs: Mapping[str, int]
    divisible_by_16: tuple[int, ...]
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, int, int]
    args: Mapping[str, str | int | float]


@dataclass(frozen=True)
class Candidate:
    """`passed`: every gate before the freeze was.  `ttir`: SHA-256 by kernel, as frozen."""

    id: str
    case: str
    kernel_id: str
    passed: bool
    path: str
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    ttir: Mapping[str, str]

    def kernel(self, name: str) -> Kernel:
        return next(k for k in self.kernels if k.name == name)

    def of_role(self, role: str) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role == role)


@dataclass(frozen=True)
class Config:
    """config.json.

    target: Triton's (backend, capability, warp size).  triton: the version that the TTIR hashes were made under.
    floors_s: by case, the time that compulsory bytes or FLOPs take at the GPU's peaks; no time may beat it.
    protocol: the figures of the protocol, units in their names.
    """

    gpu: str
    target: tuple[str, int, int]
    triton: str
    seed: int
    floors_s: Mapping[str, float]
    protocol: Mapping[str, float]


@dataclass(frozen=True)
class Bundle:
    """A frozen run as the device side sees it; `cases` maps a case to its workload's canonical name."""

    run_id: str
    folder: Path
    cases: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    config: Config

    def candidate(self, name: str) -> Candidate:
        return next(c for c in self.candidates if c.id == name)


def read_bundle(folder: Path) -> Bundle:
    """manifest.json and config.json of a bundle; KeyError or ValueError where they are no such thing."""
    manifest = json.loads((folder / "manifest.json").read_text())
    raw = json.loads((folder / "config.json").read_text())
    config = Config(
        gpu=raw["gpu"],
        target=(raw["target"][0], int(raw["target"][1]), int(raw["target"][2])),
        triton=raw["triton"],
        seed=int(raw["seed"]),
        floors_s=raw["floors_s"],
        protocol=raw["protocol"],
    )
    candidates = tuple(_candidate(c, raw["ttir"]) for c in manifest["candidates"])
    return Bundle(manifest["run_id"], folder, manifest["cases"], candidates, config)


def _candidate(raw: Mapping[str, Any], ttir: Mapping[str, Mapping[str, str]]) -> Candidate:
    program = raw["program"]
    return Candidate(
        id=raw["id"],
        case=raw["case"],
        kernel_id=raw["kernel_id"],
        passed=bool(raw["gates"]) and all(g["passed"] for g in raw["gates"]),
        path=f"kernels/{raw['id']}.py",
        kernels=tuple(_kernel(k) for k in program["kernels"]),
        buffers=tuple(Buffer(b["name"], b["dtype"], tuple(b["shape"]), b["role"]) for b in program["buffers"]),
        launches=tuple(
            Launch(launch["kernel"], (launch["grid"][0], launch["grid"][1], launch["grid"][2]), launch["args"])
            for launch in program["launches"]
        ),
        ttir=ttir.get(raw["id"], {}),
    )


def _kernel(raw: Mapping[str, Any]) -> Kernel:
    return Kernel(
        name=raw["name"],
        params=tuple((p["name"], p["type"]) for p in raw["params"]),
        constexprs=raw["constexprs"],
        divisible_by_16=tuple(raw["divisible_by_16"]),
        num_warps=raw["num_warps"],
        num_stages=raw["num_stages"],
    )


def launch_arguments(kernel: Kernel, launch: Launch, tensors: Mapping[str, Any]) -> list[Any]:
    """Every parameter's value in order, constexprs too: a compiled kernel's launcher takes and drops those.

    `tensors` are objects with `data_ptr()`.  Raises SpecError for a value that is missing, of the wrong type, or at
    odds with the specialisation that the kernel was compiled under (its loads would then read elsewhere).
    """
    values = [_value(name, kind, kernel, launch, tensors) for name, kind in kernel.params]
    extra = set(launch.args) - {name for name, _ in kernel.params}
    if extra:
        raise SpecError(f"{kernel.name} has no parameter {', '.join(sorted(extra))}")
    for position in kernel.divisible_by_16:
        value = values[position]
        number = value.data_ptr() if hasattr(value, "data_ptr") else value
        if number % 16:
            raise SpecError(f"{kernel.name}: {kernel.params[position][0]} is marked divisible by 16 and is not")
    return values


def _value(name: str, kind: str, kernel: Kernel, launch: Launch, tensors: Mapping[str, Any]) -> Any:
    if kind == "constexpr":
        if name not in kernel.constexprs:
            raise SpecError(f"{kernel.name}: constexpr {name} has no value")
        return kernel.constexprs[name]
    if name not in launch.args:
        raise SpecError(f"{kernel.name}: {name} has no argument")
    given = launch.args[name]
    if kind.startswith("*"):
        if not isinstance(given, str) or given not in tensors:
            raise SpecError(f"{kernel.name}: {name} needs a buffer, not {given!r}")
        return tensors[given]
    if isinstance(given, (str, bool)):
        raise SpecError(f"{kernel.name}: {name} needs a number, not {given!r}")
    if kind == "fp32":
        return float(given)
    if kind != "i32" or given != int(given) or not -(2**31) <= given < 2**31:
        raise SpecError(f"{kernel.name}: {given!r} is no {kind} for {name}")
    return int(given)


def check_candidate(candidate: Candidate) -> None:
    """SpecError where a launch names no kernel, a grid is out of range, or a pointer's type is not its buffer's."""
    buffers = {b.name: b for b in candidate.buffers}
    kernels = {k.name: k for k in candidate.kernels}
    for launch in candidate.launches:
        if launch.kernel not in kernels:
            raise SpecError(f"launch of {launch.kernel!r}, which is no kernel of the program")
        x, y, z = launch.grid
        if not (0 < x < 2**31 and 0 < y < 2**16 and 0 < z < 2**16):
            raise SpecError(f"{launch.kernel}: grid {launch.grid} is out of range")
        for name, kind in kernels[launch.kernel].params:
            given = launch.args.get(name)
            buffer = buffers.get(str(given))
            if kind.startswith("*") and buffer is not None and buffer.dtype != kind[1:]:
                raise SpecError(f"{launch.kernel}: {name} is {kind}, and buffer {given} holds {buffer.dtype}")


def carve(buffers: tuple[Buffer, ...]) -> tuple[dict[str, int], int]:
    """(offset of each buffer in one arena, size of the arena), in bytes."""
    offsets, end = {}, 0
    for buffer in buffers:
        offsets[buffer.name] = end
        end += -(-buffer.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, end
