"""TTIR text to nested operations.

    module   := "module" "{" function "}"
    function := "tt.func" "public" "@"name "(" param, ... ")" "{" op* "}"
    op       := [results "="] name operands [attributes] [":" type]       one a line
              | [results "="] "scf.for" iv "=" low "to" high "step" step ["iter_args" ...] "{" op* "}"
              | [results "="] "scf.if" condition "{" op* "}" ["else" "{" op* "}"]
              | results "=" "tt.reduce" operand "({" op* "})" ":" type

Names in the text are scoped, and siblings reuse them; here every value has a number of its own.  What the grammar does
not cover raises: nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from theodolite.errors import TextError
from theodolite.lowering.compile import normalise

_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_OP = re.compile(r'(?:(?P<results>%[^=]*?) = )?"?(?P<name>[a-z_]\w*(?:\.\w+)+)"?(?P<rest>.*)')
_FUNCTION = re.compile(r"tt\.func public @(?P<name>[\w$.-]+)\((?P<params>.*)\)(?: attributes \{noinline = false\})? \{")
_PARAM = re.compile(r"%(?P<name>[\w$.-]+): (?P<type>!tt\.ptr<\w+>|\w+)(?: \{tt\.divisibility = (?P<by>\d+) : i32\})?")
_FOR = re.compile(
    r" (?P<iv>%\S+) = (?P<low>%\S+) to (?P<high>%\S+) step (?P<step>%\S+)"
    r"(?: iter_args\((?P<carried>[^()]*)\) -> \((?P<types>.*)\))?\s*(?:: (?P<type>\w+) )?\{"
)
_IF = re.compile(r" (?P<condition>%\S+)(?: -> \((?P<types>.*)\))? \{")
_REDUCE = re.compile(r"\((?P<operands>[^()]*)\) <\{axis = (?P<axis>\d+) : i32\}> \(\{")
_BLOCK = re.compile(r"\^bb0\((?P<args>.*)\):")
_LOOP_HINTS = ("tt.num_stages", "tt.warp_specialize", "tt.flatten", "tt.disallow_acc_multi_buffer")
_TENSOR = re.compile(r"tensor<((?:\d+x)+)(!tt\.ptr<\w+>|\w+)>")


@dataclass(frozen=True)
class Op:
    """One operation.  `text` is what stands between its name and its type, `type` what follows the last colon."""

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    text: str
    type: str
    regions: tuple[Region, ...]
    line: int

    @property
    def where(self) -> str:
        return f"TTIR line {self.line}, {self.name}"


@dataclass(frozen=True)
class Region:
    """The operations of one block; a loop's arguments are its induction variable and what it carries."""

    args: tuple[int, ...]
    ops: tuple[Op, ...]

    @property
    def yields(self) -> tuple[int, ...]:
        """The values that the block hands to the operation around it."""
        last = self.ops[-1] if self.ops else None
        return last.operands if last is not None and last.name == "scf.yield" else ()


@dataclass(frozen=True)
class Param:
    """A runtime parameter; `divisible` is what the compiler was told divides its value (1 where nothing)."""

    name: str
    type: str
    divisible: int
    value: int

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("!tt.ptr<")


@dataclass(frozen=True)
class Function:
    name: str
    params: tuple[Param, ...]
    body: Region


def shape_of(kind: str) -> tuple[int, ...]:
    """The dimensions of a type's text: () for a scalar."""
    found = _TENSOR.fullmatch(kind.strip())
    return tuple(int(n) for n in found[1].split("x")[:-1]) if found else ()


def element_of(kind: str) -> str:
    """A tensor type's element type, or the scalar type itself.  Raises TextError for any other text."""
    kind = kind.strip()
    found = _TENSOR.fullmatch(kind)
    if not found and not re.fullmatch(r"!tt\.ptr<\w+>|\w+", kind):
        raise TextError(f"not a type of TTIR that is understood: {kind!r}")
    return found[2] if found else kind


@lru_cache(maxsize=32)
def parse(ttir: str) -> Function:
    """The one function of a module.  Raises TextError, with the line after `strip`, for what is not understood."""
    reader = _Reader(normalise(ttir).splitlines())
    return reader.module()


