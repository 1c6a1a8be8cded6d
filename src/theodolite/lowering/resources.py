"""What a compiled kernel takes of an SM, read from its cubin and PTX.  Nothing here is measured."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass

from theodolite.errors import KernelError
from theodolite.lowering.compile import Compiled

USAGE = re.compile(r"\bREG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
WGMMA = re.compile(r"\bwgmma\.mma_async\b")
MMA_SYNC = re.compile(r"\bmma\.sync\b")
CP_ASYNC = re.compile(r"\bcp\.async\.c[ag]\b")
TOOL_LIMIT_S = 60.0


@dataclass(frozen=True)
class Resources:
    """Registers a thread, bytes of stack and local memory a thread (where spills go), shared bytes a CTA.

    `wgmma`, `mma_sync` and `cp_async` count instructions in the PTX, not executions.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    wgmma: int
    mma_sync: int
    cp_async: int


def resources(compiled: Compiled) -> Resources:
    """Read one kernel's resources; KernelError where the bundled cuobjdump does not report them.

    Shared memory comes from the compiler: cuobjdump's figure leaves the dynamic part out.
    """
    found = USAGE.findall(_usage(compiled.cubin))
    if len(found) != 1:
        raise KernelError(f"{compiled.kernel}: cuobjdump reports {len(found)} kernels in its cubin, not one")
    registers, stack, local = (int(x) for x in found[0])
    return Resources(
        registers=registers,
        stack_bytes=stack + local,
        shared_bytes=compiled.shared_bytes,
        wgmma=len(WGMMA.findall(compiled.ptx)),
        mma_sync=len(MMA_SYNC.findall(compiled.ptx)),
        cp_async=len(CP_ASYNC.findall(compiled.ptx)),
    )


def _usage(cubin: bytes) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=True)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            raise KernelError(f"cuobjdump -res-usage failed: {error}") from error
    return done.stdout
