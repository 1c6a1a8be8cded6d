"""Which reductions a loop may carry, and how: the table of reduce-by-map homomorphisms.

A state is carried over a rank when a later block of that rank can be folded into it.  For

    M = max_s S            M' = max(M, max of the block)
    D = sum_s exp(S - M)   D' = D exp(M - M') + sum of the block
    A = sum_s exp(S - M) V A' = A exp(M - M') + product of the block

the update follows from the operators alone (Milakov and Gimelshein, arXiv 1805.02867), never from the tree.
Anything else raises: an unknown reduction is not silently treated as a sum.
"""

from __future__ import annotations

from typing import Literal

from theodolite.errors import RuleBroken
from theodolite.ir.workload import Einsum, Workload

Update = Literal["running max", "rescaled sum", "rescaled sum of products"]


def update_of(workload: Workload, name: str, rank: str) -> Update:
    """How the tensor `name` is carried over `rank`; RuleBroken where no homomorphism is known."""
    einsum = workload.einsum(name)
    if rank in einsum.reduced:
        if (einsum.map, einsum.reduce) == ("copy", "max"):
            return "running max"
        weights = [workload.einsum(a.tensor) for a in einsum.inputs if _is_weight(workload, a.tensor, rank)]
        if einsum.reduce == "sum" and len(weights) == 1:
            if einsum.map == "copy":
                return "rescaled sum"
            if einsum.map == "mul":
                return "rescaled sum of products"
    raise RuleBroken(
        f"no known homomorphism carries {name} = {einsum.reduce or 'no reduction'} of {einsum.map} over {rank}: "
        "only a max, a sum of exponentials of differences, and a sum of their products can be carried"
    )


def _is_weight(workload: Workload, name: str, rank: str) -> bool:
    """Whether a tensor is exp(X - max_rank X)."""
    producers: list[Einsum] = [e for e in workload.einsums if e.name == name]
    if not producers or producers[0].map != "exp_sub":
        return False
    source, reference = (a.tensor for a in producers[0].inputs)
    maximum = workload.einsum(reference)
    return maximum.reduce == "max" and rank in maximum.reduced and maximum.inputs[0].tensor == source
