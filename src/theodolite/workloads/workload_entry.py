"""What a workload's file provides, and the arrays that go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.ir.workload import Workload

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Probe:
    """One set of input arrays with a name that says what it makes visible."""

    name: str
    arrays: Arrays


@dataclass(frozen=True)
class WorkloadEntry:
    """One kind of workload.

    parse: the text behind `kind:` -> Workload, raising WorkloadError or UnknownName
    inputs: (workload, seed) -> arrays of the workload's input shapes and dtypes
    reference: (workload, arrays) -> outputs by name, computed in float64 and returned as float64
    probes: (workload, seed) -> input sets that make a missing, doubled or misplaced key visible
    packed_probes: random inputs and the same probes, in as few sets as parts of the arrays that do not mix allow
    resize: (workload, rank sizes) -> the same workload at other sizes
    """

    kind: str
    named: Mapping[str, str]
    parse: Callable[[str], Workload]
    inputs: Callable[[Workload, int], dict[str, npt.NDArray[Any]]]
    reference: Callable[[Workload, Arrays], dict[str, npt.NDArray[np.float64]]]
    probes: Callable[[Workload, int], tuple[Probe, ...]]
    packed_probes: Callable[[Workload, int], tuple[Probe, ...]]
    resize: Callable[[Workload, Mapping[str, int]], Workload]
