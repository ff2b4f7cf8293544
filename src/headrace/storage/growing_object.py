"""An object of an object store that grows: its base, and a small object for each append, a tail.

An object cannot be appended to, and writing a long log again with each line costs more and more. So an append writes a tail,
`KEY.tail/DIGEST-OFFSET`: DIGEST is that of the base, OFFSET the place of its first byte in the whole. The append after one that
failed replaces its tail. Above some number of tails the base is written again with all of them.
Tails of an earlier base, or beyond a gap, do not count; the next reader deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.storage.checksum import compute_checksum

_MAX_TAILS = 128
_MIN_TAILS = 16  # that a small base has at most
_BASE_BYTES_PER_TAIL = 1 << 12


class SmallStore(Protocol):
    """The operations of an object store that a growing object needs."""

    def get(self, key: str) -> bytes:
        """Return an object."""

    def write(self, key: str, content: bytes) -> None:
        """Replace an object."""

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects."""

    def list(self, prefix: str) -> list[str]:
        """Return the keys directly below a folder."""


class GrowingObject:
    """The base and the tails of an object; this process is its only writer."""

    def __init__(self, store: SmallStore, key: str) -> None:
        """Read the object, and delete tails that do not count; raises FileNotFoundError if there is none."""
        self._store, self._key = store, key
        base = store.get(key)
        self._digest, self._base_size = compute_checksum(base), len(base)
        self._tails: dict[int, bytes] = {}
        stale = set(store.list(f"{key}.tail"))
        while (name := self._name_tail(self.size)) in stale and (tail := store.get(name)):
            self._tails[self.size] = tail
            stale.remove(name)
        if stale:
            store.delete_many(sorted(stale))

    @property
    def size(self) -> int:
        """The size of base and tails in bytes."""
        return self._base_size + sum(map(len, self._tails.values()))

    def read(self) -> bytes:
        """Return the whole content."""
        return self._store.get(self._key) + b"".join(self._tails.values())

    def append(self, content: bytes, offset: int) -> None:
        """Replace all bytes from `offset` on; after an error, the old ones or the new ones are there."""
        dropped = [start for start in self._tails if start > offset]
        if offset < self._base_size or (offset != self.size and offset not in self._tails) or self._is_full():
            self._rewrite(self.read()[:offset] + content)
            return
        if dropped:  # first: a new tail could end where one of these begins
            self._store.delete_many([self._name_tail(start) for start in dropped])
        self._store.write(self._name_tail(offset), content)
        self._tails = {start: tail for start, tail in self._tails.items() if start < offset} | {offset: content}

    def _is_full(self) -> bool:
        """Return whether the tails become a part of the base: the larger it is, the more of them it is written again for."""
        return len(self._tails) >= min(_MAX_TAILS, max(_MIN_TAILS, self._base_size // _BASE_BYTES_PER_TAIL))

    def _rewrite(self, content: bytes) -> None:
        self._store.write(self._key, content)
        self.delete_tails()
        self._digest, self._base_size = compute_checksum(content), len(content)

    def delete_tails(self) -> None:
        """Delete the tails of a base that was replaced: the next one may have the same content."""
        names, self._tails = [self._name_tail(start) for start in self._tails], {}
        if names:
            self._store.delete_many(names)

    def _name_tail(self, offset: int) -> str:
        return f"{self._key}.tail/{self._digest}-{offset:012d}"
