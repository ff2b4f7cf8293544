"""Small durable documents: JSON with a check sum in front, in one line each.

3f2a…  16 hexadecimal digits: the check sum of the rest
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
    store.put(key, _add_checksum(body), if_absent=if_absent, sync=sync)


def _add_checksum(body: bytes) -> list[bytes]:
    return [compute_checksum(body).encode(), b"\n", body]


def get_document(store: Store, key: str) -> Any:
    """Return a JSON value; raises CheckpointError if the document is missing or damaged."""
    try:
        return _verify_document(store.get(key))
    except (OSError, ValueError) as error:
        raise damaged_error(store, key, error) from error


def _verify_document(content: bytes) -> Any:
    checksum, separator, body = content.partition(b"\n")
    if not separator or checksum != compute_checksum(body).encode():
        raise ValueError("the check sum does not match the content")
    return json.loads(body)


def put_record(store: Store, key: str, value: object, *, if_absent: bool = False, sync: bool = True) -> None:
    """Store a record and the records that it contains."""
    store.put(key, encode_record(value), if_absent=if_absent, sync=sync)


def encode_record(value: object) -> list[bytes]:
    """Return the stored form of a record, in parts."""
    return _add_checksum(encode_records(value).encode())


def get_record(store: Store, key: str) -> Any:
    """Return a record; raises CheckpointError if the document is missing, damaged, or has no form that this version reads."""
    document = get_document(store, key)
    try:
        return decode_records(document)
    except ValueError as error:
        raise damaged_error(store, key, error) from error


def damaged_error(store: Store, key: str, error: Exception) -> CheckpointError:
    """Return the error for an object of a checkpoint that is missing or damaged."""
    hint = "restore the checkpoint directory from a copy, or start with a new one and read the input again"
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"file '{store.name_of(key)}' of the checkpoint is missing", hint=hint)
    return CheckpointError(f"file '{store.name_of(key)}' of the checkpoint is damaged", detail=str(error), hint=hint)
