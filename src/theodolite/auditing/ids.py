"""Two identities.  Measurements attach to what ran, predictions to what ran and to who said what of it.

kernel_id: TTIR without locations, specialisation, options, target, launches, workspaces, input generator.
prediction_id: kernel_id, the model's name, its terms, constants and value.

A comment changes the source's hash and neither id; a model's constant changes prediction_id and not kernel_id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.errors import KernelError, Unsupported
from theodolite.ir.workload import Workload
from theodolite.lowering.plan import KernelSpec, Launch, Program
from theodolite.records import digest


def source_hash(source: str) -> str:
    """SHA-256 of the program's text, byte for byte."""
    return hashlib.sha256(source.encode()).hexdigest()


def input_record(workload: Workload, seed: int) -> dict[str, Any]:
    """The input generator as hashed: who draws, from what seed, which tensors in which order and shapes.

    Raises Unsupported for an input that is not fp16, since the record would then say something untrue.
    """
    odd = [t for t in workload.inputs if workload.tensor(t).dtype != "fp16"]
    if odd:
        raise Unsupported(f"{workload.name}: the input record knows fp16 draws, not those of {', '.join(odd)}")
    return {
        "generator": "numpy.Philox",
        "seed": seed,
        "draw": "standard_normal -> fp16",
        "order": list(workload.inputs),
        "shapes": {t: list(workload.shape(t)) for t in workload.inputs},
    }


def kernel_id(
    program: Program, ttir: Mapping[str, str], target: Sequence[str | int], inputs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(id, the record that was hashed).

    `ttir` is that of `lowering.compile.ttir`; `inputs` comes from `input_record`.  Raises KernelError where a kernel
    has no TTIR, or TTIR has no kernel.
    """
    names = {k.name for k in program.kernels}
    if names != set(ttir):
        raise KernelError(f"TTIR of {', '.join(sorted(ttir)) or 'nothing'} for kernels {', '.join(sorted(names))}")
    record = {
        "ttir": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in ttir.items()},
        "specialisation": {k.name: _specialisation(k) for k in program.kernels},
        "options": {k.name: {"num_warps": k.num_warps, "num_stages": k.num_stages} for k in program.kernels},
        "target": list(target),
        "launches": [_launch(launch) for launch in program.launches],
        "workspaces": {b.name: [b.dtype, b.elements] for b in program.workspaces},
        "inputs": dict(inputs),
    }
    return digest(record), record


def _specialisation(kernel: KernelSpec) -> dict[str, Any]:
    return {
        "signature": {p.name: p.type for p in kernel.params},
        "divisible_by_16": sorted(kernel.divisible_by_16),
        "constexprs": dict(kernel.constexprs),
    }


def _launch(launch: Launch) -> dict[str, Any]:
    return {
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "args": dict(launch.args),
        "reads": sorted(launch.reads),
        "writes": sorted(launch.writes),
    }


def prediction_id(
    kernel_id: str, model_name: str, terms: Sequence[str], constants: Mapping[str, float], seconds: float
) -> str:
    """The id of one value that one model gave for one kernel_id.  Without a value there is nothing to identify."""
    return digest(
        {
            "kernel_id": kernel_id,
            "model": model_name,
            "terms": list(terms),
            "constants": dict(constants),
            "seconds": seconds,
        }
    )
