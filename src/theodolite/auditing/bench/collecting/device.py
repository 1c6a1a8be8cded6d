"""What a grid asks of a device besides `harness.device.Device`.  `torch_grid.TorchGrid` is the real one."""

from __future__ import annotations

from typing import Protocol

from ..harness.device import Binary, Device
from .grid import Unit


class GridDevice(Device, Protocol):
    def compile_unit(self, unit: Unit) -> Binary:
        """Compile ahead of time into the cache that the workers load from."""

    def usable(self) -> bool:
        """Whether the GPU still answers after an error in this process."""
