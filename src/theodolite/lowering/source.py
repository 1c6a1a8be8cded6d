"""A program's source text to live kernels, once for the compiler and once for the interpreter.

Triton reads a kernel's source back from its file, so the text is written to a real one for as long as it is loaded.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from theodolite.errors import KernelError
from theodolite.lowering.plan import KernelSpec, Program

# One name for every program: the names of helper functions in the IR contain it.
MODULE = "theodolite_program"


@contextmanager
def loaded(program: Program) -> Iterator[dict[str, Any]]:
    """The program's @triton.jit functions by kernel name, with parameters that agree with their KernelSpec.

    Whether they compile or interpret was decided by TRITON_INTERPRET when triton was imported.  Raises KernelError
    where the source does not load, lacks a kernel, or declares other parameters than the record does.
    """
    with tempfile.TemporaryDirectory(prefix="theodolite-") as folder:
        path = Path(folder) / f"{MODULE}.py"
        path.write_text(program.source)
        spec = importlib.util.spec_from_file_location(MODULE, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the text may raise anything at all
            raise KernelError(f"the program's source does not load: {one_line(error)}") from error
        yield {k.name: _function(module, k) for k in program.kernels}


def _function(module: Any, kernel: KernelSpec) -> Any:
    function = getattr(module, kernel.name, None)
    names = getattr(function, "arg_names", None)
    if names is None:
        raise KernelError(f"the program's source has no @triton.jit function {kernel.name!r}")
    declared = [p.name for p in kernel.params]
    if list(names) != declared:
        raise KernelError(f"{kernel.name}: the source takes {', '.join(names)}; the record says {', '.join(declared)}")
    unset = {p.name for p in kernel.params if p.type == "constexpr"} ^ set(kernel.constexprs)
    if unset:
        raise KernelError(f"{kernel.name}: {', '.join(sorted(unset))}: each constexpr needs one value and a parameter")
    return function


def one_line(error: BaseException) -> str:
    """An exception's class and message on one line, the innermost cause's where there is a chain.

    A long message keeps its start and its end: Triton's says where, shows the source, and ends with what is wrong.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    if len(text) > 400:
        text = f"{text[:80]} ... {text[-300:]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
