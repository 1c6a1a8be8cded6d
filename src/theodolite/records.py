"""Frozen records to JSON and back, equal; the same record always gives the same bytes.  And how files are handled."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from theodolite.errors import RunError, TextError, plain_reason

T = TypeVar("T")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: the bytes that ids are made of."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":")).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a record, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def dump(value: Any) -> str:
    """JSON for people and diffs: sorted keys, one space of indentation."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True, indent=1) + "\n"


def load(kind: type[T], data: bytes | str, where: str) -> T:
    """Read a record back; RunError with `where` in it for anything malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise RunError(f"{where} is not a {kind.__name__}: {error}") from error


def read_text(path: Path, most_bytes: int) -> str:
    """A file's text, UTF-8; TextError where it cannot be read or has more bytes.

    No more is read than that, whatever size the file claims to have: a device may have none and never end.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)
        if len(raw) > most_bytes:
            raise TextError(f"{path} cannot be read: it has more than {most_bytes:,} bytes")
        return raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path} cannot be read: {plain_reason(error)}") from error


def write(path: Path, data: str | bytes) -> None:
    """Write a file whole or not at all: an interrupt leaves the old one.  RunError where it cannot be written."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        _replace(path, raw)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {plain_reason(error)}") from error


def _replace(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
