"""Random workloads and schedules, small enough to run in the interpreter, and the worked example's two mappings."""

from __future__ import annotations

from hypothesis import strategies as st

from theodolite.gpus import gpu
from theodolite.gpus.gpu import Gpu
from theodolite.ir.realise import realise
from theodolite.ir.tree import Tree
from theodolite.ir.workload import Workload
from theodolite.mapper.shorthand import FAMILIES, Domain, Schedule, schedule
from theodolite.mapper.skeletons import mapping
from theodolite.workloads import sdpa, workload

H200 = gpu("h200")
CASE_A = workload("sdpa:A")
FLASH = "flash:bm=64,bn=32,split=2,warps=4,stages=2"
PIPELINE = "pipeline:qk.bm=64,qk.bn=32,qk.bk=32,qk.split=2,sm.rows=4,av.bm=64,av.bs=32,av.split=2,warps=4,stages=2"


@st.composite
def workloads(draw: st.DrawFn, longest: int = 70, widest: int = 40) -> Workload:
    """Ragged attention: one or several heads, causal or not, widths that need not be a power of two, e may be not f."""
    causal = draw(st.booleans())
    keys = draw(st.integers(1, longest))
    rows = draw(st.integers(1, keys if causal else longest))
    width = draw(st.integers(1, widest))
    e = draw(st.none() | st.integers(1, widest))
    return sdpa(draw(st.integers(1, 2)), draw(st.integers(1, 3)), rows, keys, width, causal, e)


def values_of(domain: Domain, most_slices: int) -> st.SearchStrategy[int]:
    """The domain's values; of slices any number, so that the last ones may be short or empty."""
    if domain.any_up_to is not None:
        return st.integers(1, most_slices)
    return st.sampled_from(sorted(domain.values))


@st.composite
def schedules(draw: st.DrawFn, most_slices: int = 9) -> Schedule:
    """Any schedule of either family."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    return schedule(family, {d.key: draw(values_of(d, most_slices), label=d.key) for d in FAMILIES[family]})


def realised(chosen: Schedule, load: Workload, machine: Gpu = H200) -> Tree:
    """The realised tree of a schedule."""
    return realise(mapping(chosen, load, machine), load)
