"""What the protocol asks of a device.  `torch_device.TorchDevice` is the real one.

A device object is made before any process is forked and touches no GPU until `open`.  Slots are names: a candidate's
id, or that id with "#again".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .spec import Candidate, Kernel


@dataclass(frozen=True)
class Binary:
    """What a compile made: SHA-256 of the TTIR (no locations) and of the cubin, shared memory of a CTA in bytes."""

    ttir: str
    cubin: str
    shared_bytes: int


@dataclass(frozen=True)
class Batch:
    """One round's times in seconds by slot, and the slots whose queue ran empty before their first kernel."""

    samples_s: Mapping[str, float]
    dry: tuple[str, ...]


class Device(Protocol):
    def compiler(self) -> str:
        """The version of the compiler, without touching a GPU."""

    def gpus(self) -> int:
        """How many GPUs there are to see; called in a process of its own."""

    def choose(self, gpu: int, of: int) -> None:
        """Make that GPU the only one of this process; before `open`."""

    def prepare_compiles(self) -> None:
        """Work out once what every compile needs to know, before processes are forked."""

    def compile(self, candidate: Candidate, kernel: Kernel) -> Binary:
        """Compile ahead of time into the cache that later processes load from."""

    def write_inputs(self, workload: str, seed: int, folder: Path) -> str:
        """Draw a case's inputs into files and return the generator's name."""

    def open(self) -> dict[str, Any]:
        """Initialise the GPU in this process; what it is, in words and numbers ("uuid": which one)."""

    def reserve(self, candidates: Sequence[Candidate]) -> None:
        """One arena that holds the workspaces of any one of them; before the first `bind`."""

    def bind(self, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary]) -> dict[str, Any]:
        """Buffers and loaded kernels; registers, spills and shared memory by kernel."""

    def input_sets(self, candidate: Candidate) -> Sequence[str]:
        """The names of the input sets, "random" first."""

    def run_once(self, candidate: Candidate, input_set: str) -> None:
        """Fill the inputs, poison outputs and workspaces, launch everything once, wait."""

    def compare(self, candidate: Candidate, input_set: str) -> dict[str, float]:
        """non_finite, elementwise (worst, 1 is the tolerance), relative_norm, relative_norm_head, inputs_changed."""

    def cold_run(self, candidate: Candidate) -> float:
        """Seconds of one run with a cold L2."""

    def capture(self, slot: str, candidate: Candidate) -> None:
        """A graph of all the launches, under that slot's name, ready to replay."""

    def prepare_rounds(self) -> dict[str, Any]:
        """The event tick's samples and what an empty measurement takes (`*_s`), after all captures."""

    def renew(self, slots: Sequence[str]) -> None:
        """A new instance of each slot's graph, uploaded."""

    def batch(self, slots: Sequence[str], mark: Callable[[str], object] | None, warm: bool = False) -> Batch:
        """Replay the slots in order, each behind a flush of the L2 or, `warm`, behind a replay of its own.

        With `mark`, each slot is named before it runs and waited for after, so that a death has a culprit.
        """

    def energy(self, slot: str, seconds: float) -> dict[str, float]:
        """Replay a slot for at least so long: "joules" a replay, the GPU's idle power subtracted, and its parts."""

    def replay(self, candidate: Candidate) -> None:
        """Poison, replay the candidate's graph once, wait."""
