"""Columns that a message has as plain text, without the escapes of JSON: text, dates, times, and decimals."""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.decoded import (
    DATE,
    DECIMAL,
    DEFERRED,
    HIGH,
    LOST_DIGITS,
    LOW,
    NOT_TEXT_BYTES,
    OUT_OF_RANGE,
    PRESENT,
    RAW,
    SCALE,
    SIZES,
    TEXT,
    TIMESTAMP,
    store_text,
    store_value,
)
from headrace.connectors.message_formats.kernels.decoded import KIND as KIND_ITEM
from headrace.connectors.message_formats.kernels.memory import get, inner, is_utf8, put
from headrace.connectors.message_formats.kernels.scalars import parse_date, parse_timestamp, scan_number, to_scaled


@inner
def store_plain_text(record, row, at, size):
    """Store what a text means in a column; return 0, or the reason why it does not fit."""
    if not is_utf8(at, at + size):
        return NOT_TEXT_BYTES
    kind = get(record, KIND_ITEM)
    if kind == TEXT:
        store_text(record, row, at, size, PRESENT)
        return 0
    is_known, value = False, 0
    if kind == TIMESTAMP:
        is_known, value = parse_timestamp(at, at + size)
    elif kind == DATE and size == 10:
        is_known, value = parse_date(at)
    elif kind == DECIMAL:
        end, mantissa, exponent, flags = scan_number(at, at + size)
        if end == at + size:
            status, value = to_scaled(mantissa, exponent, flags, get(record, SCALE), False)
            if status == 0:
                return LOST_DIGITS
            if status == 1:
                if value < get(record, LOW) or value > get(record, HIGH):
                    return OUT_OF_RANGE
                put(get(record, SIZES), row, value >> 63)
                is_known = True
    if is_known:
        store_value(record, row, value)
    else:
        store_text(record, row, at, size | RAW, DEFERRED)
    return 0
