"""Small durable documents: JSON after a line with a check sum and the place of the document.

3f2a… 9c1e…/manifest/0000000007.json    16 hexadecimal digits: the check sum of the rest; identity of the checkpoint; key
{"size": 8000000, …}
"""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import CheckpointError
from headrace.storage.checksum import compute_checksum
from headrace.storage.records import decode_records, encode_records
from headrace.storage.store import Store


def put_document(store: Store, key: str, value: object, *, if_absent: bool = False, sync: bool = True) -> None:
    """Store a JSON value."""
    body = json.dumps(value, separators=(",", ":")).encode()
    store.put(key, _seal(body, store.place_of(key)), if_absent=if_absent, sync=sync)


def put_record(store: Store, key: str, value: object, *, if_absent: bool = False, sync: bool = True) -> None:
    """Store a record and the records that it contains."""
    store.put(key, encode_record(store, key, value), if_absent=if_absent, sync=sync)


def encode_record(store: Store, key: str, value: object) -> list[bytes]:
    """Return the stored form of a record, in parts."""
    return _seal(encode_records(value).encode(), store.place_of(key))


def _seal(body: bytes, place: str) -> list[bytes]:
    sealed = f"{place}\n".encode() + body
    return [compute_checksum(sealed).encode(), b" ", sealed]


def get_document(store: Store, key: str) -> Any:
    """Return a JSON value; raises CheckpointError if the document is missing, damaged, or that of another place."""
    try:
        return json.loads(_unseal(store.get(key), store.place_of(key)))
    except (OSError, ValueError) as error:
        raise damaged_error(store, key, error) from error


def _unseal(content: bytes, place: str) -> bytes:
    checksum, _, sealed = content.partition(b" ")
    if checksum != compute_checksum(sealed).encode():
        raise ValueError("the check sum does not match the content")
    written_place, _, body = sealed.partition(b"\n")
    check_place(written_place.decode(), place)
    return body


def check_place(written: str, found: str) -> None:
    """Raise ValueError if an object was written for another place than that in which it is found."""
    if written != found:
        raise ValueError(
            f"it is a copy of '{written}', found at '{found}' (if every file has this error, 'HEADRACE' is of another checkpoint)"
        )


def get_record(store: Store, key: str) -> Any:
    """Return a record; raises CheckpointError if the document is missing, damaged, or has no form that this version reads."""
    try:
        content = store.get(key)
    except OSError as error:
        raise damaged_error(store, key, error) from error
    return decode_record(store, key, content)


def decode_record(store: Store, key: str, content: bytes) -> Any:
    """Return the record that an object contains; raises CheckpointError as `get_record` does."""
    try:
        return decode_records(json.loads(_unseal(content, store.place_of(key))))
    except ValueError as error:
        raise damaged_error(store, key, error) from error


def damaged_error(store: Store, key: str, error: Exception) -> CheckpointError:
    """Return the error for an object of a checkpoint that is missing or damaged."""
    hint = "restore the checkpoint directory from a copy, or start with a new one and read the input again"
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"file '{store.name_of(key)}' of the checkpoint is missing", hint=hint)
    return CheckpointError(f"file '{store.name_of(key)}' of the checkpoint is damaged", detail=str(error), hint=hint)
