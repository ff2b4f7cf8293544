"""A durable list of JSON values: one line each, with a check sum, appended one after the other.

A crash during an append may leave an incomplete last line: it was never acknowledged, and reading removes it. A complete line
whose check sum does not match is damage. Lines that are cut off at their end are noticed by whoever knows how many there were:
positions of sources, which manifests contain, have the digest of the lines that they depend on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headrace.storage.checksum import compute_checksum
from headrace.storage.documents import damaged_error
from headrace.storage.store import Store


class AppendLog:
    """The lines of one object of a store; one process at a time may append."""

    def __init__(self, store: Store, key: str) -> None:
        """Take the place of the log; `create` or `read` must be called before lines are appended."""
        self._store, self._key = store, key

    def exists(self) -> bool:
        """Return whether the log was created."""
        return self._store.find_size(self._key) is not None

    def read(self) -> list[Any]:
        """Return all values; create the log if it is missing. Raises CheckpointError for a damaged line.

        The log is written again: a killed process may have left lines that are not synced, and the reader depends on them.
        """
        content = self._store.get(self._key) if self.exists() else b""
        end = content.rfind(b"\n") + 1
        values = [self._decode_line(number, line) for number, line in enumerate(content[:end].splitlines())]
        self.replace(values)
        return values

    def append(self, value: object) -> None:
        """Append a value, durably."""
        self._store.append_line(self._key, _encode_line(value))

    def replace(self, values: Iterable[object]) -> None:
        """Replace all values, atomically."""
        self._store.put(self._key, [_encode_line(value) + b"\n" for value in values])

    def _decode_line(self, number: int, line: bytes) -> Any:
        checksum, _, body = line.partition(b" ")
        if checksum != compute_checksum(body).encode():
            raise damaged_error(self._store, self._key, ValueError(f"the check sum of line {number + 1} does not match"))
        return json.loads(body)


def extend_digest(digest: str, value: object) -> str:
    """Return the digest of some values and one more, given that of the values before it ("" for none)."""
    return compute_checksum(digest.encode() + _encode_line(value))


def _encode_line(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return compute_checksum(body).encode() + b" " + body
