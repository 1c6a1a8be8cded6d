"""The cost of a triple by this package, as one flat table that AccelForge's is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.cost.buffet import count, joules, seconds, why_not
from theodolite.gpus.accelforge import hierarchies
from theodolite.ir.accelforge import arch_of, cascade_of, load, mapping_of, names_of

Table = dict[str, float]


def ours(files: tuple[Path, ...], variables: Mapping[str, Any]) -> Table:
    """Numbers by what they are, zeros left out; `refused|...` entries where something speaks against the mapping."""
    sections = load(*files, variables=variables)
    arch, cascade = arch_of(sections), cascade_of(sections)
    names = names_of(arch)
    machines = hierarchies(arch, cascade, names)
    tree = mapping_of(sections, arch, cascade, names)
    view = cascade.workload.view("accelforge")
    profiles = count(tree.body, cascade.workload, view, machines, {}, bits=cascade.bits, literal=True)
    table: Table = {f"refused|{reason}": 1.0 for reason in why_not(profiles)}
    for p in profiles:
        machine, e = machines[p.einsum], p.einsum
        for a in p.actions:
            table[f"action|{e}|{a.memory}|{a.tensor}|{a.kind}"] = a.total_calls
        scale = machine.compute(names.units[p.component]).actions_scale
        table[f"action|{e}|{p.component}||compute"] = p.units * p.macs_per_unit * scale
        table |= {f"latency|{e}|{c}": s for c, s in p.latencies_s.items()}
        table |= {f"energy|{e}|{c}|{t}|{k}": j for (c, t, k), j in p.energies_j.items()}
        for r in p.reserved:
            table[f"usage|{e}|{r.memory}|{r.tensor}"] = r.bits / machine.memory(r.memory).size_bits
        for memory, bits in p.peak_bits.items():
            full = bits / machine.memory(memory).size_bits
            table[f"peak|{memory}"] = max(table.get(f"peak|{memory}", 0.0), full)
    table["total|latency"], table["total|energy"] = seconds(profiles), joules(profiles)
    return {k: float(v) for k, v in table.items() if v != 0}


def differences(a: Table, b: Table, rel: float = 1e-6) -> list[str]:
    """Where two tables differ by more than `rel`; an entry that one of them lacks is zero there."""
    out = []
    for key in sorted(a.keys() | b.keys()):
        one, two = a.get(key, 0.0), b.get(key, 0.0)
        if abs(one - two) > rel * max(abs(one), abs(two)):
            out.append(f"{key}: {one!r} and {two!r}")
    return out
