"""Messages that are no rows, as dead letters keep them: the bytes of value, key and headers, so that they can be sent again."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from headrace.model.types import TIMESTAMP

REJECTED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("reason", pa.string()),
        ("key", pa.large_binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.large_binary())]))),
        ("value", pa.large_binary()),
    ]
)
_BASE64 = "_base64"


def convert_to_text(rejected: pa.Table) -> pa.Table:
    """Return messages for files of JSON: bytes that are no UTF-8 text are base64, in the field with `_base64` in its name."""
    columns: dict[str, Any] = {name: rejected[name] for name in ("topic", "partition", "offset", "timestamp", "reason")}
    columns |= _split_text("key", rejected["key"].to_pylist())
    columns["headers"] = pa.array(
        [[_convert_header(**header) for header in headers] for headers in rejected["headers"].to_pylist()],
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.string()), (f"value{_BASE64}", pa.string())])),
    )
    columns |= _split_text("value", rejected["value"].to_pylist())
    return pa.table(columns)


def _split_text(name: str, contents: list[bytes | None]) -> dict[str, pa.Array]:
    pairs = [_convert_bytes(content) for content in contents]
    return {
        name: pa.array([text for text, _ in pairs], pa.string()),
        f"{name}{_BASE64}": pa.array([encoded for _, encoded in pairs], pa.string()),
    }


def _convert_header(name: str, value: bytes | None) -> dict[str, str | None]:
    text, encoded = _convert_bytes(value)
    return {"name": name, "value": text, f"value{_BASE64}": encoded}


def _convert_bytes(content: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text, or as base64; one of both is None."""
    if content is None:
        return None, None
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(content).decode()
