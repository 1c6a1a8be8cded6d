"""Kernels from their frozen source to cubins, with triton alone and without a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .device import Binary
from .spec import Kernel, SpecError


def built(path: Path, kernel: Kernel, target: tuple[str, int, int]) -> Any:
    """The CompiledKernel: signature, specialisation and options from the manifest, nothing of its own."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(_module(path), kernel.name, None)
    names = [name for name, _ in kernel.params]
    if list(getattr(function, "arg_names", [])) != names:
        raise SpecError(f"{path.name} has no kernel {kernel.name}({', '.join(names)})")
    source = ASTSource(
        fn=function,
        signature=dict(kernel.params),
        constexprs=dict(kernel.constexprs),
        attrs={(i,): [["tt.divisibility", 16]] for i in kernel.divisible_by_16},
    )
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    return triton.compile(source, target=GPUTarget(*target), options=options)


def warm(target: tuple[str, int, int]) -> None:
    """Work out once, before processes are forked, what every compile needs to know: the cache's key for the compiler.

    Triton hashes its own library for it, which takes as long as compiling a small kernel.  These are no public names:
    where they are not found, each process does it for itself.
    """
    try:
        import triton.compiler.code_generator  # noqa: F401
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import make_backend
        from triton.runtime.cache import triton_key
    except ImportError:
        return
    triton_key()
    backend = make_backend(GPUTarget(*target))
    backend.hash()
    backend.parse_options({}).hash()


def binary(compiled: Any) -> Binary:
    """The hashes that are held against the frozen ones."""
    ttir = hashlib.sha256(without_locations(compiled.asm["ttir"]).encode()).hexdigest()
    return Binary(ttir, cubin_hash(compiled), int(compiled.metadata.shared))


def cubin_hash(compiled: Any) -> str:
    return hashlib.sha256(compiled.asm["cubin"]).hexdigest()


def _module(path: Path) -> Any:
    name = f"kernels_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def without_locations(text: str) -> str:
    """Printed IR less its locations, trailing blanks and empty lines: the form that is hashed into kernel_id."""
    lines = (_strip(line).rstrip() for line in text.splitlines() if not line.startswith("#loc"))
    return "\n".join(line for line in lines if line.strip())


def _strip(line: str) -> str:
    kept, rest = "", line
    while " loc(" in rest:
        before, rest = rest.split(" loc(", 1)
        kept += before
        rest = _after(rest)
    return kept + rest


def _after(text: str) -> str:
    """What follows the parenthesis that was open when `text` began; one inside quotes is part of a path."""
    depth, quoted, skip = 1, False, False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif quoted and char == "\\":
            skip = True
        elif char == '"':
            quoted = not quoted
        elif not quoted and char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return text[at + 1 :]
    raise SpecError(f"a location in the IR does not end: {text[:80]}")
