"""The grid bundle: a directory that measures thousands of candidates in minutes, with Python, torch and triton alone.

run.py, bench/         what runs there: `harness` and `collecting`
candidates.json.gz     this module's `GridManifest`: each kernel once, candidates that name theirs by number
frozen.json            SHA-256 of every other file, and what run.py calls

Many schedules share kernels (a merge, a softmax, every split of one flash tile).  A kernel is its own text, signature,
constexprs, marks, warps and stages; the text is the one function with the file's imports, so that two programs that
hold the same function share its compile.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from theodolite import records
from theodolite.auditing.bench.bundle import floor_s
from theodolite.auditing.ids import input_record, kernel_id, source_hash
from theodolite.errors import KernelError, RunError
from theodolite.gpus.gpu import Gpu
from theodolite.lowering.plan import Buffer, KernelSpec, Launch, Param, Program
from theodolite.workloads import workload as workload_named

FORMAT = 1
HERE = Path(__file__).parent
CANDIDATES = "candidates.json.gz"
NOT_CHECKED = "not checked"
Key = tuple[str, str]


@dataclass(frozen=True)
class GridProtocol:
    """How a grid bundle measures; as `bundle.Protocol` where the names agree.  Times in seconds.

    hang_limit_s: silence after which a worker is killed.  open_limit_s: the same until its GPU has answered once.
    hopeless: times the best of its workload beyond which a candidate gets no rounds.
    """

    rounds: int = 30
    least_rounds: int = 6
    slow_s: float = 5e-3
    compile_limit_s: float = 20.0
    hang_limit_s: float = 20.0
    open_limit_s: float = 90.0
    hold_cycles: int = 2_000_000
    flush_l2_multiple: float = 2.5
    sample_overhead_s: float = 200e-6
    relative_norm: float = 5e-3
    hopeless: float = 100.0
    unexplained_deaths: int = 3


@dataclass(frozen=True)
class GridKernel:
    """`text` is the number of its text; `ttir` the SHA-256 of its TTIR without locations."""

    text: int
    name: str
    params: tuple[Param, ...]
    constexprs: Mapping[str, int]
    divisible_by_16: tuple[int, ...]
    num_warps: int
    num_stages: int
    ttir: str


@dataclass(frozen=True)
class GridCandidate:
    """One schedule of one workload.  `kernels` are numbers; `source` is the SHA-256 of the whole program's text.

    `checked` says which gates it passed before the freeze, or that it was not checked.
    """

    id: str
    workload: str
    schedule: str
    kernel_id: str
    source: str
    checked: str
    kernels: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class GridManifest:
    """A frozen grid; `run_id` is a hash of the rest."""

    format: int
    run_id: str
    gpu: str
    target: tuple[str, int, int]
    triton: str
    seed: int
    protocol: Mapping[str, int | float]
    floors_s: Mapping[str, float]
    texts: tuple[str, ...]
    kernels: tuple[GridKernel, ...]
    candidates: tuple[GridCandidate, ...]


@dataclass(frozen=True)
class Lowered:
    """What goes in: a schedule of a workload (canonical name) and its program."""

    workload: str
    schedule: str
    program: Program
    checked: str = NOT_CHECKED


def own_text(source: str, kernel: str) -> str:
    """The kernel's function with the file's imports, without the program's comments, other kernels and `run`.

    Raises KernelError where there is no such function, or where it uses a function of the same file: those could
    differ between two programs.
    """
    tree = ast.parse(source)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    if kernel not in functions:
        raise KernelError(f"the program's source has no function {kernel!r}")
    used = {n.id for n in ast.walk(functions[kernel]) if isinstance(n, ast.Name)}
    if helpers := sorted(used & set(functions) - {kernel}):
        raise KernelError(f"{kernel} calls {', '.join(helpers)}: a kernel of a grid stands alone")
    imports = [ast.unparse(n) for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    node, lines = functions[kernel], source.splitlines()
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return "\n".join([*imports, "", "", *lines[first - 1 : node.end_lineno]]) + "\n"


def kernel_key(text: str, kernel: KernelSpec) -> Key:
    """Two kernels with one key are one compile."""
    return text, records.digest(kernel)


def unique_kernels(lowered: Sequence[Lowered]) -> dict[Key, Program]:
    """Each different kernel once, as a program of its own, in the order of first use."""
    found: dict[Key, Program] = {}
    for one in lowered:
        for kernel in one.program.kernels:
            text = own_text(one.program.source, kernel.name)
            found.setdefault(kernel_key(text, kernel), Program(one.workload, text, (kernel,), (), ()))
    return found


def freeze_grid(
    lowered: Sequence[Lowered],
    ttir: Mapping[Key, str],
    gpu: Gpu,
    triton: str,
    seed: int,
    protocol: GridProtocol | None = None,
) -> GridManifest:
    """The manifest, in the order given.  `ttir` is each unique kernel's text of `lowering.compile.ttir`."""
    texts = list(dict.fromkeys(text for text, _ in ttir))
    numbers = {key: n for n, key in enumerate(ttir)}
    kernels: dict[Key, GridKernel] = {}
    candidates = []
    inputs = {w: input_record(workload_named(w), seed) for w in dict.fromkeys(x.workload for x in lowered)}
    at = {text: n for n, text in enumerate(texts)}
    for one in lowered:
        keys = {k.name: kernel_key(own_text(one.program.source, k.name), k) for k in one.program.kernels}
        for kernel in one.program.kernels:
            key = keys[kernel.name]
            digest = hashlib.sha256(ttir[key].encode()).hexdigest()
            kernels.setdefault(key, GridKernel(at[key[0]], **vars(kernel), ttir=digest))
        ident, _ = kernel_id(one.program, {n: ttir[k] for n, k in keys.items()}, gpu.target, inputs[one.workload])
        candidates.append(_candidate(one, ident, tuple(numbers[k] for k in keys.values())))
    floors = {w: floor_s(workload_named(w), gpu) for w in inputs}
    ordered = tuple(kernels[k] for k in ttir)
    whole = GridManifest(
        FORMAT,
        "",
        gpu.name,
        gpu.target,
        triton,
        seed,
        asdict(protocol or GridProtocol()),
        floors,
        tuple(texts),
        ordered,
        tuple(candidates),
    )
    return replace(whole, run_id=records.digest(whole)[:12])


