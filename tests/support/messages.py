"""Messages back to back and apart, and what a format makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from headrace.connectors.message_formats import make_message_format
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.model.types import Schema


def pack(messages: Sequence[bytes], padding: int = 0) -> Messages:
    offsets = np.cumsum([0, *map(len, messages)]).astype(np.int64)
    return Messages(offsets, np.frombuffer(b"".join(messages) + bytes(padding), np.uint8))


def unpack(messages: Messages) -> list[bytes]:
    data = messages.data.tobytes()
    return [data[start:stop] for start, stop in itertools.pairwise(messages.offsets.tolist())]


def decode_messages(
    name: str, messages: Sequence[bytes], schema: Schema, columns: Sequence[str] | None = None, /, **options
) -> DecodedMessages:
    fields = [field for field in schema if columns is None or field.name in columns]
    decoded = make_message_format(name, schema, options).decode(pack(messages), fields)
    decoded.table.validate(full=True)
    assert decoded.table.schema == Schema(tuple(fields)).to_arrow()
    return decoded


def list_rows(decoded: DecodedMessages, count: int) -> list[list[object] | None]:
    """Return a row for each message, None for a rejected one."""
    rows: list[list[object] | None] = [None] * count
    positions = range(count) if decoded.positions is None else decoded.positions.tolist()
    for position, row in zip(positions, decoded.table.to_pylist(), strict=True):
        rows[position] = list(row.values())
    assert [number for number, row in enumerate(rows) if row is None] == decoded.rejected.tolist()
    assert len(decoded.reasons) == len(decoded.rejected)
    return rows


def render(row: Sequence[object] | None) -> list[str] | None:
    """Return values as text that tells -0.0 from 0 and NaN from nothing."""
    return row and [value.isoformat() if isinstance(value, datetime) else repr(value) for value in row]
