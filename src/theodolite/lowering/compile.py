"""Kernels ahead of time, without a GPU and without torch.

`ttir` runs the front end and the TTIR passes in this process (about 0.1 s a kernel): enough for ids and for reading a
kernel back.  `compile_program` and `compile_many` go on to PTX and cubin in worker processes that are killed past a
limit, since some tiles keep the compiler busy for minutes.

The specialisation comes from the KernelSpec alone: what it lists is divisible by 16, nothing is specialised on 1.
"""

from __future__ import annotations

import os
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite.errors import KernelError
from theodolite.lowering.plan import KernelSpec, Program
from theodolite.lowering.source import loaded, one_line
from theodolite.lowering.worker import Worker, environment

Target = tuple[str, int, int]
HOPPER: Target = ("cuda", 90, 32)
HANDLER = "theodolite.lowering.compile:compile_here"
SOURCE_LINE = re.compile(r'loc\(".*":\d+:\d+')
_ENVIRONMENT_LOCK = threading.Lock()


@dataclass(frozen=True)
class Compiled:
    """One kernel: its TTIR as `ttir` gives it, PTX, cubin, and the shared memory of a CTA in bytes."""

    kernel: str
    ttir: str
    ptx: str
    cubin: bytes
    shared_bytes: int


def ttir(program: Program, target: Target = HOPPER) -> dict[str, str]:
    """TTIR by kernel name, stripped of locations and normalised in whitespace.

    Raises KernelError where the source does not load or a kernel does not pass the front end.
    """
    out = {}
    with _switched(), loaded(program) as functions:
        for kernel in program.kernels:
            try:
                text = str(_ttir_module(functions[kernel.name], kernel, target))
            except KernelError:
                raise
            except Exception as error:  # the front end raises many kinds; all mean that this kernel is wrong
                raise KernelError(f"{kernel.name}: {one_line(error)}") from error
            if SOURCE_LINE.search(text):
                raise KernelError(f"{kernel.name}: the compiler ignores TRITON_DISABLE_LINE_INFO; use triton 3.6.0")
            out[kernel.name] = normalise(text)
    return out


def compile_program(program: Program, target: Target = HOPPER, limit_s: float = 60.0) -> dict[str, Compiled]:
    """Every kernel of a program; KernelError for one that does not compile, or not all within `limit_s` seconds."""
    (result,) = compile_many([program], target, limit_s, workers=1)
    if isinstance(result, str):
        raise KernelError(result)
    return result


def compile_many(
    programs: Sequence[Program],
    target: Target = HOPPER,
    limit_s: float = 60.0,
    workers: int | None = None,
    on_done: Callable[[int, dict[str, Compiled] | str], None] | None = None,
) -> list[dict[str, Compiled] | str]:
    """Compile in parallel; an answer a program, in the order given: its kernels, or what went wrong.

    `limit_s` is for each program.  `on_done(position, answer)` is called in this thread as answers come.
    """
    count = max(1, min(workers or os.cpu_count() or 1, len(programs)))
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    pool = [Worker(HANDLER, compile_environment()) for _ in range(count)]
    for worker in pool:
        idle.put(worker)

    def one(program: Program) -> dict[str, Compiled] | str:
        worker = idle.get()
        try:
            answer: dict[str, Compiled] = worker.ask((program, target), limit_s)
            return answer
        except KernelError as error:
            return str(error)
        finally:
            idle.put(worker)

    answers: list[dict[str, Compiled] | str] = ["not compiled"] * len(programs)
    executor = ThreadPoolExecutor(count)
    try:
        futures = {executor.submit(one, program): i for i, program in enumerate(programs)}
        for future in as_completed(futures):
            answers[futures[future]] = future.result()
            if on_done is not None:
                on_done(futures[future], future.result())
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for _ in range(2):  # after an interrupt the first round unblocks the threads that wait for an answer
            for worker in pool:
                worker.close()
            executor.shutdown(wait=True)
    return answers