def _candidate(one: Lowered, ident: str, kernels: tuple[int, ...]) -> GridCandidate:
    label = hashlib.sha256(f"{one.workload} {one.schedule}".encode()).hexdigest()[:12]
    program = one.program
    source = source_hash(program.source)
    return GridCandidate(
        label, one.workload, one.schedule, ident, source, one.checked, kernels, program.buffers, program.launches
    )


def write_grid(manifest: GridManifest, directory: Path) -> None:
    """Write the bundle; RunError for a directory that holds something else."""
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty: give a new directory for the bundle")
    files = {"bench/__init__.py": b""}
    for part in ("harness", "collecting"):
        files |= {f"bench/{part}/{p.name}": p.read_bytes() for p in sorted((HERE / part).glob("*.py"))}
    files["run.py"] = (HERE / "run.py").read_bytes()
    files[CANDIDATES] = gzip.compress(records.canonical(manifest), mtime=0)
    for name, data in files.items():
        records.write(directory / name, data)
    digests = {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    frozen = {"run_id": manifest.run_id, "entry": "bench.collecting.main", "files": digests}
    records.write(directory / "frozen.json", records.dump(frozen))


def read_grid_manifest(path: Path) -> GridManifest:
    """candidates.json.gz of a bundle or beside a recording; RunError where it cannot be read or was changed."""
    try:
        manifest = records.load(GridManifest, gzip.decompress(path.read_bytes()), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if records.digest(replace(manifest, run_id=""))[:12] != manifest.run_id:
        raise RunError(f"{path} was changed: run_id {manifest.run_id} does not follow from it")
    return manifest
