"""Rows of JSON that one process appends and another reads while it grows.

A worker names each candidate before it touches it ("at"), so that whatever kills it has left the culprit's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """The writing end: every row is in the file when `add` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def add(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


class Tail:
    """The reading end: the whole rows since the last look.  A row that is being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._rest = path, 0, b""

    def rows(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole if line]

    def skip_torn(self) -> None:
        """A killed writer leaves a row without an end: the next one begins on a line of its own."""
        if self._rest:
            self._rest = b""
            with self._path.open("ab") as file:
                file.write(b"\n")
            self._at += 1
