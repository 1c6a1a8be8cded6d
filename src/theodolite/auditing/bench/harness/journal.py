"""Rows of JSON that one process appends and another reads, while it grows or after its writer died.

A row is in the file whole or not at all: what a death or a full disk cut short is taken away before the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Corrupt(Exception):
    """A row in the middle of a file that is none: nobody here wrote that."""


class Journal:
    """The writing end: every row is in the file when `add` returns, and no part of it where `add` raises."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        data = path.read_bytes()
        if not data.endswith(b"\n"):
            self._file.truncate(data.rfind(b"\n") + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row.  Raises OSError where the disk is full."""
        data = json.dumps(row).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.truncate(end)
            raise


def whole_rows(path: Path) -> list[dict[str, Any]]:
    """Every row that was written whole; none where there is no file.  Raises Corrupt."""
    return Tail(path).rows()


class Tail:
    """The reading end: the whole rows since the last look.  A row that is being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def rows(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        try:
            return [json.loads(line) for line in whole.split(b"\n")[:-1]]
        except ValueError as error:
            raise Corrupt(f"{self._path} holds a row that is no JSON ({error})") from error
