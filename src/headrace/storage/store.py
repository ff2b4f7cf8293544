"""The store interface: everything that a session makes durable goes through these few operations.

A key is a relative path with '/' between its parts. A stored object is complete or absent, never partial, and is not changed
afterwards: `put` replaces it as a whole. When `put` returns, the object survives a loss of power, unless `sync` is False.
Every operation that changes something raises StorageError if the disk refuses it; it may or may not have made the change.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
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

    def place_of(self, key: str) -> str:
        """Return the place of an object: the identity of the checkpoint and the key.

        Stored objects contain their place, so that one that is found in another place is refused.
        """

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True) -> None:
        """Store an object, atomically; with `if_absent`, raise FileExistsError if the key is taken."""

    def link(self, key: str, new_key: str) -> None:
        """Store an object under a second key, durably; nothing happens if an earlier attempt did it."""

    def rename(self, new_keys: Mapping[str, str]) -> None:
        """Give objects, by key, their new keys, durably; an object that has one of these is replaced.

        An object that has its new key only is done: an earlier attempt got so far. Raises StorageError for one that has neither.
        At every moment, also after a crash, each object has one key or both. The old key may stay if it cannot be deleted.
        """

    def append(self, key: str, content: bytes, offset: int) -> None:
        """Replace all bytes of an object from `offset` on, durably; a crash may leave a part of the new ones."""

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

    def sweep_scratch(self, prefix: str, is_written: Callable[[str], bool] = ...) -> None:
        """Delete what interrupted calls of `put` left in a folder, except for names that `is_written` at this moment."""


def make_attempt_key(folder: str, stem: str, suffix: str) -> str:
    """Return a key for the output of one attempt of a task; no other attempt, whenever it runs, gets the same one.

    A task may run several times, even at the same time, and after its batch is committed. The report of an attempt names its
    files, the manifest those of the attempt that counts.
    """
    return f"{folder}/{stem}-{uuid.uuid4().hex[:8]}{suffix}"


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
