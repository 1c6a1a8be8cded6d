"""Attention at full size: inputs, probes and the fp32 reference, in torch.

The same definitions as the workload's own file, restated so that a bundle needs nothing else:
O = softmax(Q K^T / sqrt(e)) V, causal where s <= l + (s_len - l_len); Q, K, V drawn in that order.  Q and K are
e wide, V and O are d; e is d where a name leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INPUTS = ("Q", "K", "V")
OUTPUT = "O"
SPOTLIGHTS = 8
SCORE_BYTES = 1 << 28  # of fp32 scores held at a time by the reference
ATOL = RTOL = 2e-2


@dataclass(frozen=True)
class Sizes:
    b: int
    h: int
    l: int  # noqa: E741
    s: int
    d: int
    e: int
    causal: bool

    def shape(self, tensor: str) -> tuple[int, int, int, int]:
        rows = self.s if tensor in ("K", "V") else self.l
        return (self.b, self.h, rows, self.e if tensor in ("Q", "K") else self.d)


def parse(workload: str) -> Sizes:
    """`sdpa:b=1,h=8,l=128,s=128,d=64[,e=32][,causal]`; ValueError for anything else."""
    kind, _, text = workload.partition(":")
    parts = text.split(",")
    sizes = dict(p.split("=", 1) for p in parts if "=" in p)
    flags = [p for p in parts if "=" not in p]
    sizes.setdefault("e", sizes.get("d", ""))
    if kind != "sdpa" or sorted(sizes) != ["b", "d", "e", "h", "l", "s"] or flags not in ([], ["causal"]):
        raise ValueError(f"no reference for workload {workload!r}")
    return Sizes(**{k: int(v) for k, v in sizes.items()}, causal=bool(flags))


def write_inputs(workload: str, seed: int, folder: Path) -> str:
    """Q, K, V as raw fp16 files: NumPy's Philox by seed, or torch's own generator where there is no NumPy."""
    sizes = parse(workload)
    try:
        import numpy as np
    except ImportError:
        return _write_torch(sizes, seed, folder)
    generator = np.random.Generator(np.random.Philox(seed))
    for name in INPUTS:
        (folder / name).write_bytes(generator.standard_normal(sizes.shape(name)).astype(np.float16).tobytes())
    return "numpy.Philox"


def _write_torch(sizes: Sizes, seed: int, folder: Path) -> str:
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name in INPUTS:
        count = math.prod(sizes.shape(name))
        drawn = torch.randn(count, generator=generator).to(torch.float16)
        torch.from_file(str(folder / name), shared=True, size=count, dtype=torch.float16).copy_(drawn)
    return "torch.randn"


def read_input(torch: Any, sizes: Sizes, name: str, folder: Path, device: str) -> Any:
    """One input as drawn, [b, h, rows, width] fp16 on the device."""
    raw = bytearray((folder / name).read_bytes())
    return torch.frombuffer(raw, dtype=torch.float16).reshape(sizes.shape(name)).to(device)


def input_sets(sizes: Sizes) -> list[str]:
    """ "random", "uniform" and "spotlight+<offset>", by name as the workload's own file has them."""
    rows, keys = sizes.l, sizes.s
    if sizes.causal:
        offsets = [*_spread(range(0, keys - rows, rows)), keys - rows, keys - rows + 1]
    else:
        offsets = _spread([*range(0, max(1, keys - rows), rows), max(0, keys - rows)])
    return ["random", "uniform", *(f"spotlight+{offset}" for offset in offsets)]


def _spread(offsets: Sequence[int]) -> list[int]:
    """At most SPOTLIGHTS of them, evenly spread, both ends among them."""
    distinct = list(dict.fromkeys(offsets))
    count = min(SPOTLIGHTS, len(distinct))
    return [distinct[i * (len(distinct) - 1) // max(1, count - 1)] for i in range(count)]


def queries(torch: Any, sizes: Sizes, drawn: Mapping[str, Any], name: str) -> Any:
    """Q of an input set; K and V are the drawn ones in all of them."""
    if name == "random":
        return drawn["Q"]
    if name == "uniform":
        return torch.zeros_like(drawn["Q"])
    kind, _, offset = name.partition("+")
    if kind != "spotlight":
        raise ValueError(f"no input set {name!r}")
    target = (torch.arange(sizes.l, device=drawn["K"].device) + int(offset)) % sizes.s
    return (drawn["K"][:, :, target, :] * 2).contiguous()


def references(torch: Any, sizes: Sizes, q: Any, k: Any, v: Any) -> Iterator[tuple[int, Any]]:
    """(first head, fp32 reference [some heads, l, d]), a few heads at a time, over all b * h of them."""
    heads = sizes.b * sizes.h
    step = max(1, SCORE_BYTES // (4 * sizes.l * sizes.s))
    flat = [t.reshape(heads, -1, t.shape[-1]) for t in (q, k, v)]
    hidden = None
    if sizes.causal:
        seen = torch.ones(sizes.l, sizes.s, dtype=torch.bool, device=q.device)
        hidden = ~torch.tril(seen, diagonal=sizes.s - sizes.l)
    for first in range(0, heads, step):
        qc, kc, vc = (t[first : first + step].float() for t in flat)
        scores = torch.bmm(qc, kc.transpose(1, 2)) / math.sqrt(sizes.e)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        yield first, torch.bmm(torch.softmax(scores, dim=-1), vc)


def errors(torch: Any, out: Any, reference: Any) -> tuple[float, int, Any, Any]:
    """(worst elementwise, how many are not finite, squared error by head, squared norm by head), all [heads, l, d]."""
    found = out.float()
    difference = found - reference
    non_finite = int((~torch.isfinite(found)).sum().item())
    worst = float((difference.abs() / (ATOL + RTOL * reference.abs())).max().item())
    return worst, non_finite, difference.double().square().sum(dim=(1, 2)), reference.double().square().sum(dim=(1, 2))


def figures(pieces: Sequence[tuple[float, int, Any, Any]], torch: Any) -> dict[str, float]:
    """The figures of the numerics gate from the errors of all heads."""
    worst = 0.0
    for piece in pieces:
        worst = max(worst, piece[0])
    error, norm = torch.cat([p[2] for p in pieces]), torch.cat([p[3] for p in pieces])
    return {
        "non_finite": sum(p[1] for p in pieces),
        "elementwise": worst,
        "relative_norm": math.sqrt(float((error.sum() / norm.sum()).item())),
        "relative_norm_head": math.sqrt(float((error / norm).max().item())),
    }


def compare(torch: Any, sizes: Sizes, q: Any, k: Any, v: Any, out: Any) -> dict[str, float]:
    """The figures of the numerics gate for an output [b, h, l, d], against fp32, a few heads at a time.

    elementwise is the greatest |out - ref| / (2e-2 + 2e-2 |ref|); the norms are relative, overall and the worst head's.
    """
    flat, pieces = out.reshape(sizes.b * sizes.h, -1, sizes.d), []
    for first, reference in references(torch, sizes, q, k, v):
        pieces.append(errors(torch, flat[first : first + len(reference)], reference))
    return figures(pieces, torch)
