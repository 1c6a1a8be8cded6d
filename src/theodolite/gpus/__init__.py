"""GPUs by name.  A new one is one new file in this package that defines `GPU`; nothing else names it."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from theodolite.errors import TheodoliteError, one_of
from theodolite.gpus.gpu import Gpu


@cache
def known() -> dict[str, Gpu]:
    """Every GPU of the package by name, in the order of their files; TheodoliteError where two share a name."""
    found: dict[str, Gpu] = {}
    for module in pkgutil.iter_modules(__path__):
        record = getattr(import_module(f"{__name__}.{module.name}"), "GPU", None)
        if record is None:
            continue
        if record.name in found:
            raise TheodoliteError(f"two GPUs are called {record.name!r}: rename the one in gpus/{module.name}.py")
        found[record.name] = record
    return found


def gpu(name: str) -> Gpu:
    """The GPU of that name; UnknownName, which lists the known ones, for any other."""
    if name not in known():
        raise one_of("gpu", name, known())
    return known()[name]
