"""A durable list of JSON values: one line each, with a check sum, appended one after the other.

The check sum of a line also covers the place of the log and the number of the line: lines of another log do not match.

A crash during an append may leave an incomplete last line: it was never acknowledged, reading ignores it, and the next append
replaces it. So does the append after one that failed, whatever that has left. A complete line whose check sum does not match is
damage. Lines that are cut off at their end are noticed by whoever knows how many there were:
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
        """Take the place of the log; `read` or `replace` must be called before lines are appended."""
        self._store, self._key = store, key
        self._place = store.place_of(key)
        self._line_count = 0
        self._end: int | None = None  # of the acknowledged lines, in bytes; None if the last `replace` failed

    def exists(self) -> bool:
        """Return whether the log was created."""
        return self._store.find_size(self._key) is not None

    def read(self) -> list[Any]:
        """Return all values; create the log if it is missing. Raises CheckpointError for a damaged line.

        The log is written again: a killed process may have left lines that are not synced, and the reader depends on them.
        """
        content = self._store.get_appended(self._key) if self.exists() else b""
        end = content.rfind(b"\n") + 1
        values = [self._decode_line(number, line) for number, line in enumerate(content[:end].splitlines())]
        self.replace(values)
        return values

    def append(self, *values: object) -> None:
        """Append values, durably. After an error some may be there when the log is read again, unless others follow."""
        end = self._find_end(self._store.get_appended(self._key)) if self._end is None else self._end
        lines = b"".join(self._encode_line(number, value) for number, value in enumerate(values, self._line_count))
        self._store.append(self._key, lines, end)
        self._end, self._line_count = end + len(lines), self._line_count + len(values)

    def replace(self, values: Iterable[object]) -> None:
        """Replace all values, atomically; after an error, the old values or the new ones are there."""
        self._end = None
        lines = [self._encode_line(number, value) for number, value in enumerate(values)]
        self._store.put(self._key, lines)
        self._end, self._line_count = sum(map(len, lines)), len(lines)

    def _find_end(self, content: bytes) -> int:
        """Find the end of the complete lines, and their number."""
        self._end, self._line_count = content.rfind(b"\n") + 1, content.count(b"\n")
        return self._end

    def _encode_line(self, number: int, value: object) -> bytes:
        body = _to_json(value)
        return self._compute_checksum(number, body) + b" " + body + b"\n"

    def _decode_line(self, number: int, line: bytes) -> Any:
        checksum, _, body = line.partition(b" ")
        if checksum != self._compute_checksum(number, body):
            raise damaged_error(self._store, self._key, ValueError(f"the check sum of line {number + 1} does not match"))
        return json.loads(body)

    def _compute_checksum(self, number: int, body: bytes) -> bytes:
        return compute_checksum(f"{self._place} {number} ".encode() + body).encode()


def extend_digest(digest: str, value: object) -> str:
    """Return the digest of some values and one more, given that of the values before it ("" for none)."""
    return compute_checksum(digest.encode() + _to_json(value))


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
