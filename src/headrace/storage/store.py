"""The store interface: everything that a session makes durable goes through these few operations.

A key is a relative path with '/' between its parts. A stored object is complete or absent, never partial, and is not changed
afterwards: `put` replaces it as a whole. When `put` returns, the object survives a loss of power, unless `sync` is False.
Every operation that changes something raises StorageError if the disk refuses it; it may or may not have made the change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias

import pyarrow as pa

Chunks: TypeAlias = Sequence[Any]
"""Bytes in several parts, each with the buffer interface."""


class Store(Protocol):
    """A place for objects by key. It holds no state, so that it can be opened anywhere for the same location."""

    @property
    def location(self) -> str:
        """The folder or the URL of the store, with which `locations.open_store` opens it in any process."""

    @property
    def is_remote(self) -> bool:
        """Whether each operation is a request to another machine, which is worth saving, and worth not waiting for."""

    @property
    def bundles_files(self) -> bool:
        """Whether small files that live about as long are better one file: each is a request, which costs time and money."""

    def scope(self, folder: str) -> Self:
        """Return the store of a folder in this one."""

    def name_of(self, key: str) -> str:
        """Return the full name of an object, for messages."""

    def place_of(self, key: str) -> str:
        """Return the place of an object: the identity of the checkpoint and the key.

        Stored objects contain their place, so that one that is found in another place is refused.
        """

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True, keep_local: bool = False) -> None:
        """Store an object, atomically; with `if_absent`, raise FileExistsError if the key is taken.

        `keep_local` says that this machine will probably read the object with `open_local`.
        """

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

    def get_appended(self, key: str) -> bytes:
        """Return an object with everything that was appended to it; only its writer may call this."""

    def open_local(self, key: str) -> pa.Buffer:
        """Return an object as a memory map; raise FileNotFoundError if there is none."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys directly below a folder ("" is the top), sorted; none if the folder does not exist."""

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Return the keys of the folders directly below a folder, sorted."""

    def create_folder(self, key: str) -> None:
        """Create a folder, durably, if it is missing and the store has folders of their own."""

    def find_size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if there is none."""

    def delete(self, key: str) -> None:
        """Delete an object if there is one."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete those of these objects that exist."""

    def delete_folder(self, key: str) -> None:
        """Delete a folder with everything in it, durably."""

    def sweep_scratch(self, prefix: str, is_written: Callable[[str], bool] = ...) -> None:
        """Delete what failed writes left in a folder, but not that of keys which `is_written` by another thread now."""

    def sync_names(self) -> None:
        """Make every name in the store durable: a killed process may have left names that it had no time to sync."""


class VersionConflictError(Exception):
    """An object is not in the version that was to be replaced."""


class VersionedStore(Store, Protocol):
    """A store that replaces an object only in a version that the caller knows."""

    def get_version(self, key: str) -> tuple[bytes, str] | None:
        """Return an object and its version, or None if there is none."""

    def replace_version(self, key: str, content: bytes, version: str | None) -> str:
        """Replace an object only if it is in this version (None: absent); return its new version.

        Raises VersionConflictError if it is in another one.
        """


def join_key(folder: str, name: str) -> str:
    """Return the key of a name in a folder; "" is the top."""
    return f"{folder}/{name}" if folder else name


def make_attempt_key(folder: str, stem: str, suffix: str) -> str:
    """Return a key for the output of one attempt of a task; no other attempt, whenever it runs, gets the same one.

    A task may run several times, even at the same time, and after its batch is committed. The report of an attempt names its
    files, the manifest those of the attempt that counts.
    """
    return f"{folder}/{stem}-{uuid.uuid4().hex[:8]}{suffix}"
