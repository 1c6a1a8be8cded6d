"""YAML as AccelForge's files use it, composed into records that know their line, and never constructed into objects.

A tag is a word that the reader of a node knows or refuses; aliases are refused, since a few lines of them describe
gigabytes.  Scalars follow YAML 1.2: `n`, `y` and `on` are words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from theodolite.errors import TextError, Unsupported
from theodolite.ir.accelforge.expression import ExpressionError, evaluate
from theodolite.ir.accelforge.template import MAX_CHARS, fill

MAX_DEPTH = 60
MAX_ENTRIES = 500  # of a list or a mapping
MAX_DIGITS = 18
MAX_MESSAGE = 500  # characters
INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
BASED = re.compile(r"0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"([-+]?)\.inf")
WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
STANDARD = "tag:yaml.org,2002:"
PLAIN = tuple(STANDARD + kind for kind in ("map", "seq"))
SCALARS = tuple(STANDARD + kind for kind in ("str", "int", "float", "bool", "null"))
YES, NO = ("true", "1", "yes", "y", "on", "t"), ("false", "0", "no", "n", "off", "f")


@dataclass(frozen=True)
class Item:
    """One node of a file: a scalar, a tuple of items or a dictionary of them; `tag` is `Storage` for `!Storage`.

    Whoever asks for a value says what it is; a tag that is not part of that is refused.
    """

    where: str
    line: int
    tag: str | None
    value: Any

    def error(self, what: str) -> TextError:
        return TextError(f"{self.where}, line {self.line}: {_clipped(what)}")

    def unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"{self.where}, line {self.line}: {_clipped(what)}")

    def _expect(self, what: str) -> None:
        if self.tag is not None and what != f"!{self.tag}":
            raise self.unsupported(f"!{self.tag} where {what} is read")

    def fields(self, what: str, known: Iterable[str], required: Iterable[str] = ()) -> dict[str, Item]:
        """The entries of a mapping whose keys are all known; null counts as not there."""
        self._expect(what)
        if not isinstance(self.value, dict):
            raise self.error(f"{what} is a mapping of names to values")
        for key, entry in self.value.items():
            if key not in known:
                raise entry.error(f"{what} has no field {key!r}: it has {', '.join(known)}")
        found = {k: v for k, v in self.value.items() if v.value is not None}
        for key in required:
            if key not in found:
                raise self.error(f"{what} needs {key!r}")
        return found

    def entries(self, what: str) -> dict[str, Item]:
        """The entries of a mapping whatever its keys."""
        self._expect(what)
        if not isinstance(self.value, dict):
            raise self.error(f"{what} is a mapping of names to values")
        return self.value

    def items(self, what: str) -> tuple[Item, ...]:
        self._expect(what)
        if not isinstance(self.value, tuple):
            raise self.error(f"{what} is a list")
        return self.value

    def word(self, what: str) -> str:
        """A name: letters, digits and underscores."""
        self._expect(what)
        if not isinstance(self.value, str) or not re.fullmatch(r"[A-Za-z_]\w*", self.value, re.ASCII):
            raise self.error(f"{what} is a name, not {str(self.value)[:40]!r}")
        return self.value

    def text(self, what: str) -> str:
        self._expect(what)
        if not isinstance(self.value, str):
            raise self.error(f"{what} is text, not {str(self.value)[:40]!r}")
        return self.value

    def scalar(self, what: str) -> bool | int | float | str:
        """A number, a bool, or an expression still to be evaluated."""
        self._expect(what)
        if not isinstance(self.value, (bool, int, float, str)):
            raise self.error(f"{what} is a number or an expression")
        return self.value

    def evaluated(self, names: Mapping[str, Any]) -> Any:
        """The value of an expression, with the line in its error."""
        try:
            return evaluate(self.value, names)
        except ExpressionError as error:
            raise self.error(str(error)) from error

    def whole(self, what: str, *, plain: bool = False) -> int:
        """A whole number from 1; `plain` where AccelForge evaluates nothing, so that an expression is refused."""
        self._expect(what)
        if plain and isinstance(self.value, str):
            raise self.unsupported(
                f"{what} is a plain number, not {self.value[:40]!r}: no expression is evaluated here"
            )
        value = self.evaluated({})
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or value < 1:
            raise self.error(f"{what} is a whole number from 1, not {str(self.value)[:40]!r}")
        if isinstance(value, float) and isinstance(self.value, str):
            raise self.unsupported(f"{what} is {value!r}, a float: divide whole numbers by //")
        if value >= 10**MAX_DIGITS:
            raise self.error(f"{what} has more than {MAX_DIGITS} digits")
        return int(value)

    def flag(self, what: str) -> bool:
        """True or false, in any of the words that AccelForge takes."""
        self._expect(what)
        word = str(self.value).lower()
        if word not in (*YES, *NO):
            raise self.error(f"{what} is true or false, not {str(self.value)[:40]!r}")
        return word in YES


def _clipped(what: str) -> str:
    """A message without most of a name or a list of names that fills the file."""
    return what if len(what) <= MAX_MESSAGE else f"{what[:MAX_MESSAGE]} ..."


def read(text: str, where: str, variables: Mapping[str, Any]) -> Item:
    """A file's top level, templates filled in; TextError or Unsupported names the line.

    Where templates make or drop lines, the line is that of the text they make.
    """
    if len(text) > MAX_CHARS:
        raise TextError(f"{where}: {len(text)} characters; a file of at most {MAX_CHARS} is read")
    events = iter(yaml.parse(fill(text, where, variables), Loader=yaml.SafeLoader))
    try:
        return _Composer(events, where).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise TextError(f"{where}, line {line}: {error.problem or 'no YAML'}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TextError(f"{where}: no YAML: {' '.join(str(error).split())[:120]}") from error


class _Composer:
    """Events to items; the depth is counted here, since a deep file would exhaust the interpreter's stack."""

    def __init__(self, events: Iterator[Any], where: str) -> None:
        self.events, self.where = events, where

    def document(self) -> Item:
        next(self.events)  # the stream begins
        if isinstance(next(self.events), yaml.StreamEndEvent):
            raise TextError(f"{self.where}: the file is empty")
        item = self.node(next(self.events), 0)
        next(self.events)  # the document ends
        if not isinstance(next(self.events), yaml.StreamEndEvent):
            raise Unsupported(f"{self.where}: a file holds one YAML document")
        return item

    def node(self, event: Any, depth: int) -> Item:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise Unsupported(f"{self.where}, line {line}: alias *{event.anchor}: write the node out")
        if depth > MAX_DEPTH:
            raise TextError(f"{self.where}, line {line}: nested more than {MAX_DEPTH} deep")
        tag = self.tag(event.tag, line)
        value: Any
        match event:
            case yaml.ScalarEvent():
                value = event.value if event.style in ("'", '"', "|", ">") else self.scalar(event.value, line)
            case yaml.SequenceStartEvent():
                value = self.sequence(depth)
            case _:
                value = self.mapping(depth)
        return Item(self.where, line, tag, value)

    def tag(self, tag: str | None, line: int) -> str | None:
        if tag is None or tag in PLAIN or tag == "!":
            return None
        if re.fullmatch(r"![A-Za-z]{1,40}", tag):
            return tag[1:]
        shown = tag.replace(STANDARD, "!!", 1)[:60]
        if tag in SCALARS:
            raise Unsupported(f"{self.where}, line {line}: tag {shown!r}: write the value without it")
        raise Unsupported(f"{self.where}, line {line}: tag {shown!r}: objects are not made from a file")

    def sequence(self, depth: int) -> tuple[Item, ...]:
        out: list[Item] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            self.count(len(out), event)
            out.append(self.node(event, depth + 1))
        return tuple(out)

    def mapping(self, depth: int) -> dict[str, Item]:
        out: dict[str, Item] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            self.count(len(out), event)
            if not isinstance(event, yaml.ScalarEvent):
                raise Unsupported(f"{self.where}, line {line}: a key is a word")
            self.tag(event.tag, line)
            if event.value == "<<":
                raise Unsupported(f"{self.where}, line {line}: merge key <<: write the fields out")
            if event.value in out:
                raise TextError(f"{self.where}, line {line}: {event.value[:40]!r} is given twice")
            out[event.value] = self.node(next(self.events), depth + 1)
        return out

    def count(self, before: int, event: Any) -> None:
        if before == MAX_ENTRIES:
            line = event.start_mark.line + 1
            raise TextError(f"{self.where}, line {line}: a list or mapping of more than {MAX_ENTRIES} entries")

    def scalar(self, text: str, line: int) -> Any:
        """A plain scalar: number, bool, null or text (which may be an expression)."""
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        if INTEGER.fullmatch(text):
            if len(text.lstrip("+-0")) > MAX_DIGITS:
                raise TextError(f"{self.where}, line {line}: a number of more than {MAX_DIGITS} digits")
            return int(text)
        if BASED.fullmatch(text):
            return int(text, 0)
        if infinite := INFINITE.fullmatch(text.lower()):
            return float(infinite[1] + "inf")
        return float(text) if FLOAT.fullmatch(text) else text
