"""`lower`: a realised tree -> Program; `supported` says what cannot be lowered and why; `twin` shrinks a program."""

from __future__ import annotations

from dataclasses import replace

from theodolite.errors import TheodoliteError, Unsupported
from theodolite.ir.interp import buffer_shape
from theodolite.ir.scope import grid_counts
from theodolite.ir.steps import Home, KernelSteps, kernel_steps
from theodolite.ir.text import show
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.lowering.plan import Buffer, Launch, Program
from theodolite.lowering.triton_text import PrintedKernel, print_kernel

MAX_TILE_ELEMENTS = 2**20  # Triton refuses a tensor with more
MAX_GRID_X = 2**31 - 1


def supported(tree: Tree, workload: Workload) -> str | None:
    """None for a tree that `lower` can print; else one line with the rule that stops it."""
    try:
        lower(tree, workload)
    except TheodoliteError as error:
        return str(error)
    return None


def lower(tree: Tree, workload: Workload) -> Program:
    """Print a realised tree as a program.

    Raises Unsupported where no rule prints a step, a tile's side is no power of two, a tile is larger than Triton
    allows, or a head's offsets pass 32 bits.
    """
    kernels = kernel_steps(tree, workload)
    printed = [print_kernel(k, workload, tree.decisions) for k in kernels]
    for kernel in printed:
        _check_tiles(kernel)
    buffers = _buffers(kernels, tree, workload)
    launches = tuple(_launch(k, p, tree, workload) for k, p in zip(kernels, printed, strict=True))
    source = _source(tree, printed, launches, buffers)
    return Program(workload.name, source, tuple(p.spec for p in printed), buffers, launches)


def twin(program: Program, small: Program) -> Program:
    """`program`'s text and constexprs with the buffers and launches of `small`: the same mapping at smaller sizes.

    Only the marks of what 16 divides are the small program's, since they say something of its own arguments.
    Raises Unsupported where the two do not print the same kernels, since then one would not stand for the other.
    """
    if kernels_text(program.source) != kernels_text(small.source):
        raise Unsupported("the twin's kernels differ from the program's: sizes leak into the text")
    kernels = tuple(
        replace(full, divisible_by_16=own.divisible_by_16)
        for full, own in zip(program.kernels, small.kernels, strict=True)
    )
    return replace(small, source=program.source, kernels=kernels)


def kernels_text(source: str) -> str:
    """The kernels of a program's file, without the comments above and the host function below."""
    return source[source.index(IMPORTS) : source.index(HOST_MARK)]


IMPORTS = "import triton\nimport triton.language as tl\n"
HOST_MARK = "\n\ndef run("


def _check_tiles(kernel: PrintedKernel) -> None:
    blocks = {n: v for n, v in kernel.spec.constexprs.items() if n.startswith("BLOCK")}
    for name, size in blocks.items():
        if size & (size - 1):
            raise Unsupported(f"kernel {kernel.spec.name}: {name}={size} is no power of two, as Triton's tiles are")
    largest = max(kernel.tile_elements, default=0)
    if largest > MAX_TILE_ELEMENTS:
        raise Unsupported(f"kernel {kernel.spec.name}: a tile of {largest} elements; Triton allows {MAX_TILE_ELEMENTS}")


def _buffers(kernels: tuple[KernelSteps, ...], tree: Tree, workload: Workload) -> tuple[Buffer, ...]:
    homes: dict[str, Home] = {h.buffer: h for k in kernels for h in k.homes}
    for tensor in (*workload.inputs, *workload.outputs):
        t = workload.tensor(tensor)
        homes.setdefault(tensor, Home(t.name, t.dtype, t.ranks, t.name))

    def role(name: str) -> str:
        return "input" if name in workload.inputs else "output" if name in workload.outputs else "workspace"

    ends = (*workload.inputs, *workload.outputs)
    order = sorted(homes, key=lambda n: ends.index(n) if n in ends else len(ends))
    return tuple(
        Buffer(n, homes[n].dtype, buffer_shape(homes[n], workload, tree.decisions), role(n))  # type: ignore[arg-type]
        for n in order
    )


def _launch(kernel: KernelSteps, printed: PrintedKernel, tree: Tree, workload: Workload) -> Launch:
    programs = 1
    for count in grid_counts(kernel, workload, tree.decisions):
        programs *= int(count)
    if programs > MAX_GRID_X:
        raise Unsupported(f"kernel {kernel.name} needs {programs} programs; a grid holds {MAX_GRID_X}")
    args = {
        p.name: p.name if p.type.startswith("*") else printed.numbers[p.name]
        for p in printed.spec.params
        if p.type != "constexpr"
    }
    reads = tuple(sorted({h.buffer for h in kernel.loads}))
    writes = tuple(sorted({h.buffer for h in kernel.stores}))
    return Launch(kernel.name, (programs, 1, 1), args, reads, writes)


# ---- the file ----------------------------------------------------------------------------------------------------
def _source(tree: Tree, printed: list[PrintedKernel], launches: tuple[Launch, ...], buffers: tuple[Buffer, ...]) -> str:
    head = "".join(f"# {line}".rstrip() + "\n" for line in show(tree).splitlines())
    kernels = "\n\n".join(p.text for p in printed)
    return f"{head}{IMPORTS}\n\n{kernels}{_host(printed, launches, buffers)}"


def _host(printed: list[PrintedKernel], launches: tuple[Launch, ...], buffers: tuple[Buffer, ...]) -> str:
    """A function that allocates what the kernels need and launches them, for whoever keeps the file."""
    torch_dtype = {"fp16": "torch.float16", "fp32": "torch.float32"}
    inputs = [b.name for b in buffers if b.role == "input"]
    outputs = [b.name for b in buffers if b.role == "output"]
    lines = [f"def run({', '.join(inputs)}):", "    import torch", ""]
    for b in buffers:
        if b.role != "input":
            sizes = ", ".join(map(str, b.shape))
            lines.append(
                f"    {b.name} = torch.empty(({sizes}), dtype={torch_dtype[b.dtype]}, device={inputs[0]}.device)"
            )
    for kernel, launch in zip(printed, launches, strict=True):
        spec = kernel.spec
        args = [
            f"{p.name}={spec.constexprs[p.name]}" if p.type == "constexpr" else str(launch.args[p.name])
            for p in spec.params
        ]
        options = f"num_warps={spec.num_warps}, num_stages={spec.num_stages}"
        lines.append(f"    {spec.name}[{launch.grid}]({', '.join(args)}, {options})")
    lines.append(f"    return {', '.join(outputs)}")
    return "\n\n" + "\n".join(lines) + "\n"
