"""Seeded draws of an architecture, a workload and a mapping, as AccelForge's YAML: what both costs are asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

RANKS = ("m", "k", "n", "bh", "n0", "q1", "kk", "rowX", "a", "b1")
SIZES = (1, 2, 3, 4, 6, 8, 12)
# Einsums as (output, inputs) with the letters that index each tensor; its ranks are those of its first mention, and
# another letter in the same place stands for another rank variable over the same rank (a projection `M:q`)
SHAPES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("T1:mn", "T0:mk", "W0:kn"),),
    (("T1:m", "T0:mk"),),
    (("T1:bmn", "T0:bmk", "W0:bkn"),),
    (("T1:mn", "T0:m", "W0:n", "B0:mn"),),
    (("T1:mn", "T0:mk", "W0:kn"), ("T2:mp", "T1:mn", "W1:np")),
    (("T1:mk", "T0:mk"), ("T2:mn", "T1:mk", "W1:kn")),
    (("T1:mn", "T0:mk", "W0:kn"), ("T2:mp", "T0:mk", "W1:kp")),
    (("S:bls", "Q:ble", "K:bse"), ("P:bls", "S:bls"), ("O:blf", "P:bls", "V:bsf")),
    (("S:ls", "Q:le", "K:se"), ("M:l", "S:ls"), ("P:ls", "S:ls", "M:l"), ("O:lf", "P:ls", "V:sf")),
    (("T1:mn", "T0:mk", "W0:kn"), ("T2:mp", "T1:mn", "W1:np"), ("T3:mq", "T2:mp", "W2:pq")),
    (("X:mk", "I:mk"), ("Y:mn", "X:mk", "A:kn"), ("Z:mn", "Y:mn", "X:mk")),
    (("X:mk", "I:mk"), ("Y:mn", "X:mk", "A:kn"), ("Z:mk", "Y:mn", "B:nk"), ("U:mk", "Z:mk", "X:mk"), ("V:mk", "U:mk")),
    (("A:m", "I:m"), ("B:m", "J:m"), ("C:m", "A:m", "B:m")),
    (("Q:me", "X:md", "F:de"), ("K:se", "Y:sd", "G:de"), ("S:ms", "Q:me", "K:se"), ("O:md", "S:ms", "Y:sd")),
    (("T1:bmn", "T0:bmk", "W0:kn"), ("T2:bmp", "T1:bmn", "W1:np"), ("T3:bm", "T2:bmp")),
    (("T1:m", "T0:m"), ("T2:mn", "T1:m"), ("T3:n", "T2:mn")),
    (("T1:mn", "T0:mk", "W0:kn"), ("T2:mk", "T1:mn", "W0:kn"), ("T3:mn", "T2:mk", "W0:kn")),
    (("T1:mn", "T0:mk", "W0:kn"), ("S:mq", "Y:mn", "T1:qn")),
    (("T1:mn", "I:mn"), ("S:mn", "T1:nm", "J:n"), ("R:mn", "S:mn", "I:mn")),
    (("T1:mn", "I:mn"), ("S:mn", "T1:nm", "I:mn"), ("R:mn", "T1:mn", "S:nm")),
    (("K:se", "X:sd", "G:de"), ("S:ls", "X:ld", "K:se"), ("O:le", "S:ls", "K:se")),
)


@dataclass(frozen=True)
class Triple:
    """Three texts."""

    arch: str
    workload: str
    mapping: str


@dataclass(frozen=True)
class Step:
    """One Einsum: each tensor with its ranks, the output last."""

    name: str
    ranks: dict[str, tuple[str, ...]]
    named: dict[str, tuple[str, ...]]  # the tensor's own ranks, in the same order

    @property
    def output(self) -> str:
        return list(self.ranks)[-1]

    @property
    def looped(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r for ranks in self.ranks.values() for r in ranks))


def draw(seed: int) -> Triple:
    """The triple of a seed."""
    rng = random.Random(seed)
    steps, sizes, workload = _workload(rng)
    chain, arch = _arch(rng)
    return Triple(arch, workload, _Mapping(rng, steps, sizes, chain).text())


# ---- workload ----------------------------------------------------------------------------------------------------
def _workload(rng: random.Random) -> tuple[list[Step], dict[str, int], str]:
    shape = rng.choice(SHAPES)
    letters = sorted({x for einsum in shape for t in einsum for x in t.partition(":")[2]})
    ranks = dict(zip(letters, rng.sample(RANKS, len(letters)), strict=True))
    steps: list[Step] = []
    named: dict[str, tuple[str, ...]] = {}
    for output, *inputs in shape:
        at = {t: tuple(ranks[x] for x in xs) for t, _, xs in (a.partition(":") for a in (*inputs, output))}
        for tensor, variables in at.items():
            named.setdefault(tensor, variables)
        steps.append(Step(output.partition(":")[0], at, {t: named[t] for t in at}))
    sizes = _sizes(rng, steps, tuple(ranks.values()))
    tensors = sorted(named)
    lines = ["workload:", "  rank_sizes:", *(f"    {r.upper()}: {n}" for r, n in sizes.items())]
    if rng.random() < 0.5:
        lines.append(f"  bits_per_value: {{All: {rng.choice((1, 4, 8, 16))}}}")
    else:
        lines += ["  bits_per_value:", *(f"    {t}: {rng.choice((2, 7, 8, 16, 32))}" for t in tensors)]
    lines.append("  einsums:")
    lines += [_einsum(s, rng.random() < 0.5) for s in steps]
    return steps, sizes, "\n".join(lines) + "\n"


def _sizes(rng: random.Random, steps: list[Step], ranks: tuple[str, ...]) -> dict[str, int]:
    """A size for each rank; variables that run over one rank of a tensor have one size."""
    sizes = {r: rng.choice(SIZES) for r in ranks}
    for step in steps:
        for tensor, variables in step.ranks.items():
            for variable, rank in zip(variables, step.named[tensor], strict=True):
                sizes[variable] = sizes[rank]
    return sizes


def _einsum(step: Step, spelled: bool) -> str:
    index = {
        t: ", ".join(v if v == n else f"{n.upper()}:{v}" for v, n in zip(variables, step.named[t], strict=True))
        for t, variables in step.ranks.items()
    }
    if spelled or any(":" in i for i in index.values()):
        out, *inputs = [f"{t}[{i}]" for t, i in reversed(index.items())]
        return f'  - "{out} = {" * ".join(reversed(inputs))}"'
    lines = [f"  - name: {step.name}", "    tensor_accesses:"]
    for tensor in step.ranks:
        made = ", output: true" if tensor == step.output else ""
        lines.append(f"    - {{name: {tensor}, projection: [{index[tensor]}]{made}}}")
    return "\n".join(lines)


# ---- architecture ------------------------------------------------------------------------------------------------
@dataclass
class Part:
    """A node of the chain with the units along each dimension."""

    name: str
    kind: str
    dims: dict[str, int]


def _arch(rng: random.Random) -> tuple[list[Part], str]:
    memories = rng.randint(2, 4)
    tight = rng.random() < 0.25
    parts: list[Part] = []
    for i in range(memories):
        if i and rng.random() < 0.3:
            parts.append(Part(f"Array{i}", "Container", _dims(rng, f"A{i}", 1.0)))
        parts.append(Part(f"Mem{i}", "Memory", _dims(rng, f"X{i}", 0.4 if i else 0.1)))
        if i == memories - 2 and rng.random() < 0.3:
            parts.append(Part("Side", "Compute", {}))
    if rng.random() < 0.2:
        parts.append(Part("Last", "Container", _dims(rng, "L", 1.0)))
    parts.append(Part("Unit", "Compute", _dims(rng, "U", 0.3)))
    lines = ["arch:", "  variables: {clock: 1e3, width: 2 + 2}", "  nodes:"]
    for part in parts:
        lines += _part(rng, part, tight and part.name != "Mem0")
    return parts, "\n".join(lines) + "\n"


def _dims(rng: random.Random, name: str, chance: float) -> dict[str, int]:
    if rng.random() > chance:
        return {}
    return {f"{name}{i}": rng.choice((2, 4, 8, 16)) for i in range(rng.randint(1, 2))}


def _part(rng: random.Random, part: Part, tight: bool) -> list[str]:
    lines = [f"  - !{part.kind}", f"    name: {part.name}"]
    if part.dims:
        shared = rng.choice(("", ", may_reuse: All", ", may_reuse: Nothing", ", may_reuse: Inputs", ", reuse: Outputs",
                             ", may_reuse: ~Outputs"))  # fmt: skip
        dims = ", ".join(f"{{name: {d}, fanout: {n}{shared}}}" for d, n in part.dims.items())
        lines.append(f"    spatial: [{dims}]")
    if part.kind == "Container":
        return lines
    lines += [f"    leak_power: {rng.choice((0, 0, 0.5, 3))}", "    area: 0"]
    lines += [f"    {s}: {rng.choice((0.5, 2, 3))}" for s in ("actions_scale", "energy_scale", "throughput_scale",
              "leak_power_scale", "n_parallel_instances") if rng.random() < 0.12]  # fmt: skip
    if rng.random() < 0.2:
        lines.append("    skip_initial_output_write: false")
    if rng.random() < 0.3:
        lines.append(f"    total_latency: {rng.choice(LATENCIES)}")
    if part.kind == "Compute":
        action = (
            f"    - {{name: compute, energy: {rng.choice((0, 1, 0.3))}, throughput: {rng.choice((1, 100, 'clock'))}}}"
        )
        return [*lines, "    actions:", action]
    lines.append(f"    size: {rng.choice(TIGHT if tight else ROOMY)}")
    if rng.random() < 0.3:
        lines.append(f"    bits_per_action: {rng.choice((4, 'width * 16', 128))}")
    if rng.random() < 0.15:
        lines.append(f"    values_per_action: {{Inputs: {rng.choice((2, 0.5))}}}")
    if rng.random() < 0.2:
        lines.append(f"    bits_per_value: {{{rng.choice(WIDTHS)}: {rng.choice((8, 64, 4.5))}}}")
    lines.append("    actions:")
    for kind in ("read", "write"):
        extra = rng.choice(
            ("", "", "", ", bits_per_action: 8", ", energy_scale: 2", ", values_per_action: {Outputs: 4}")
        )
        energy, rate = rng.choice((0, 1, 2.5, 7e-3)), rng.choice(("inf", 64, 1000, "8 * clock"))
        lines.append(f"    - {{name: {kind}, energy: {energy}, throughput: {rate}{extra}}}")
    return lines


ROOMY = ("1e9", "2**33", "1024 * 1024 * 64", "1e7 * len(All)", "1e9 * len(Outputs) / len(Inputs)")
TIGHT = (64, 200, 500, 1000, 4000)
WIDTHS = ("All", "Outputs - Intermediates", "Outputs", "Inputs", "Intermediates", "Shared")
LATENCIES = (
    "max(a.n_calls / a.throughput for a in actions)",
    "sum(a.n_calls for a in actions) / 32 / clock",
    "2 * sum(a.n_calls / a.throughput for a in actions)",
)


# ---- mapping -----------------------------------------------------------------------------------------------------
class _Mapping:
    def __init__(self, rng: random.Random, steps: list[Step], sizes: dict[str, int], chain: list[Part]) -> None:
        self.rng, self.steps, self.sizes, self.chain = rng, steps, sizes, chain
        self.depth = {p.name: i for i, p in enumerate(chain)}
        self.made = {s.output for s in steps}
        self.memories = [p.name for p in chain if p.kind == "Memory"]
        self.late: dict[str, str] = {}

    def text(self) -> str:
        """The whole tree: what enters or leaves waits outermost, or in the memory below it now and then.

        What one Einsum alone uses is stored in its own branch now and then.
        """
        read = {t for s in self.steps for t in s.ranks if t != s.output}
        ends = [t for t in dict.fromkeys(t for s in self.steps for t in s.ranks) if t not in self.made & read]
        first = {t: self.memories[1] if self.rng.random() < 0.07 else self.memories[0] for t in ends}
        alone = [t for t in ends if len(self.steps) > 1 and sum(t in s.ranks for s in self.steps) == 1]
        self.late = {t: first.pop(t) for t in alone if self.rng.random() < 0.15}
        nodes = [self.storage([t for t in first if first[t] == m], m) for m in self.memories[:2]]
        nodes = [n for n in nodes if n] + self.group(self.steps, dict(self.sizes), dict(first), {})
        return "mapping:\n  nodes:\n" + "\n".join(nodes) + "\n"

    def group(self, steps: list[Step], sizes: dict[str, int], held: dict[str, str], used: dict[str, int]) -> list[str]:
        if len(steps) == 1:
            return self.leaf(steps[0], sizes, held, used)
        cuts = sorted(self.rng.sample(range(1, len(steps)), self.rng.randint(1, len(steps) - 1)))
        parts = [steps[a:b] for a, b in zip([0, *cuts], [*cuts, len(steps)], strict=True)]
        nodes = self.shared_loops(steps, sizes, used)
        for tensor in [s.output for s in steps if self.crosses(s.output, parts) and s.output not in held]:
            held[tensor] = self.rng.choice(self.memories[: max(1, len(self.memories) - 1)])
            nodes.insert(self.rng.randint(0, len(nodes)), self.storage([tensor], held[tensor]).strip())
        self.copies(steps, nodes, held)
        lines = [f"  {n}" for n in nodes] + ["  - !Sequential", "    nodes:"]
        for part in parts:
            lines += ["    - !Nested", "      nodes:"]
            lines += [f"    {line}" for line in self.group(part, dict(sizes), dict(held), dict(used))]
        return lines

    def shared_loops(self, steps: list[Step], sizes: dict[str, int], used: dict[str, int]) -> list[str]:
        """Loops above the split, one in four of them spread over a fanout anywhere in the chain."""
        shared = [r for r in steps[0].looped if all(r in s.looped for s in steps)]
        fanouts = [(p.name, d, n) for p in self.chain for d, n in p.dims.items()]
        nodes: list[str] = []
        for _ in range(self.rng.choice((0, 1, 1, 2, 3)) if shared else 0):
            rank = self.rng.choice(shared)
            tile = self.rng.choice([d for d in range(1, sizes[rank] + 1) if sizes[rank] % d == 0])
            trips = sizes[rank] // tile
            if trips == 1 and self.rng.random() < 0.9:
                continue
            loop = f"rank_variable: {rank}, tile_shape: {tile}"
            if fanouts and self.rng.random() < 0.25:
                owner, dim, room = self.rng.choice(fanouts)
                if dim in used or trips > room:
                    continue
                used[dim] = trips
                nodes.append(f"- !Spatial {{{loop}, name: {dim}, component: {owner}}}")
            else:
                nodes.append(f"- !Temporal {{{loop}}}")
            sizes[rank] = tile
        return nodes

    def copies(self, steps: list[Step], nodes: list[str], held: dict[str, str]) -> None:
        """Copies further in of what is held already, above the split."""
        for tensor in list(held):
            below = [m for m in self.memories if self.depth[m] > self.depth[held[tensor]]]
            if below and any(tensor in s.ranks for s in steps) and self.rng.random() < 0.2:
                here = [i for i, node in enumerate(nodes) if f"[{tensor}]" in node]
                held[tensor] = self.rng.choice(below)
                nodes.insert(
                    self.rng.randint(here[-1] + 1 if here else 0, len(nodes)),
                    self.storage([tensor], held[tensor]).strip(),
                )

    def crosses(self, tensor: str, parts: list[list[Step]]) -> bool:
        return sum(any(tensor in s.ranks for s in part) for part in parts) > 1

    def leaf(self, step: Step, sizes: dict[str, int], held: dict[str, str], used: dict[str, int]) -> list[str]:
        units = [p.name for p in self.chain if p.kind == "Compute"]
        unit = self.rng.choice(units) if self.rng.random() < 0.2 else units[-1]
        above = self.chain[: self.depth[unit] + 1]
        tokens: list[tuple[str, Any]] = []
        late = {t: self.late[t] for t in step.ranks if t in self.late}
        held |= late
        for tensor in step.ranks:
            below = [p.name for p in above if p.kind == "Memory" and self.depth[p.name] > self.depth[held[tensor]]]
            tokens += [("hold", (tensor, m)) for m in below if self.rng.random() < 0.5]
        for rank in step.looped:
            tokens += [("loop", (rank, f)) for f in self.factors(sizes[rank])]
        self.rng.shuffle(tokens)
        tokens = self.inwards(tokens)
        for part in above:
            for dim, room in part.dims.items():
                tokens = self.spread(tokens, part, dim, room // used.get(dim, 1), step)
        first = [self.storage([t], m) for t, m in late.items()]
        return [*first, *self.lines(tokens, sizes), f"  - !Compute {{einsum: {step.name}, component: {unit}}}"]

    def factors(self, size: int) -> list[int]:
        """Factors of a size in a random order; the product is the size."""
        out = []
        while size > 1:
            factor = self.rng.choice([d for d in range(2, size + 1) if size % d == 0])
            out.append(factor)
            size //= factor
        return [*out, 1] if self.rng.random() < 0.08 else out

    def inwards(self, tokens: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """The storages of each tensor go from the outside in."""
        order = {t: sorted((v[1] for k, v in tokens if k == "hold" and v[0] == t), key=lambda m: self.depth[m])
                 for t in {v[0] for k, v in tokens if k == "hold"}}  # fmt: skip
        return [(k, (v[0], order[v[0]].pop(0)) if k == "hold" else v) for k, v in tokens]

    def spread(self, tokens: list[tuple[str, Any]], part: Part, dim: str, room: int, step: Step) -> list[Any]:
        """Some loops of the Einsum over one dimension, mostly right above the first that stands below the fanout."""
        for rank in step.looped:
            fitting = [(k, v) for k, v in tokens if k == "loop" and v[0] == rank and 1 < v[1] <= room]
            if fitting and self.rng.random() < 0.4:
                chosen = self.rng.choice(fitting)
                at = tokens.index(chosen)
                tokens = tokens[:at] + tokens[at + 1 :]
                room //= chosen[1][1]
                below = [
                    i for i, (k, v) in enumerate(tokens) if k == "hold" and self.depth[v[1]] >= self.depth[part.name]
                ]
                at = below[0] if below else len(tokens)
                if self.rng.random() < 0.15:
                    at = self.rng.randint(0, len(tokens))
                tokens = [*tokens[:at], ("spread", (rank, chosen[1][1], dim, part.name)), *tokens[at:]]
        return tokens

    def lines(self, tokens: list[tuple[str, Any]], sizes: dict[str, int]) -> list[str]:
        out = []
        for kind, value in tokens:
            if kind == "hold":
                out.append(self.storage([value[0]], value[1]))
                continue
            rank = value[0]
            sizes[rank] //= value[1]
            loop = f"rank_variable: {rank}, tile_shape: {sizes[rank]}"
            if kind == "spread":
                out.append(f"  - !Spatial {{{loop}, name: {value[2]}, component: {value[3]}}}")
            else:
                out.append(f"  - !Temporal {{{loop}}}")
        return out

    def storage(self, tensors: list[str], memory: str) -> str:
        return f"  - !Storage {{tensors: [{', '.join(tensors)}], component: {memory}}}" if tensors else ""
