"""The store interface: everything that a session makes durable goes through these few operations.

A key is a relative path with '/' between its parts. A stored object is complete or absent, never partial, and is not changed
afterwards: `put` replaces it as a whole. When `put` returns, the object survives a loss of power, unless `sync` is False.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from headrace.errors import CheckpointError

Chunks: TypeAlias = Sequence[Any]
"""Bytes in several parts, each with the buffer interface."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://)?")


class Store(Protocol):
    """A place for objects by key."""

    def name_of(self, key: str) -> str:
        """Return the full name of an object, for messages."""

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True) -> None:
        """Store an object, atomically; with `if_absent`, raise FileExistsError if the key is taken."""

    def put_file(self, key: str, write: Callable[[Path], None], *, sync: bool = True) -> None:
        """Store the local file that `write` fills, atomically."""

    def append_line(self, key: str, line: bytes) -> None:
        """Append a line to an object, durably; a crash may leave an incomplete line at its end."""

    def get(self, key: str) -> bytes:
        """Return an object; raise FileNotFoundError if there is none."""

    def open_local(self, key: str) -> pa.Buffer:
        """Return an object as a memory map; raise FileNotFoundError if there is none."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys directly below a folder, sorted; none if the folder does not exist."""

    def find_size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if there is none."""

    def delete(self, key: str) -> None:
        """Delete an object if there is one."""


def name_attempt(stem: str) -> str:
    """Return a name that starts with `stem` and that no other attempt of a task uses.

    A task may run twice, and may still run when its batch has been planned again: it must not overwrite what counts.
    """
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def parse_local_path(location: str | Path) -> Path:
    """Return the path of a local location; raise CheckpointError for a URL of another scheme, which is never a folder name."""
    text = str(location)
    match = _SCHEME.match(text) if isinstance(location, str) else None
    if match is None or Path(text).exists():
        return Path(text).absolute()
    if match[1].lower() == "file":
        return Path(text[match.end() :]).absolute()
    raise CheckpointError(
        f"checkpoint '{text}' has the unsupported scheme '{match[1]}'", hint="give the path of a local directory, or file:PATH"
    )
