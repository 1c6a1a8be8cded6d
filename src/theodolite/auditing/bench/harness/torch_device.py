"""The device: torch for memory, events and graphs, triton for kernels.  It decides nothing.

A graph replays raw pointers: every tensor and compiled kernel that a graph touches stays in this object for good.
Inputs and outputs are shared by the candidates of a case; workspaces lie in one arena that all candidates share.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import compile as compiling
from . import cuda, sdpa
from .device import Batch, Binary
from .energy import energy_counter, energy_of
from .environment import VISIBLE
from .isolated import Drift
from .spec import Bundle, Candidate, Kernel, SpecError, carve, launch_arguments

WHERE = "cuda"
DTYPES = {"fp16": "float16", "fp32": "float32", "i32": "int32"}
POISON = 255  # bytes of ones: a NaN in fp16 and fp32, -1 in i32
WARM_REPLAYS = 3
HOLD_EVERY = 16  # slots: the host may take longer over one than the GPU, and must not fall behind
TICK_SAMPLES = 200
TICK_CHUNK = 20  # so few that the queue is still held when the last one is enqueued


class Case:
    """Inputs as drawn, the buffers that the kernels see, and outputs by name."""

    def __init__(self, torch: Any, workload: str, folder: Path) -> None:
        self.sizes = sdpa.parse(workload)
        self.drawn = {n: sdpa.read_input(torch, self.sizes, n, folder, WHERE) for n in sdpa.INPUTS}
        self.buffers = {n: t.clone() for n, t in self.drawn.items()}
        self.buffers[sdpa.OUTPUT] = torch.empty(self.sizes.shape(sdpa.OUTPUT), dtype=torch.float16, device=WHERE)


class TorchDevice:
    """See `device.Device`."""

    def __init__(self, bundle: Bundle) -> None:
        import torch
        import triton

        self.torch, self.triton, self.bundle = torch, triton, bundle
        self.cases: dict[str, Case] = {}
        self.arena: Any = None
        self.tensors: dict[str, dict[str, Any]] = {}
        self.compiled: dict[str, dict[str, Any]] = {}
        self.graphs: dict[str, Any] = {}
        self.events: dict[str, tuple[Any, Any]] = {}
        self.kept: list[Any] = []

    def compiler(self) -> str:
        return str(self.triton.__version__)

    def gpus(self) -> int:
        return int(self.torch.cuda.device_count())

    def choose(self, gpu: int, of: int) -> None:
        if of > 1:
            visible = [n for n in os.environ.get(VISIBLE, "").split(",") if n] or [str(n) for n in range(of)]
            os.environ[VISIBLE] = visible[gpu]

    def prepare_compiles(self) -> None:
        compiling.warm(self.bundle.config.target)

    def compile(self, candidate: Candidate, kernel: Kernel) -> Binary:
        return compiling.binary(self._built(candidate, kernel))

    def _built(self, candidate: Candidate, kernel: Kernel) -> Any:
        return compiling.built(self.bundle.folder / candidate.path, kernel, self.bundle.config.target)

    def write_inputs(self, workload: str, seed: int, folder: Path) -> str:
        return sdpa.write_inputs(workload, seed, folder)

    def open(self) -> dict[str, Any]:
        """CUDA of this process: flush buffer and scratch allocator; TF32 off for the reference."""
        torch = self.torch
        torch.cuda.init()
        torch.set_float32_matmul_precision("highest")
        found = torch.cuda.get_device_properties(0)
        capability = torch.cuda.get_device_capability(0)
        l2_bytes = int(getattr(found, "L2_cache_size", 0)) or 128 << 20
        flush_bytes = int(self.bundle.config.protocol["flush_l2_multiple"] * l2_bytes)
        self.flush_buffer = torch.empty(flush_bytes // 4, dtype=torch.float32, device=WHERE)
        self.triton.set_allocator(self._scratch)
        return {
            "name": torch.cuda.get_device_name(0),
            "uuid": str(getattr(found, "uuid", "")),
            "target": ("cuda", 10 * capability[0] + capability[1], 32),
            "sms": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "l2_bytes": l2_bytes,
            "flush_bytes": flush_bytes,
            "persisting_l2": cuda.clear_persisting_l2(),
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda),
            "triton": str(self.triton.__version__),
        }

    def _scratch(self, size: int, alignment: int, stream: int | None) -> Any:
        """Global scratch of a kernel that asks for it, kept for the graphs that will read it again."""
        self.kept.append(self.torch.empty(size, dtype=self.torch.uint8, device=WHERE))
        return self.kept[-1]

    def reserve(self, candidates: Sequence[Candidate]) -> None:
        size = max((carve(c.of_role("workspace"))[1] for c in candidates), default=0)
        self.arena = self.torch.empty(max(size, 1), dtype=self.torch.uint8, device=WHERE)

    def bind(self, candidate: Candidate, workload: str, inputs: Path, binaries: Mapping[str, Binary]) -> dict[str, Any]:
        tensors = self._buffers(candidate, workload, inputs)
        figures: dict[str, Any] = {}
        self.compiled[candidate.id] = {}
        for kernel in candidate.kernels:
            built = self._built(candidate, kernel)
            if compiling.binary(built) != binaries[kernel.name]:
                raise Drift(f"{kernel.name} is not the binary that was compiled first")
            built[(1, 1, 1)]  # loads it: too much shared memory shows here
            self.compiled[candidate.id][kernel.name] = built
            figures |= {f"{kernel.name} {k}": int(getattr(built, k)) for k in ("n_regs", "n_spills")}
            figures[f"{kernel.name} shared_bytes"] = int(built.metadata.shared)
        self.tensors[candidate.id] = tensors
        return figures

    def _buffers(self, candidate: Candidate, workload: str, inputs: Path) -> dict[str, Any]:
        """The candidate's tensors by name: its case's inputs and output, and its workspaces in the arena."""
        if candidate.case not in self.cases:
            self.cases[candidate.case] = Case(self.torch, workload, inputs)
        case, tensors = self.cases[candidate.case], {}
        for buffer in (*candidate.of_role("input"), *candidate.of_role("output")):
            tensor = case.buffers.get(buffer.name)
            if tensor is None or tuple(tensor.shape) != buffer.shape or buffer.dtype != "fp16":
                raise SpecError(f"buffer {buffer.name} {buffer.dtype}{list(buffer.shape)} is none of {workload}")
            tensors[buffer.name] = tensor
        return tensors | self._workspaces(candidate)

    def _workspaces(self, candidate: Candidate) -> dict[str, Any]:
        buffers = candidate.of_role("workspace")
        offsets, _ = carve(buffers)
        found = {}
        for b in buffers:
            piece = self.arena[offsets[b.name] : offsets[b.name] + b.size_bytes]
            found[b.name] = piece.view(getattr(self.torch, DTYPES[b.dtype])).view(b.shape)
        return found

    def _launch(self, candidate: Candidate) -> None:
        stream = self.torch.cuda.current_stream().cuda_stream
        for launch in candidate.launches:
            kernel = candidate.kernel(launch.kernel)
            arguments = launch_arguments(kernel, launch, self.tensors[candidate.id])
            self.compiled[candidate.id][kernel.name][launch.grid](*arguments, stream=stream)

    def _poison(self, candidate: Candidate) -> None:
        for buffer in (*candidate.of_role("output"), *candidate.of_role("workspace")):
            self.tensors[candidate.id][buffer.name].view(-1).view(self.torch.uint8).fill_(POISON)

    def input_sets(self, candidate: Candidate) -> Sequence[str]:
        return sdpa.input_sets(self.cases[candidate.case].sizes)

    def run_once(self, candidate: Candidate, input_set: str) -> None:
        case = self.cases[candidate.case]
        case.buffers["Q"].copy_(sdpa.queries(self.torch, case.sizes, case.drawn, input_set))
        self._poison(candidate)
        self._launch(candidate)
        self.torch.cuda.synchronize()

    def compare(self, candidate: Candidate, input_set: str) -> dict[str, float]:
        case = self.cases[candidate.case]
        expected = {**case.drawn, "Q": sdpa.queries(self.torch, case.sizes, case.drawn, input_set)}
        figures = sdpa.compare(
            self.torch, case.sizes, expected["Q"], expected["K"], expected["V"], case.buffers[sdpa.OUTPUT]
        )
        changed = [n for n, t in expected.items() if not self.torch.equal(t, case.buffers[n])]
        return {**figures, "inputs_changed": len(changed)}

    def cold_run(self, candidate: Candidate) -> float:
        torch = self.torch
        start, end = self._event(), self._event()
        self._hold()
        self._flush()
        start.record()
        self._launch(candidate)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def _fill(self, elements: int) -> None:
        self.flush_buffer[:elements].fill_(1.0)

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)

    def _hold(self) -> None:
        """Keep the GPU busy while the queue fills behind it."""
        self.torch.cuda._sleep(int(self.bundle.config.protocol["hold_cycles"]))

    def _flush(self) -> None:
        self.flush_buffer.fill_(1.0)

    def capture(self, slot: str, candidate: Candidate) -> None:
        torch = self.torch
        self._launch(candidate)  # modules must be loaded before a capture
        torch.cuda.synchronize()
        graph = self._graph()
        with torch.cuda.graph(graph):
            self._launch(candidate)
        if hasattr(graph, "instantiate"):
            graph.instantiate()
        self.graphs[slot] = graph
        self.events[slot] = (self._event(), self._event())
        for _ in range(WARM_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    def _graph(self) -> Any:
        """One that can be instantiated again, where torch knows how."""
        try:
            return self.torch.cuda.CUDAGraph(keep_graph=True)
        except TypeError:  # torch before 2.8
            return self.torch.cuda.CUDAGraph()

    def renew(self, slots: Sequence[str]) -> None:
        for slot in slots:
            if hasattr(self.graphs[slot], "instantiate"):
                self.graphs[slot].instantiate()
                self.graphs[slot].replay()  # the first replay uploads it, which takes a fraction of a microsecond

    def prepare_rounds(self) -> dict[str, Any]:
        """Tick samples from fills of many sizes, and what an empty pair and a graph of one tiny kernel read."""
        torch = self.torch
        tiny = torch.zeros(1, device=WHERE)
        tiny.fill_(0.0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tiny.fill_(0.0)
        self.kept += [tiny, graph]
        empty = self._elapsed([lambda: None] * TICK_SAMPLES)
        single = self._elapsed([graph.replay] * TICK_SAMPLES)
        sizes = [1 + 4099 * i for i in range(TICK_SAMPLES)]
        varied = self._elapsed([functools.partial(self._fill, n) for n in sizes])
        return {
            "tick_samples_s": empty + single + varied,
            "event_pair_s": sorted(empty)[len(empty) // 2],
            "one_kernel_graph_s": sorted(single)[len(single) // 2],
        }

    def _elapsed(self, works: Sequence[Callable[[], Any]]) -> list[float]:
        """Seconds of each piece of work behind a full queue."""
        pairs = [(self._event(), self._event()) for _ in works]
        for number, ((start, end), work) in enumerate(zip(pairs, works, strict=True)):
            if number % TICK_CHUNK == 0:
                self._hold()
            start.record()
            work()
            end.record()
        self.torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) * 1e-3 for start, end in pairs]

    def batch(self, slots: Sequence[str], mark: Callable[[str], object] | None, warm: bool = False) -> Batch:
        torch, dry = self.torch, []
        cuda.clear_persisting_l2()
        for number, slot in enumerate(slots):
            if mark is not None:
                mark(slot)
            if mark is not None or number % HOLD_EVERY == 0:
                self._hold()
            start, end = self.events[slot]
            if warm:
                self.graphs[slot].replay()
            else:
                self._flush()
            start.record()
            self.graphs[slot].replay()
            if start.query():  # the GPU was there before the graph was: the host's delay is in the sample
                dry.append(slot)
            end.record()
            if mark is not None:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        samples = {s: float(self.events[s][0].elapsed_time(self.events[s][1])) * 1e-3 for s in slots}
        return Batch(samples, tuple(dry))

    def replay(self, candidate: Candidate) -> None:
        case = self.cases[candidate.case]
        case.buffers["Q"].copy_(case.drawn["Q"])
        self._poison(candidate)
        self.graphs[candidate.id].replay()
        self.torch.cuda.synchronize()

    def energy(self, slot: str, seconds: float) -> dict[str, float]:
        graph, torch = self.graphs[slot], self.torch
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        return energy_of(graph.replay, torch.cuda.synchronize, energy_counter(uuid), seconds)
