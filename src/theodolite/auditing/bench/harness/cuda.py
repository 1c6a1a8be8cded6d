"""The one call of CUDA's driver that torch has no word for."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def clear_persisting_l2() -> str:
    """Turn every persisting line of this context's L2 back into a normal one; what came of it, in words.

    A flush does not evict persisting lines: a candidate that set some would run warm ever after.
    """
    try:
        code = int(_driver().cuCtxResetPersistingL2Cache())
    except (OSError, AttributeError) as error:
        return f"not cleared: {error}"
    return "cleared" if code == 0 else f"not cleared: CUDA error {code}"
