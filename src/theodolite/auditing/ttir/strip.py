"""TTIR text without locations: what is hashed, and what is parsed.

Locations name source files and variables' origins; they change with the folder and the Python version while the kernel
does not.
"""

from __future__ import annotations

import re

from theodolite.errors import TextError

_ALIAS = re.compile(r"#loc\d*\s*=.*")
_START = re.compile(r"\s*\bloc\(")


def strip(ttir: str) -> str:
    """The same module with every `loc(...)` and `#loc` alias removed, no trailing blanks and no empty lines.

    The result is a fixed point: stripping it again changes nothing.  Raises TextError where a location does not end on
    its line.
    """
    lines = (_without_locations(line) for line in ttir.splitlines() if not _ALIAS.fullmatch(line.strip()))
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _without_locations(line: str) -> str:
    """Cut each `loc(...)`, blanks before it included; quotes inside may hold parentheses."""
    kept, at = [], 0
    while found := _START.search(line, at):
        kept.append(line[at : found.start()])
        at = _closing(line, found.end())
    kept.append(line[at:])
    return "".join(kept)


def _closing(line: str, at: int) -> int:
    """The position after the parenthesis that closes the one opened just before `at`."""
    depth, quoted = 1, False
    while at < len(line):
        letter = line[at]
        if quoted:
            at += letter == "\\"
            quoted = letter != '"'
        elif letter == '"':
            quoted = True
        else:
            depth += (letter == "(") - (letter == ")")
        at += 1
        if depth == 0:
            return at
    raise TextError(f"a location does not end on its line: {line.strip()[:80]!r}")
