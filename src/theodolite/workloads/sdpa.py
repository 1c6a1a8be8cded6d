"""Scaled dot-product attention, as a cascade:

    S[b,h,l,s] = sum_e Q[b,h,l,e] K[b,h,s,e] / sqrt(e)     where s <= l + (s_len - l_len), if causal
    M[b,h,l]   = max_s S
    P[b,h,l,s] = exp(S - M)
    D[b,h,l]   = sum_s P
    A[b,h,l,f] = sum_s P V[b,h,s,f]
    O[b,h,l,f] = A / D

AccelForge's view folds {M,P,D} into one elementwise Einsum, Weights, and {A,O} into O, and drops the domain.
The four named shapes are the published audit's cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from theodolite.errors import WorkloadError, one_of
from theodolite.ir.workload import Access, Einsum, Inequality, Tensor, View, ViewEinsum, Workload
from theodolite.workloads.workload_entry import Arrays, Probe, WorkloadEntry

NAMED = {
    "A": "b=1,h=8,l=128,s=128,d=64",
    "B": "b=1,h=16,l=512,s=512,d=64,causal",
    "C": "b=1,h=32,l=1024,s=1024,d=128,causal",
    "D": "b=8,h=32,l=512,s=512,d=128,causal",
}
SPOTLIGHTS = 8
LARGEST = 2**53  # points of the largest Einsum: counts are whole numbers of 64 bits, and padding multiplies them
SIZE_KEYS = ("b", "h", "l", "s", "d")
ACCELFORGE_VIEW = View(
    "accelforge",
    (
        ViewEinsum("Scores", ("S",), "S", ("Q", "K")),
        ViewEinsum("Weights", ("M", "P", "D"), "P", ("S",)),
        ViewEinsum("O", ("A", "O"), "O", ("P", "V")),
    ),
    alias={"A": "O"},
)


def sdpa(b: int, h: int, l: int, s: int, d: int, causal: bool = False, e: int | None = None) -> Workload:  # noqa: E741
    """Attention of `l` queries over `s` keys, `b` x `h` heads of width `d`; causal is aligned at the end of both.

    `e` is the width of queries and keys where it is not that of values.

    Raises WorkloadError where a size is below 1 or a causal query would see no key (l > s).
    """
    sizes = {"b": b, "h": h, "l": l, "s": s, "d": d}
    width = d if e is None else e
    if width != d:
        sizes["e"] = width
    for key, size in sizes.items():
        if size < 1:
            raise WorkloadError(f"sdpa: {key}={size} is below 1")
    points = b * h * l * s * max(d, width)
    if points > LARGEST:
        raise WorkloadError(f"sdpa: b*h*l*s*d is {float(points):.2g}; counts are exact up to {float(LARGEST):.2g}")
    if causal and l > s:
        raise WorkloadError(f"sdpa: causal with l={l} > s={s} leaves the first {l - s} queries without a key")
    name = "sdpa:" + ",".join(f"{k}={v}" for k, v in sizes.items()) + (",causal" if causal else "")
    domain = (Inequality((("s", 1), ("l", -1)), s - l),) if causal else ()
    return Workload(
        name=name,
        ranks={"b": b, "h": h, "l": l, "s": s, "e": width, "f": d},
        tensors=_tensors(),
        einsums=_cascade(1 / math.sqrt(width), domain),
        inputs=("Q", "K", "V"),
        outputs=("O",),
        views=(ACCELFORGE_VIEW,),
        labels={"S": "qk", "D": "softmax", "A": "av", "O": "av"},
    )


def _tensors() -> tuple[Tensor, ...]:
    fp16 = {"Q": "bhle", "K": "bhse", "V": "bhsf", "O": "bhlf"}
    fp32 = {"S": "bhls", "M": "bhl", "P": "bhls", "D": "bhl", "A": "bhlf"}
    return tuple(Tensor(n, tuple(r), "fp16") for n, r in fp16.items()) + tuple(
        Tensor(n, tuple(r), "fp32") for n, r in fp32.items()
    )


def _cascade(scale: float, domain: tuple[Inequality, ...]) -> tuple[Einsum, ...]:
    ranks = {t.name: t.ranks for t in _tensors()}

    def at(tensor: str) -> Access:
        return Access(tensor, ranks[tensor])

    return (
        Einsum(at("S"), (at("Q"), at("K")), "mul", "sum", scale, domain),
        Einsum(at("M"), (at("S"),), "copy", "max", domain=domain),
        Einsum(at("P"), (at("S"), at("M")), "exp_sub", domain=domain),
        Einsum(at("D"), (at("P"),), "copy", "sum", domain=domain),
        Einsum(at("A"), (at("P"), at("V")), "mul", "sum", domain=domain),
        Einsum(at("O"), (at("A"), at("D")), "div"),
    )


def parse(text: str) -> Workload:
    """`C`, or `b=1,h=32,l=1024,s=1024,d=128[,e=192][,causal]` with every size given once."""
    causal, sizes = False, {}
    for part in NAMED.get(text, text).split(","):
        key, equals, value = part.partition("=")
        if key == "causal":
            if equals or causal:
                raise WorkloadError("sdpa: causal is given once, and takes no value")
            causal = True
            continue
        if key not in (*SIZE_KEYS, "e"):
            raise one_of("rank or case of sdpa", key, (*SIZE_KEYS, "e", "causal", *NAMED))
        if key in sizes:
            raise WorkloadError(f"sdpa: {key} is given twice")
        if not (value.isascii() and value.isdecimal()):
            raise WorkloadError(f"sdpa: {key}={value!r} is not a whole number")
        sizes[key] = int(value)
    missing = [k for k in SIZE_KEYS if k not in sizes]
    if missing:
        raise WorkloadError(f"sdpa: {', '.join(missing)} missing; write sdpa:b=1,h=8,l=128,s=128,d=64[,causal]")
    return sdpa(**sizes, causal=causal)


def resize(workload: Workload, sizes: Mapping[str, int]) -> Workload:
    """The same attention at other sizes of its ranks (those left out keep theirs)."""
    ranks = {**workload.ranks, **sizes}
    causal = bool(workload.einsum("S").domain)
    return sdpa(ranks["b"], ranks["h"], ranks["l"], ranks["s"], ranks["f"], causal, ranks["e"])


def inputs(workload: Workload, seed: int) -> dict[str, npt.NDArray[np.float16]]:
    """Q, K, V drawn in that order from NumPy's Philox generator: standard normal, rounded to fp16."""
    generator = np.random.Generator(np.random.Philox(seed))
    return {t: generator.standard_normal(workload.shape(t)).astype(np.float16) for t in workload.inputs}