class _Reader:
    """Reads line by line; `scopes` maps the names in sight to numbers."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = [line.strip() for line in lines]
        self.at = 0
        self.count = 0
        self.scopes: list[dict[str, int]] = [{}]

    def fail(self, why: str) -> TextError:
        line = self.lines[self.at - 1][:100] if self.at else ""
        return TextError(f"TTIR line {self.at}: {why}: {line!r}")

    def next(self) -> str:
        if self.at == len(self.lines):
            raise self.fail("the text ends inside a block")
        self.at += 1
        return self.lines[self.at - 1]

    def define(self, name: str) -> int:
        if any(name in scope for scope in self.scopes):
            raise self.fail(f"{name} is defined twice")
        self.count += 1
        self.scopes[-1][name] = self.count
        return self.count

    def use(self, name: str) -> int:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.fail(f"{name} is not defined")

    def uses(self, text: str) -> tuple[int, ...]:
        return tuple(self.use(name) for name in _VALUE.findall(text))

    def module(self) -> Function:
        if self.next() != "module {":
            raise self.fail("expected a plain module")
        found = _FUNCTION.fullmatch(self.next())
        if not found:
            raise self.fail("expected one public function")
        if _PARAM.sub("", found["params"]).replace(", ", ""):
            raise self.fail("a parameter is not understood")
        params = tuple(
            Param(p["name"], p["type"], int(p["by"] or 1), self.define("%" + p["name"]))
            for p in _PARAM.finditer(found["params"])
        )
        body, closing = self.region(())
        if closing != "}" or self.next() != "}" or self.at != len(self.lines):
            raise self.fail("expected the end of a module with one function")
        return Function(found["name"], params, body)

    def region(self, args: Sequence[str]) -> tuple[Region, str]:
        """The operations up to a line that starts with a closing brace, and that line."""
        self.scopes.append({})
        names = list(args)
        block = _BLOCK.fullmatch(self.lines[self.at]) if self.at < len(self.lines) else None
        if block:
            self.at += 1
            names += _VALUE.findall(block["args"])
        numbers = tuple(self.define(name) for name in names)
        ops: list[Op] = []
        while not (line := self.next()).startswith("}"):
            ops.append(self.op(line))
        self.scopes.pop()
        return Region(numbers, tuple(ops)), line

    def op(self, line: str) -> Op:
        found = _OP.fullmatch(line)
        if not found:
            raise self.fail("not an operation that is understood")
        name, rest, number = found["name"], found["rest"], self.at
        if name == "scf.for":
            operands, text, kind, regions = self.loop(rest)
        elif name == "scf.if":
            operands, text, kind, regions = self.branch(rest)
        elif name == "tt.reduce":
            operands, text, kind, regions = self.reduce(rest)
        elif rest.endswith(("{", "({")):
            raise self.fail(f"{name} opens a block, which is understood for scf.for, scf.if and tt.reduce alone")
        else:
            text, colon, kind = rest.rpartition(" : ")
            text, kind = (text, kind) if colon else (rest, "")
            operands, regions = self.uses(text), ()
        return Op(name, self.results(found["results"] or ""), operands, text.strip(), kind.strip(), regions, number)

    def results(self, text: str) -> tuple[int, ...]:
        """`%a:3` defines %a#0 to %a#2; `%a` defines itself."""
        numbers: list[int] = []
        for group in filter(None, (part.strip() for part in text.split(","))):
            name, colon, many = group.partition(":")
            names = [f"{name}#{i}" for i in range(int(many))] if colon else [name]
            numbers += [self.define(n) for n in names]
        return tuple(numbers)

    def loop(self, rest: str) -> tuple[tuple[int, ...], str, str, tuple[Region, ...]]:
        found = _FOR.fullmatch(rest)
        if not found:
            raise self.fail("a loop of a form that is not understood")
        pairs = [part.split(" = ") for part in (found["carried"] or "").split(", ") if part]
        operands = tuple(self.use(found[k]) for k in ("low", "high", "step"))
        operands += tuple(self.use(start) for _, start in pairs)
        body, closing = self.region([found["iv"], *(name for name, _ in pairs)])
        hints = re.sub(r"^\} ?\{?|\}$", "", closing)
        if any(hint.split(" = ")[0] not in _LOOP_HINTS for hint in hints.split(", ") if hint):
            raise self.fail("a loop with an attribute that is not understood")
        if len(body.yields) != len(pairs):
            raise self.fail("a loop that does not yield what it carries")
        return operands, hints, found["type"] or "i64", (body,)

    def branch(self, rest: str) -> tuple[tuple[int, ...], str, str, tuple[Region, ...]]:
        found = _IF.fullmatch(rest)
        if not found:
            raise self.fail("a branch of a form that is not understood")
        condition = self.use(found["condition"])
        then, closing = self.region(())
        regions = [then]
        if closing == "} else {":
            otherwise, closing = self.region(())
            regions.append(otherwise)
        if closing != "}":
            raise self.fail("a branch ends in a form that is not understood")
        return (condition,), "", found["types"] or "", tuple(regions)

    def reduce(self, rest: str) -> tuple[tuple[int, ...], str, str, tuple[Region, ...]]:
        found = _REDUCE.fullmatch(rest)
        if not found:
            raise self.fail("a reduction of a form that is not understood")
        operands = self.uses(found["operands"])
        body, closing = self.region(())
        if not closing.startswith("}) : "):
            raise self.fail("a reduction without a type")
        return operands, f"axis = {found['axis']}", closing.removeprefix("}) : "), (body,)
