"""Theodolite: finds the best mapping of a cascade of Einsums on a GPU, writes its kernels, proves them, measures them,
and says in numbers whether the model's order holds.

    from theodolite import sdpa, gpu, map_workload, evaluate, realise, lower, audit

Neither torch nor triton is imported until a kernel is compiled or run.
"""

from theodolite.cost.model import evaluate, model
from theodolite.errors import TheodoliteError
from theodolite.gpus import gpu
from theodolite.ir.realise import realise
from theodolite.lowering.lower import lower
from theodolite.mapper.search import map_workload
from theodolite.mapper.skeletons import mapping_of
from theodolite.pipeline import audit
from theodolite.workloads import sdpa, workload

__all__ = [
    "TheodoliteError",
    "audit",
    "evaluate",
    "gpu",
    "lower",
    "map_workload",
    "mapping_of",
    "model",
    "realise",
    "sdpa",
    "workload",
]
