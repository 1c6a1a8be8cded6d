"""A workload as AccelForge writes it: Einsums over rank variables, their sizes, widths and named sets of tensors.

AccelForge knows which ranks index a tensor and not what is computed, so every Einsum comes in as a product (a copy,
with one input) that is summed over the ranks which its output lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from theodolite.ir.accelforge.expression import TensorSet
from theodolite.ir.accelforge.source import Item
from theodolite.ir.workload import Access, Einsum, Tensor, View, ViewEinsum, Workload

VIEW = "accelforge"
ACCESS = re.compile(r"([A-Za-z_]\w*)\[([^\[\]]*)\]", re.ASCII)
NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
SPACE = re.compile(r"0\s*<=\s*([A-Za-z]\w*)\s*<\s*(.+)", re.ASCII)
DTYPES: Mapping[int, str] = {16: "fp16", 32: "fp32"}
WORKLOAD = ("rank_sizes", "iteration_space_shape", "bits_per_value", "persistent_tensors", "n_instances", "einsums")
EINSUM = ("einsum", "name", "tensor_accesses", "renames", "is_copy_operation", "n_instances", "rank_sizes",
          "iteration_space_shape")  # fmt: skip
PERSISTENT = ("persistent", "backing_storage_size_scale")
MAX_ACCESSES, MAX_RANKS = 200, 100  # of a workload: every Einsum has a set for every access of all


@dataclass(frozen=True)
class Cascade:
    """A workload, the named sets of tensors of each Einsum (by the view's name for it), bits a value by tensor."""

    workload: Workload
    symbols: Mapping[str, Mapping[str, TensorSet]]
    bits: Mapping[str, int]


@dataclass(frozen=True)
class _Access:
    """One access as written: (rank, rank variable) a dimension."""

    tensor: str
    projection: tuple[tuple[str, str], ...]
    output: bool
    bits: Item | None
    item: Item


@dataclass(frozen=True)
class _Einsum:
    name: str
    accesses: tuple[_Access, ...]
    renames: tuple[tuple[str, Item], ...]
    item: Item

    @property
    def output(self) -> _Access:
        return next(a for a in self.accesses if a.output)

    @property
    def inputs(self) -> tuple[_Access, ...]:
        return tuple(a for a in self.accesses if not a.output)


def read_cascade(item: Item, renames: Item | None, name: str) -> Cascade:
    """The `workload:` of a file and its `renames:`; TextError or Unsupported names the line.

    `name` is the first part of the workload's name; the sizes follow.
    """
    fields = item.fields("workload", WORKLOAD, ("einsums",))
    if "persistent_tensors" in fields:
        raise fields["persistent_tensors"].unsupported("persistent tensors")
    _once(fields)
    einsums = tuple(_einsum(e) for e in fields["einsums"].items("einsums"))
    _check_size(einsums, item)
    _check_order(einsums, item)
    sizes = _sizes(einsums, fields.get("rank_sizes"), fields.get("iteration_space_shape"))
    symbols = {e.name: _symbols(e, einsums, renames) for e in einsums}
    bits = _bits(einsums, fields.get("bits_per_value"), symbols)
    workload = _workload(einsums, sizes, bits, name)
    wide = {e: {k: TensorSet(s.members, s.space, bits) for k, s in found.items()} for e, found in symbols.items()}
    return Cascade(workload, wide, bits)


# ---- Einsums -----------------------------------------------------------------------------------------------------
def _einsum(item: Item) -> _Einsum:
    fields = {"einsum": item} if isinstance(item.value, str) else item.fields("an Einsum", EINSUM)
    _once(fields)
    for key in ("rank_sizes", "iteration_space_shape"):
        if key in fields:
            raise fields[key].unsupported(f"{key} of one Einsum: write it for the workload")
    if "is_copy_operation" in fields and fields["is_copy_operation"].flag("is_copy_operation"):
        raise fields["is_copy_operation"].unsupported("a copy Einsum")
    listed = fields["tensor_accesses"].items("tensor_accesses") if "tensor_accesses" in fields else ()
    if "einsum" in fields:
        accesses = _spelled(fields["einsum"], {_listed_name(a): a for a in listed})
        name = next(a.tensor for a in accesses if a.output)
    else:
        accesses = tuple(_listed(a) for a in listed)
        name = item.fields("an Einsum", EINSUM, ("name", "tensor_accesses"))["name"].word("an Einsum's name")
    if [a.output for a in accesses].count(True) != 1 or len(accesses) < 2:
        raise item.unsupported(f"Einsum {name}: one output and at least one input are read")
    if len({a.tensor for a in accesses}) < len(accesses):
        raise item.unsupported(f"Einsum {name} accesses a tensor twice")
    for access in accesses:
        _check_diagonal(access)
    if name == "Total":
        raise item.error("'Total' names the sum over Einsums")
    renames = tuple(fields["renames"].entries("renames").items()) if "renames" in fields else ()
    return _Einsum(name, accesses, renames, item)


def _spelled(item: Item, extra: Mapping[str, Item]) -> tuple[_Access, ...]:
    """`O[l, f] = P[l, s] * V[s, f]`; AccelForge ignores what stands between accesses, so only products are read."""
    left, equals, right = item.text("an Einsum").replace(" ", "").partition("=")
    parts = [ACCESS.fullmatch(p) for p in (*right.split("*"), left)]
    if len(parts) > MAX_ACCESSES:
        raise item.unsupported(f"an Einsum of more than {MAX_ACCESSES} accesses")
    if not equals or not all(parts):
        raise item.unsupported(f"Einsum {item.value[:60]!r}: read is 'OUTPUT[a, b] = INPUT[a, c] * INPUT[c, b]'")
    out: list[_Access] = []
    for i, part in enumerate(p for p in parts if p):
        entry = extra.get(part[1])
        fields = entry.fields("an access", ("name", "bits_per_value", *PERSISTENT)) if entry else {}
        _check_lasting(fields)
        projection = tuple(_dimension(d, item) for d in part[2].split(","))
        out.append(_Access(part[1], projection, i == len(parts) - 1, fields.get("bits_per_value"), item))
    for name, entry in extra.items():
        if name not in [a.tensor for a in out]:
            raise entry.error(f"no access of {name} in {item.value[:60]!r}")
    return tuple(out)


def _dimension(text: str, item: Item) -> tuple[str, str]:
    """`l` is rank L indexed by l, `M:p` rank M indexed by p."""
    rank, colon, variable = text.partition(":")
    if colon:
        return _rank(rank, item), _variable(variable, item)
    if _variable(text, item)[0].isupper():
        raise item.error(f"rank variable {text!r} begins with a capital letter: write RANK:variable")
    return text.upper(), text


def _listed(item: Item) -> _Access:
    fields = item.fields("an access", ("name", "projection", "output", "bits_per_value", *PERSISTENT),
                         ("name", "projection"))  # fmt: skip
    _check_lasting(fields)
    written = fields["projection"]
    if isinstance(written.value, dict):
        pairs = tuple((_rank(r, v), _variable(v.text("an index"), v)) for r, v in written.value.items())
    else:
        pairs = tuple(_dimension(v.text("an index"), v) for v in written.items("projection"))
    output = fields["output"].flag("output") if "output" in fields else False
    return _Access(fields["name"].word("a tensor's name"), pairs, output, fields.get("bits_per_value"), item)


def _listed_name(item: Item) -> str:
    return item.fields("an access", item.entries("an access"), ("name",))["name"].word("a tensor's name")


def _rank(text: str, item: Item) -> str:
    if not NAME.fullmatch(text) or not text[0].isupper():
        raise item.error(f"{text[:40]!r} is no rank: a rank begins with a capital letter")
    return text


def _variable(text: str, item: Item) -> str:
    if not NAME.fullmatch(text):
        raise item.unsupported(f"index {text[:40]!r}: a dimension is indexed by one rank variable")
    return text


def _check_diagonal(access: _Access) -> None:
    """A tile of a diagonal is not the product of its variables' tiles; AccelForge counts its whole square."""
    variables = [variable for _, variable in access.projection]
    twice = [v for v in variables if variables.count(v) > 1]
    if twice:
        raise access.item.unsupported(
            f"{twice[0]} indexes two ranks of {access.tensor}: one rank variable a rank is read"
        )


def _check_lasting(fields: Mapping[str, Item]) -> None:
    for name, usual in (("persistent", False), ("backing_storage_size_scale", 1)):
        if name in fields and fields[name].value != usual:
            raise fields[name].unsupported(f"{name} of a tensor")


def _once(fields: Mapping[str, Item]) -> None:
    if "n_instances" in fields and fields["n_instances"].value != 1:
        raise fields["n_instances"].unsupported("n_instances: one instance of each Einsum is read")


def _check_size(einsums: tuple[_Einsum, ...], item: Item) -> None:
    accesses = [a for e in einsums for a in e.accesses]
    if len(accesses) > MAX_ACCESSES:
        raise item.unsupported(f"a workload of more than {MAX_ACCESSES} accesses")
    if len({variable for a in accesses for _, variable in a.projection}) > MAX_RANKS:
        raise item.unsupported(f"a workload of more than {MAX_RANKS} rank variables")


def _check_order(einsums: tuple[_Einsum, ...], item: Item) -> None:
    if not einsums:
        raise item.error("a workload has at least one Einsum")
    made: dict[str, str] = {}
    ranks: dict[str, list[str]] = {}
    outputs = {e.output.tensor for e in einsums}
    for einsum in einsums:
        for access in einsum.accesses:
            found = sorted(r for r, _ in access.projection)
            if ranks.setdefault(access.tensor, found) != found:
                raise access.item.error(f"{access.tensor} has ranks {' '.join(ranks[access.tensor])} before")
            if not access.output and access.tensor in outputs and access.tensor not in made:
                raise access.item.error(f"{einsum.name} reads {access.tensor} before it is made")
        if einsum.output.tensor in made or einsum.name in made.values():
            raise einsum.item.error(f"a second Einsum {einsum.name} or a second maker of {einsum.output.tensor}")
        made[einsum.output.tensor] = einsum.name


# ---- sizes, sets, widths -----------------------------------------------------------------------------------------
def _sizes(einsums: tuple[_Einsum, ...], ranks: Item | None, space: Item | None) -> dict[str, int]:
    """The size of each rank variable, in the order in which the cascade uses them."""
    by_rank = {r: v.whole(f"the size of {r}") for r, v in ranks.entries("rank_sizes").items()} if ranks else {}
    given: dict[str, int] = {}
    for variable, entry in space.entries("iteration_space_shape").items() if space else ():
        match = SPACE.fullmatch(entry.text("a range"))
        if not match or match[1] != variable:
            raise entry.unsupported(f"a range reads '0 <= {variable} < SIZE'")
        given[variable] = Item(entry.where, entry.line, None, match[2]).whole(f"the size of {variable}")
    out: dict[str, int] = {}
    for einsum in einsums:
        for access in einsum.accesses:
            for rank, variable in access.projection:
                found = {s for s in (by_rank.get(rank), given.get(variable), out.get(variable)) if s is not None}
                if not found:
                    raise access.item.error(f"no size for rank {rank} (or for {variable} in iteration_space_shape)")
                if len(found) > 1:
                    sizes = " and ".join(map(str, sorted(found)))
                    raise access.item.unsupported(f"{variable} has sizes {sizes}: one rank variable, one size")
                out[variable] = found.pop()
    return out


def _symbols(einsum: _Einsum, einsums: tuple[_Einsum, ...], renames: Item | None) -> dict[str, TensorSet]:
    """The sets that expressions may name: AccelForge's own, the tensors, and the renames of the Einsum."""
    space = frozenset(a.tensor for a in einsum.accesses)
    read = frozenset(a.tensor for e in einsums for a in e.inputs)
    made = frozenset(e.output.tensor for e in einsums)
    users = [a.tensor for e in einsums for a in e.accesses]

    def some(members: frozenset[str]) -> TensorSet:
        return TensorSet(members & space, space)

    own = {
        "All": space,
        "Tensors": space,
        "Nothing": frozenset[str](),
        "Inputs": frozenset(a.tensor for a in einsum.inputs),
        "Outputs": frozenset((einsum.output.tensor,)),
        "Intermediates": read & made,
        "Shared": frozenset(t for t in users if users.count(t) > 1),
        "Persistent": frozenset[str](),
    }
    out = {name: some(members) for name, members in own.items()}
    out |= {t: some(frozenset((t,))) for t in users}
    for name, source, count in (*((n, s, None) for n, s in einsum.renames), *_renames(einsum.name, renames)):
        if name in dict(einsum.renames) and name in out and count is not None:
            continue
        value = source.evaluated(out)
        if not isinstance(value, TensorSet):
            raise source.error(f"rename {name} is a set of tensors")
        if count is not None and count.value is not None and count.evaluated(out) != len(value):
            raise count.error(f"rename {name} has {len(value)} tensors in {einsum.name}")
        out.setdefault(name, value)
    return out


def _renames(einsum: str, renames: Item | None) -> Iterator[tuple[str, Item, Item]]:
    """(name, source, expected count) of the renames for one Einsum, before the defaults."""
    if renames is None:
        return
    listed = renames.fields("renames", ("einsums",), ("einsums",))["einsums"].items("einsums")
    groups = [e.fields("a rename", ("name", "tensor_accesses", "rank_variables"), ("name",)) for e in listed]
    for wanted in (einsum, "default"):
        for group in groups:
            if "rank_variables" in group and group["rank_variables"].value:
                raise group["rank_variables"].unsupported("renames of rank variables")
            if group["name"].value == wanted and "tensor_accesses" in group:
                yield from _rename_entries(group["tensor_accesses"])


def _rename_entries(item: Item) -> Iterator[tuple[str, Item, Item]]:
    none = Item(item.where, item.line, None, None)
    if isinstance(item.value, dict):
        yield from ((name, source, none) for name, source in item.value.items())
        return
    for entry in item.items("tensor_accesses"):
        fields = entry.fields("a rename", ("name", "source", "expected_count"), ("name", "source"))
        yield fields["name"].word("a rename"), fields["source"], fields.get("expected_count", none)


def _bits(
    einsums: tuple[_Einsum, ...], written: Item | None, symbols: Mapping[str, Mapping[str, TensorSet]]
) -> dict[str, int]:
    out: dict[str, int] = {}
    for einsum in einsums:
        found: dict[str, int] = {}
        for expression, width in written.entries("bits_per_value").items() if written else ():
            tensors: Any = Item(width.where, width.line, None, expression).evaluated(symbols[einsum.name])
            if not isinstance(tensors, TensorSet):
                raise width.error(f"bits_per_value of {expression!r}, which is no set of tensors")
            for tensor in sorted(tensors.members):
                if tensor in found:
                    raise width.error(f"bits_per_value of {tensor} is given twice")
                found[tensor] = width.whole("bits_per_value", plain=True)
        for access in einsum.accesses:
            bits = access.bits.whole("bits_per_value", plain=True) if access.bits else found.get(access.tensor)
            if bits is None:
                raise access.item.error(f"no bits_per_value for {access.tensor}")
            if out.setdefault(access.tensor, bits) != bits:
                raise access.item.error(f"{access.tensor} has {out[access.tensor]} bits a value elsewhere, here {bits}")
    return out


# ---- the record --------------------------------------------------------------------------------------------------
def _workload(einsums: tuple[_Einsum, ...], sizes: Mapping[str, int], bits: Mapping[str, int], name: str) -> Workload:
    def access(a: _Access) -> Access:
        return Access(a.tensor, tuple(v for _, v in a.projection))

    tensors: dict[str, Tensor] = {}
    for a in (*(e.output for e in einsums), *(i for e in einsums for i in e.inputs)):
        width = bits[a.tensor]
        tensors.setdefault(a.tensor, Tensor(a.tensor, access(a).ranks, DTYPES.get(width, f"bits{width}")))
    made = [e.output.tensor for e in einsums]
    read = [a.tensor for e in einsums for a in e.inputs]
    cascade = tuple(_extended(access(e.output), tuple(access(i) for i in e.inputs)) for e in einsums)
    seen = tuple(
        ViewEinsum(e.name, (e.output.tensor,), e.output.tensor, tuple(a.tensor for a in e.inputs)) for e in einsums
    )
    return Workload(
        name=f"{name}:{','.join(f'{r}={n}' for r, n in sizes.items())}",
        ranks=dict(sizes),
        tensors=tuple(tensors.values()),
        einsums=cascade,
        inputs=tuple(dict.fromkeys(t for t in read if t not in made)),
        outputs=tuple(t for t in made if t not in read),
        views=(View(VIEW, seen),),
    )


def _extended(output: Access, inputs: tuple[Access, ...]) -> Einsum:
    einsum = Einsum(output, inputs, "mul" if len(inputs) > 1 else "copy")
    return Einsum(output, inputs, einsum.map, "sum") if einsum.reduced else einsum
