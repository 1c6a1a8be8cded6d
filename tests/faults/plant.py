"""A run of good candidates with every kind of bad one among them, frozen like any other run.

Each bad candidate is a good one with a kernel more that does the harm.  The late ones behave in their isolated runs,
where their workspace is as it was poisoned, and do harm once others have written to the arena that all share.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from theodolite import pipeline
from theodolite.auditing.bench.bundle import Protocol, write_bundle
from theodolite.auditing.manifest import Candidate, GateResult, Manifest
from theodolite.gpus import gpu as gpu_named
from theodolite.lowering.plan import Buffer, KernelSpec, Launch, Param
from theodolite.mapper.skeletons import mapping_of
from theodolite.records import dump, write
from theodolite.workloads import workload as workload_named

CASE, GPU = "sdpa:A", "h200"
GOOD = (
    "flash:bm=32,bn=32,split=1,warps=4,stages=2",
    "flash:bm=32,bn=32,split=2,warps=4,stages=2",
    "pipeline:qk.bm=64,qk.bn=64,qk.bk=32,qk.split=1,sm.rows=16,av.bm=64,av.bs=32,av.split=1,warps=4,stages=2",
    "pipeline:qk.bm=32,qk.bn=32,qk.bk=64,qk.split=2,sm.rows=8,av.bm=32,av.bs=64,av.split=2,warps=4,stages=3",
)
PLANTED = (GateResult("planted", True, "not gated: bad on purpose, to see what harm it does to others", {}),)
PROTOCOL = Protocol(rounds=4000, isolated_limit_s=4.0, hang_limit_s=2.5)
HUNGRY_ELEMENTS = 45_000_000_000

ILLEGAL = """

@triton.jit
def illegal(O):
    x = tl.load(O)
    tl.store(O + ((tl.program_id(0).to(tl.int64) + 1) << 44), x)
"""
HANG = """

@triton.jit
def hang(Q):
    x = tl.load(Q, volatile=True)
    while x == x:
        x = tl.load(Q, volatile=True)
"""
HUNGRY = """

@triton.jit
def hungry(W):
    tl.store(W, 1)
"""
SHARED = """

@triton.jit
def shared(Q, K, W):
    i = tl.arange(0, 256)
    at = i[:, None] * 256 + i[None, :]
    y = tl.dot(tl.load(Q + at), tl.load(K + at))
    tl.store(W + at, y.to(tl.int32))
"""
LATE_ILLEGAL = """

@triton.jit
def late_illegal(O, W):
    w = tl.load(W, volatile=True)
    far = ((w != -1) & (w != 0)).to(tl.int64) << 44
    x = tl.load(O)
    tl.store(O + far, x)
"""
LATE_HANG = """

@triton.jit
def late_hang(W):
    w = tl.load(W, volatile=True)
    while (w != -1) & (w != 0):
        w = tl.load(W, volatile=True)
"""
W = "W"
# name: (source, its pointers, elements of its workspace W, warps, the status that it must end with)
BAD = {
    "illegal": (ILLEGAL, {"O": "fp16"}, 0, 4, "illegal-access"),
    "hang": (HANG, {"Q": "fp16"}, 0, 4, "timeout"),
    "hungry": (HUNGRY, {W: "i32"}, HUNGRY_ELEMENTS, 4, "out-of-memory"),
    "shared": (SHARED, {"Q": "fp16", "K": "fp16", W: "i32"}, 256 * 256, 8, "shared-memory"),
    "late_illegal": (LATE_ILLEGAL, {"O": "fp16", W: "i32"}, 1, 4, "died"),
    "late_hang": (LATE_HANG, {W: "i32"}, 1, 4, "died"),
}


def good(schedule: str) -> Candidate:
    """A candidate that was not gated here, and that nothing is wrong with."""
    workload, gpu = workload_named(CASE), gpu_named(GPU)
    asked = pipeline.Asked(CASE, workload, mapping_of(schedule, workload, gpu), ("by hand",))
    return replace(pipeline.lower_one(asked, gpu), gates=PLANTED)


def bad(name: str) -> Candidate:
    """The first good candidate, and after its kernel the one that does harm."""
    base = good(GOOD[0])
    text, pointers, elements, warps, _ = BAD[name]
    kernel = KernelSpec(name, tuple(Param(p, f"*{t}") for p, t in pointers.items()), {}, (), warps, 2)
    launch = Launch(name, (1, 1, 1), {p: p for p in pointers}, tuple(pointers), tuple(p for p in pointers if p != "Q"))
    buffers = (Buffer(W, "i32", (elements,), "workspace"),) if elements else ()
    old = base.program
    program = replace(
        old,
        source=old.source + text,
        kernels=(*old.kernels, kernel),
        buffers=(*old.buffers, *buffers),
        launches=(*old.launches, launch),
    )
    return replace(base, id=f"bad-{name}", program=program)


def plant(directory: Path) -> Manifest:
    """Freeze the run into a new directory: good and bad ones in turn, the bad ones first."""
    goods, bads = [good(s) for s in GOOD], [bad(n) for n in BAD]
    mixed = [c for pair in zip(bads, [*goods, *[None] * len(bads)], strict=False) for c in pair if c is not None]
    manifest = pipeline.freeze(mixed, gpu_named(GPU), 0, {})
    write_bundle(manifest, directory / "bundle", protocol=PROTOCOL)
    write(directory / "manifest.json", dump(manifest))
    return manifest


if __name__ == "__main__":
    plant(Path(sys.argv[1]))
