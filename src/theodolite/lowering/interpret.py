"""Run a program's launches in order through Triton's interpreter, on NumPy arrays, without a GPU and without torch.

The interpreter is chosen when triton is imported, so it lives in a worker process of its own, kept from run to run.
It accepts what hardware refuses (small dots, any grid): a run here does not replace compiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from theodolite.errors import KernelError
from theodolite.lowering.plan import Buffer, Launch, Program
from theodolite.lowering.source import loaded, one_line
from theodolite.lowering.worker import Worker, environment

Arrays = Mapping[str, npt.NDArray[Any]]
HANDLER = "theodolite.lowering.interpret:interpret_here"
DTYPES: dict[str, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32, "i32": np.int32}
GUARD_BYTES = 1 << 14  # before and behind each buffer


class Interpreter:
    """`with Interpreter() as run: buffers = run(program, {"Q": q, "K": k, "V": v})`.

    The worker starts with the first run (about a second) and is started anew after a crash or a time-out.
    It is for one thread at a time.
    """

    def __init__(self) -> None:
        # one thread: tiles are small, and waking others for each dot costs more than they save
        self._worker = Worker(HANDLER, environment({"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}))

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._worker.close()

    def __call__(self, program: Program, arrays: Arrays, limit_s: float = 60.0) -> dict[str, npt.NDArray[Any]]:
        """Every buffer after the last launch, in its declared shape: inputs as they are then, outputs, workspaces.

        `arrays` holds the inputs, in the shapes and dtypes of the program's buffers.  Outputs and workspaces start as
        NaN (the least integer for i32).  Raises KernelError for an input that does not fit, and for a kernel that
        raises, crashes, writes outside a buffer, or is not done within `limit_s` seconds; only this run is lost.
        """
        given = {b.name: _fitting(b, arrays) for b in program.buffers if b.role == "input"}
        answer: dict[str, npt.NDArray[Any]] = self._worker.ask((program, given), limit_s)
        return answer


def _fitting(buffer: Buffer, arrays: Arrays) -> npt.NDArray[Any]:
    if buffer.name not in arrays:
        raise KernelError(f"input {buffer.name} is missing")
    array = np.ascontiguousarray(arrays[buffer.name])
    wanted = np.dtype(DTYPES[buffer.dtype])
    if array.shape != buffer.shape or array.dtype != wanted:
        raise KernelError(
            f"input {buffer.name} is {array.dtype} {list(array.shape)}; the program wants {wanted} {list(buffer.shape)}"
        )
    return array


def interpret_here(request: tuple[Program, dict[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """The worker's side: one program in this process, under no limit."""
    program, given = request
    memory = {b.name: _Memory(b, given.get(b.name)) for b in program.buffers}
    with loaded(program) as functions, np.errstate(all="ignore"):
        for launch in program.launches:
            _patch_once_a_launch()
            try:
                functions[launch.kernel][launch.grid](*_arguments(program, launch, memory))
            except KernelError:
                raise
            except Exception as error:
                raise KernelError(f"{launch.kernel}, interpreted: {one_line(error)}") from error
            for name, buffer in memory.items():
                if not buffer.guards_whole():
                    raise KernelError(f"{launch.kernel}, interpreted: writes outside of {name}")
    return {name: buffer.data for name, buffer in memory.items()}


def _patch_once_a_launch() -> None:
    """Let each device function (tl.sum, tl.max) patch the language once a launch.

    Triton's interpreter does so at every call, though nothing undoes it before the launch ends; with tiles of one row
    that is a sixth of all time.
    """
    from triton.runtime import interpreter

    patched: set[Any] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in patched:
            patched.add(self.fn)
            interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = call


def _arguments(program: Program, launch: Launch, memory: Mapping[str, _Memory]) -> list[Any]:
    kernel = program.kernel(launch.kernel)
    arguments: list[Any] = []
    for param in kernel.params:
        if param.type == "constexpr":
            arguments.append(kernel.constexprs[param.name])
        elif param.name not in launch.args:
            raise KernelError(f"{kernel.name}: the launch gives no {param.name}")
        else:
            value = launch.args[param.name]
            arguments.append(_Pointer(memory[value]) if isinstance(value, str) else value)
    return arguments


class _Memory:
    """A buffer between two guards.  All but inputs start poisoned; what reads a guard reads poison too."""

    def __init__(self, buffer: Buffer, given: npt.NDArray[Any] | None) -> None:
        dtype = np.dtype(DTYPES[buffer.dtype])
        self.dtype = buffer.dtype
        self._guard = GUARD_BYTES // dtype.itemsize
        self._all = np.full(buffer.elements + 2 * self._guard, poison(dtype), dtype)
        self._clean = self._all[: self._guard].tobytes()
        self.data = self._all[self._guard : self._guard + buffer.elements].reshape(buffer.shape)
        if given is not None:
            self.data[...] = given

    def guards_whole(self) -> bool:
        return self._all[: self._guard].tobytes() == self._clean == self._all[-self._guard :].tobytes()


def poison(dtype: np.dtype[Any]) -> Any:
    """What unwritten memory holds."""
    return np.nan if dtype.kind == "f" else np.iinfo(dtype).min


class _Pointer:
    """The least that Triton's interpreter asks of a tensor.  It takes us for a device tensor and wants to copy to the
    host and back; we are on the host already, so those steps hand on the same memory."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.dtype = memory.dtype

    def data_ptr(self) -> int:
        return int(self.memory.data.ctypes.data)

    def untyped_storage(self) -> _Pointer:
        return self

    def cpu(self) -> _Pointer:
        return self

    def copy_(self, other: _Pointer) -> None:
        assert other.data_ptr() == self.data_ptr()

    def new_empty(self, *shape: int, device: str) -> _Pointer:
        return _Pointer(self.memory)

    def set_(self, storage: _Pointer, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        assert storage.data_ptr() == self.data_ptr()

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.memory.data.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.memory.data.itemsize for s in self.memory.data.strides)
