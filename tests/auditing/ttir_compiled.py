"""Compile the kernels of `ttir_kernels.py`, as they stand or with a line changed, to TTIR for Hopper.  No GPU."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).with_name("ttir_kernels.py").read_text()
FOLDER = tempfile.TemporaryDirectory()  # goes when the process ends
POINTERS = {
    **dict.fromkeys(("Q", "K", "V", "O"), "*fp16"),
    **dict.fromkeys(("A_p", "M_p", "D_p", "S_p", "O_p", "X", "Y"), "*fp32"),
}


@lru_cache(maxsize=64)
def _module(source: str) -> ModuleType:
    """The source as a module of its own: Triton reads a kernel's text back from its file."""
    path = Path(FOLDER.name) / f"kernels_{_module.cache_info().misses}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(*edits: tuple[str, str], kernel: str) -> str:
    """The source with lines of one kernel changed; each edit must apply exactly once."""
    start = SOURCE.index(f"def {kernel}(")
    end = SOURCE.find("@triton.jit", start) % (len(SOURCE) + 1)
    text = SOURCE[start:end]
    for old, new in edits:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return SOURCE[:start] + text + SOURCE[end:]


def compiled(
    kernel: str, constexprs: Mapping[str, int], divisible: tuple[str, ...] = (), source: str = SOURCE, **types: str
) -> str:
    """The TTIR text of a kernel; `divisible` names the numbers marked as multiples of 16, `types` overrules a type."""
    return _compiled(kernel, tuple(constexprs.items()), divisible, source, tuple(types.items()))


@lru_cache(maxsize=64)
def _compiled(kernel, constexprs, divisible, source, types):
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    function = getattr(_module(source), kernel)
    names, fixed = function.arg_names, dict(constexprs)
    kinds = {n: "constexpr" if n in fixed else POINTERS.get(n, "fp32" if n == "scale" else "i32") for n in names}
    kinds.update(types)
    marked = [i for i, n in enumerate(names) if kinds[n].startswith("*") or n in divisible]
    attrs = {(i,): [["tt.divisibility", 16]] for i in marked}
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": 4, "num_stages": 2})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    asts = ASTSource(fn=function, signature=kinds, constexprs=fixed, attrs=attrs)
    codegen = backend.get_codegen_implementation(options)
    module = asts.make_ir(target, options, codegen, backend.get_module_map(), context)
    stages = {}
    backend.add_stages(stages, options, asts.language)
    return str(stages["ttir"](module, {}))
