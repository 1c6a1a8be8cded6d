"""The device of a grid: kernels are loaded once for all candidates that share them, references computed once a case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..harness import compile as compiling
from ..harness import sdpa
from ..harness.device import Binary
from ..harness.isolated import Drift
from ..harness.spec import Candidate
from ..harness.torch_device import TorchDevice
from .grid import Grid, Unit


class TorchGrid(TorchDevice):
    """See `device.GridDevice`."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.bundle)
        self.grid = grid
        self.shared: dict[int, tuple[Any, dict[str, int]]] = {}
        self.expected: dict[str, Any] = {}
        self.prepare_compiles()

    def compile_unit(self, unit: Unit) -> Binary:
        return compiling.binary(compiling.built(unit.path, unit.kernel, self.bundle.config.target))

    def bind(self, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary]) -> dict[str, Any]:
        tensors, figures = self._buffers(candidate, workload, inputs), dict[str, Any]()
        member, found = self.grid.members[candidate.id], dict[str, Any]()
        for kernel in candidate.kernels:
            unit = self.grid.units[member.unit_of[kernel.name]]
            found[kernel.name], own = self._shared(unit, binaries[kernel.name])
            figures |= {f"{kernel.name} {k}": v for k, v in own.items()}
        self.tensors[candidate.id], self.compiled[candidate.id] = tensors, found
        return figures

    def _shared(self, unit: Unit, binary: Binary) -> tuple[Any, dict[str, int]]:
        """The loaded kernel and its registers, spills and shared memory."""
        if unit.number not in self.shared:
            built = compiling.built(unit.path, unit.kernel, self.bundle.config.target)
            if compiling.cubin_hash(built) != binary.cubin:
                raise Drift(f"{unit.kernel.name} is not the binary that was compiled first")
            built[(1, 1, 1)]  # loads it: too much shared memory shows here
            figures = {k: int(getattr(built, k)) for k in ("n_regs", "n_spills")}
            self.shared[unit.number] = (built, figures | {"shared_bytes": int(built.metadata.shared)})
        return self.shared[unit.number]

    def compare(self, candidate: Candidate, input_set: str) -> dict[str, float]:
        """As in `harness`, with random inputs alone."""
        case = self.cases[candidate.case]
        if candidate.case not in self.expected:
            drawn = [case.drawn[n] for n in sdpa.INPUTS]
            pieces = [piece for _, piece in sdpa.references(self.torch, case.sizes, *drawn)]
            self.expected[candidate.case] = self.torch.cat(pieces)
        expected = self.expected[candidate.case]
        out = case.buffers[sdpa.OUTPUT].reshape(expected.shape)
        figures = sdpa.figures([sdpa.errors(self.torch, out, expected)], self.torch)
        changed = [n for n, t in case.drawn.items() if not self.torch.equal(t, case.buffers[n])]
        for name in changed:  # the next candidate shall not pay for it
            case.buffers[name].copy_(case.drawn[name])
        return {**figures, "inputs_changed": len(changed)}

    def usable(self) -> bool:
        """A broken context refuses everything from then on."""
        try:
            self.torch.cuda.synchronize()
            self.torch.zeros(1, device="cuda").add_(1).item()
        except Exception:  # whatever it says: the process is of no more use
            return False
        return True