def compile_here(request: tuple[Program, Target]) -> dict[str, Compiled]:
    """The worker's side: all kernels of one program, in this process, under no limit."""
    program, target = request
    with loaded(program) as functions:
        return {k.name: _compiled(functions[k.name], k, target) for k in program.kernels}


def _compiled(function: Any, kernel: KernelSpec, target: Target) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget

    try:
        built = triton.compile(_source(function, kernel), target=GPUTarget(*target), options=_options(kernel))
    except Exception as error:
        raise KernelError(f"{kernel.name}: {one_line(error)}") from error
    asm = built.asm
    return Compiled(kernel.name, normalise(asm["ttir"]), asm["ptx"], asm["cubin"], int(built.metadata.shared))


def _ttir_module(function: Any, kernel: KernelSpec, target: Target) -> Any:
    """The first stage of triton.compile, which offers no way to stop there."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    gpu = GPUTarget(*target)
    source, backend, context = _source(function, kernel), make_backend(gpu), ir.context()
    options = backend.parse_options(_options(kernel))
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(options)
    module = source.make_ir(gpu, options, generators, backend.get_module_map(), context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return stages["ttir"](module, {})


def _source(function: Any, kernel: KernelSpec) -> Any:
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    if not isinstance(function, JITFunction):
        raise KernelError(f"{kernel.name} is no compilable kernel: unset TRITON_INTERPRET and use @triton.jit")
    attributes = {(i,): [["tt.divisibility", 16]] for i in kernel.divisible_by_16}
    signature = {p.name: p.type for p in kernel.params}
    return ASTSource(fn=function, signature=signature, constexprs=dict(kernel.constexprs), attrs=attributes)


def _options(kernel: KernelSpec) -> dict[str, int]:
    return {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}


def normalise(text: str) -> str:
    """Printed IR without locations, trailing blanks and empty lines.

    A location may hold a quoted path with any characters, so its end is found by walking, not by a pattern.
    """
    lines = (_without_locations(line).rstrip() for line in text.splitlines() if not line.startswith("#loc"))
    return "\n".join(line for line in lines if line.strip())


def _without_locations(line: str) -> str:
    kept, at = [], 0
    while (start := line.find(" loc(", at)) >= 0:
        kept.append(line[at:start])
        at = _closing(line, start + len(" loc"))
    return "".join([*kept, line[at:]])


def _closing(line: str, opening: int) -> int:
    """The position behind the parenthesis that closes the one at `opening`; quoted ones do not count."""
    depth, quoted, at = 0, False, opening
    while at < len(line):
        char = line[at]
        if char == "\\" and quoted:
            at += 1
        elif char == '"':
            quoted = not quoted
        elif not quoted:
            depth += (char == "(") - (char == ")")
            if depth == 0:
                return at + 1
        at += 1
    raise KernelError(f"a location in the IR does not end: {line.strip()[:80]}")


@contextmanager
def _switched() -> Iterator[None]:
    """Line information off in this process for a while, one thread at a time: with it, the IR's value names depend on
    the source's."""
    with _ENVIRONMENT_LOCK:
        before = os.environ.get("TRITON_DISABLE_LINE_INFO")
        os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ["TRITON_DISABLE_LINE_INFO"]
            else:
                os.environ["TRITON_DISABLE_LINE_INFO"] = before


def compile_environment() -> dict[str, str]:
    """What a compile worker sees: none of triton's switches but the cache folder and line information off."""
    return environment({"TRITON_DISABLE_LINE_INFO": "1", "TRITON_CACHE_DIR": str(cache_folder())})


def cache_folder() -> Path:
    """TRITON_CACHE_DIR, or a folder in the system's temporary one that nobody else can write to."""
    if given := os.environ.get("TRITON_CACHE_DIR"):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / f"theodolite-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise KernelError(f"{folder} is not private: remove it, or set TRITON_CACHE_DIR")
    return folder
