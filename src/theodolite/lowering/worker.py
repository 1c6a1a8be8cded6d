"""A child process that holds triton, answers requests one by one, and can be killed.

A compile may hang for minutes inside native code, and an interpreted kernel may loop or crash: neither can be stopped
from within.  Messages are pickles with their length in front, over the child's standard input and output.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from theodolite.errors import KernelError
from theodolite.lowering.source import one_line

HEADER = struct.Struct("<Q")
START_LIMIT_S = 120.0
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class Worker:
    """One child that calls `handler` ("module:function") with what `ask` sends, and is started anew after a death."""

    def __init__(self, handler: str, environment: Mapping[str, str]) -> None:
        self._handler = handler
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._sender: threading.Thread | None = None

    def ask(self, request: Any, limit_s: float) -> Any:
        """The handler's answer.

        Raises KernelError with the handler's own error, or where the child dies or takes longer than `limit_s`
        seconds (its start-up not counted); the next `ask` then starts a new child.
        """
        process = self._started()
        try:
            # sent from a thread: a child that never reads must not block us past the limit
            self._sender = threading.Thread(target=_send_quietly, args=(process.stdin, request), daemon=True)
            self._sender.start()
            kind, value = self._answer(process, limit_s)
        except (
            BaseException
        ):  # an interrupt too leaves an answer under way, which the next `ask` would take for its own
            self.close()
            raise
        if kind == "error":
            raise KernelError(value)
        return value

    def close(self) -> None:
        """Kill the child, and whatever it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._sender is not None:  # writes to a pipe that nobody reads any more end at once
            self._sender.join()
        for stream in (process.stdin, process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        path = os.pathsep.join(filter(None, (PACKAGE_ROOT, self._environment.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from theodolite.lowering.worker import serve; serve({self._handler!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**self._environment, "PYTHONPATH": path},
            start_new_session=True,  # its own process group, so that a kill takes the assembler that it runs along
        )
        try:
            self._answer(self._process, START_LIMIT_S)
        except BaseException:
            self.close()
            raise
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], limit_s: float) -> tuple[str, Any]:
        assert process.stdout is not None
        deadline_s = time.monotonic() + limit_s
        (length,) = HEADER.unpack(self._read(process, HEADER.size, deadline_s, limit_s))
        answer: tuple[str, Any] = pickle.loads(self._read(process, length, deadline_s, limit_s))
        return answer

    def _read(self, process: subprocess.Popen[bytes], count: int, deadline_s: float, limit_s: float) -> bytes:
        assert process.stdout is not None
        handle, data = process.stdout.fileno(), bytearray()
        while len(data) < count:
            ready, _, _ = select.select([handle], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise KernelError(f"not done within {limit_s:g} s: the worker was killed")
            chunk = os.read(handle, min(count - len(data), 1 << 20))
            if not chunk:
                raise KernelError(f"the worker died: {self._epitaph(process)}")
            data += chunk
        return bytes(data)

    def _epitaph(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{reason}; {last[:300]}" if last else reason


def environment(extra: Mapping[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """This process's environment without triton's own switches (but `keep`), so that they decide nothing unseen."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_") or k in keep}
    return {**mine, **extra}


def serve(handler: str) -> None:
    """The child's main loop: import triton, say so, answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a kernel or the compiler prints must not land among the answers
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # The reader outlives a hang in native code: when the parent is gone, the child goes, and its children.
    threading.Thread(target=_receive, args=(requests,), daemon=True).start()
    module, _, name = handler.partition(":")
    importlib.import_module("triton")
    function = getattr(importlib.import_module(module), name)
    _send(answers, ("ready", None))
    while True:
        request = requests.get()
        try:
            answer = ("ok", function(request))
        except KernelError as error:
            answer = ("error", str(error))
        except Exception as error:  # triton raises many kinds, and each is this request's answer
            answer = ("error", one_line(error))
        _send(answers, answer)


def _receive(requests: queue.SimpleQueue[Any]) -> None:
    source = os.fdopen(os.dup(0), "rb")
    while len(header := source.read(HEADER.size)) == HEADER.size:
        (length,) = HEADER.unpack(header)
        data = source.read(length)
        if len(data) < length:
            break
        requests.put(pickle.loads(data))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _send(stream: Any, message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    view = memoryview(HEADER.pack(len(data)) + data)
    while view:
        view = view[stream.write(view) :]


def _send_quietly(stream: Any, message: Any) -> None:
    with contextlib.suppress(OSError, ValueError):  # a dead child shows itself where its answer is read
        _send(stream, message)