def visible(workload: Workload) -> npt.NDArray[np.bool_]:
    """[l, s]: whether a query may see a key."""
    rows, keys = workload.ranks["l"], workload.ranks["s"]
    seen = np.ones((rows, keys), bool)
    return np.tril(seen, keys - rows) if workload.einsum("S").domain else seen


def reference(workload: Workload, arrays: Arrays) -> dict[str, npt.NDArray[np.float64]]:
    """O[b,h,l,f] in float64, a softmax whole row by whole row."""
    q, k, v = (np.asarray(arrays[t], np.float64) for t in ("Q", "K", "V"))
    scores = q @ np.swapaxes(k, -1, -2) * workload.einsum("S").scale
    scores = np.where(visible(workload), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"O": (weights / weights.sum(-1, keepdims=True)) @ v}


def probes(workload: Workload, seed: int) -> tuple[Probe, ...]:
    """Input sets beyond plain random ones.

    uniform: every score is 0, so each visible key weighs the same and a missing or doubled one moves the mean.
    spotlight: query l looks almost only at key l + offset (mod s), so that a missing key changes a whole row.  Over
    the offsets every key is looked at by some query, unless that would take more than SPOTLIGHTS probes (as in
    decoding, where queries are few): then they are spread evenly, first and last keys included.  Under a causal mask
    the offset of the diagonal shows a last visible key that is masked, and the offset beyond it a first hidden key
    that is not.
    """
    base = inputs(workload, seed)
    rows, keys = workload.ranks["l"], workload.ranks["s"]
    if workload.einsum("S").domain:
        offsets = [*_spread(range(0, keys - rows, rows)), keys - rows, keys - rows + 1]
    else:
        offsets = _spread([*range(0, max(1, keys - rows), rows), max(0, keys - rows)])
    out = [Probe("uniform", {**base, "Q": np.zeros_like(base["Q"])})]
    for offset in offsets:
        target = (np.arange(rows) + offset) % keys
        # 2 |k|^2 / sqrt(e) = 16 at e = 64: e^16 outweighs thousands of keys with scores near 0
        out.append(Probe(f"spotlight+{offset}", {**base, "Q": (2 * base["K"][:, :, target, :]).astype(np.float16)}))
    return tuple(out)


def packed_probes(workload: Workload, seed: int) -> tuple[Probe, ...]:
    """Random inputs and the probes with one a head: heads do not mix, so that a few input sets show what all would.

    Sets are as few as the heads allow; the last may repeat a probe.  A set is named after its probes.
    """
    waiting = [Probe("random", inputs(workload, seed)), *probes(workload, seed)]
    batch, heads = workload.ranks["b"], workload.ranks["h"]
    out = []
    while waiting:
        now, waiting = waiting[: batch * heads], waiting[batch * heads :]
        arrays = {t: np.array(a) for t, a in now[0].arrays.items()}
        for head in range(batch * heads):
            at = divmod(head, heads)
            for tensor, array in arrays.items():
                array[at] = now[head % len(now)].arrays[tensor][at]
        out.append(Probe("|".join(p.name for p in now), arrays))
    return tuple(out)


def _spread(offsets: Sequence[int]) -> list[int]:
    """At most SPOTLIGHTS of the offsets, evenly spread, the first and the last among them."""
    distinct = list(dict.fromkeys(offsets))
    count = min(SPOTLIGHTS, len(distinct))
    return [distinct[i * (len(distinct) - 1) // max(1, count - 1)] for i in range(count)]


ENTRY = WorkloadEntry("sdpa", NAMED, parse, inputs, reference, probes, packed_probes, resize)
