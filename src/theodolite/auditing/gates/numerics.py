"""The numerics gate: are the outputs right, on inputs chosen so that a wrong kernel shows?

Two tests that both have to hold.  Elementwise, |got - ref| <= absolute + relative |ref|, finds single wrong elements.
The relative norm ||got - ref|| / ||ref||, of each output as a whole and of each head, finds what is small everywhere:
at long rows a kernel may drop dozens of keys and stay within 2e-2 elementwise, at a relative norm of 6 to 9 %, where
rounding to fp16 costs 2e-4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.auditing.manifest import GateResult
from theodolite.errors import TheodoliteError
from theodolite.ir.workload import Workload
from theodolite.workloads import entry
from theodolite.workloads.workload_entry import Probe

GATE = "numerics"
NUMPY = {"fp16": np.float16, "fp32": np.float32, "i32": np.int32}
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Tolerance:
    """elementwise |got - ref| <= absolute + relative * |ref|; ||got - ref|| <= norm * ||ref||."""

    absolute: float = 2e-2
    relative: float = 2e-2
    norm: float = 5e-3


TOLERANCE = Tolerance()


@dataclass(frozen=True)
class Difference:
    """How far one output is from its reference; `excess` is the largest |error| over what is allowed there."""

    max_abs_error: float
    excess: float
    relative_norm: float
    head_relative_norm: float
    worst_head: int

    def fault(self, tolerance: Tolerance) -> str | None:
        """What breaks the tolerance, or None.  Written so that a NaN breaks it."""
        if not self.excess <= 1:
            return f"max abs error {self.max_abs_error:.2e} is {self.excess:.3g} times what is allowed there"
        if not self.relative_norm <= tolerance.norm:
            return f"relative norm {self.relative_norm:.2e} > {tolerance.norm:g}"
        if not self.head_relative_norm <= tolerance.norm:
            return f"relative norm of head {self.worst_head} {self.head_relative_norm:.2e} > {tolerance.norm:g}"
        return None


def numerics(
    run: Callable[[Arrays], Arrays],
    workload: Workload,
    seed: int,
    tolerance: Tolerance = TOLERANCE,
    packed: bool = False,
) -> GateResult:
    """Run random inputs and every probe of the workload, and compare with its float64 reference.

    `packed` puts several probes into one run where the workload says how, for runs that are slow.

    `run` takes the inputs by name and returns the buffers by name afterwards, inputs included; outputs must have
    started as NaN, so that an unwritten element shows.  A TheodoliteError that it raises fails the gate.
    """
    maker = entry(workload.name)
    plain = (Probe("random", maker.inputs(workload, seed)), *maker.probes(workload, seed))
    probes = maker.packed_probes(workload, seed) if packed else plain
    worst = {"max_abs_error": 0.0, "relative_norm": 0.0, "head_relative_norm": 0.0}
    for done, probe in enumerate(probes):
        fault, differences = _judge(run, workload, probe, tolerance)
        for key in worst:
            worst[key] = max([worst[key], *(getattr(d, key) for d in differences)])
        if fault is not None:
            return GateResult(GATE, False, f"{probe.name}: {fault}", {**worst, "probes": done + 1})
    return GateResult(GATE, True, "", {**worst, "probes": len(probes)})


def _judge(
    run: Callable[[Arrays], Arrays], workload: Workload, probe: Probe, tolerance: Tolerance
) -> tuple[str | None, list[Difference]]:
    kept = {name: np.asarray(array).tobytes() for name, array in probe.arrays.items()}
    reference = entry(workload.name).reference(workload, probe.arrays)  # before the run, which may spoil the inputs
    given = {name: array.copy() for name, array in probe.arrays.items()}
    try:
        got = run(given)
    except TheodoliteError as error:
        return str(error), []
    for name, before in kept.items():
        if name not in got:
            return f"input {name} was not handed back, so that nothing says it is unchanged", []
        if before != np.asarray(got[name]).tobytes() or before != given[name].tobytes():
            return f"input {name} was changed", []
    differences: list[Difference] = []
    for name in workload.outputs:
        fault = _malformed(name, got, workload)
        if fault is not None:
            return fault, differences
        differences.append(difference(got[name], reference[name], tolerance))
        fault = differences[-1].fault(tolerance)
        if fault is not None:
            return f"{name}: {fault}", differences
    return None, differences


def _malformed(name: str, got: Arrays, workload: Workload) -> str | None:
    if name not in got:
        return f"output {name} is missing"
    array, wanted = got[name], np.dtype(NUMPY[workload.tensor(name).dtype])
    if array.shape != workload.shape(name) or array.dtype != wanted:
        return f"output {name} is {array.dtype} {list(array.shape)}, not {wanted} {list(workload.shape(name))}"
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        return f"{len(bad)} elements of {name} are unwritten or not finite, the first at {bad[0].tolist()}"
    return None


def difference(got: npt.NDArray[Any], reference: npt.NDArray[np.float64], tolerance: Tolerance) -> Difference:
    """Compare one output [..., rows, columns] with its reference of that shape; leading dimensions are heads."""
    error = np.abs(got.astype(np.float64) - reference)
    allowed = tolerance.absolute + tolerance.relative * np.abs(reference)
    heads = (-1, math.prod(reference.shape[-2:]))
    norms = _ratio(np.linalg.norm(error.reshape(heads), axis=1), np.linalg.norm(reference.reshape(heads), axis=1))
    whole = _ratio(np.linalg.norm(error.reshape(1, -1), axis=1), np.linalg.norm(reference.reshape(1, -1), axis=1))
    worst = int(np.argmax(norms))
    return Difference(float(error.max()), float((error / allowed).max()), float(whole[0]), float(norms[worst]), worst)


def _ratio(error: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """error / reference, where 0 / 0 is 0 and anything else over 0 is as large as JSON can say."""
    zero = reference == 0
    return np.where(zero, np.where(error == 0, 0.0, np.finfo(np.float64).max), error / np.where(zero, 1.0, reference))
