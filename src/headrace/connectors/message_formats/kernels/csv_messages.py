"""The decoder of CSV messages: one record in each, with a value for each declared column, in order.

An empty value without quotes is NULL. A column is a record as in `decoded`, with its number for rejects in NUMBER.
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.avro_messages import store_integer
from headrace.connectors.message_formats.kernels.decoded import (
    BOOLEAN,
    DECIMAL,
    DEFERRED,
    DOUBLED,
    EMPTY,
    EPOCH,
    FLOAT,
    INTEGER,
    KIND,
    MALFORMED,
    NOT_BOOLEAN,
    NOT_INTEGER,
    NOT_NUMBER,
    NOT_UTF8,
    OUT_OF_RANGE,
    PRESENT,
    RAW,
    SCALE,
    SKIP,
    TEXT,
    store_text,
    store_value,
)
from headrace.connectors.message_formats.kernels.memory import bits_of_double, get, inner, is_utf8, jit, load_byte
from headrace.connectors.message_formats.kernels.scalars import FRACTIONAL, LONG, NEGATIVE, scan_number, to_double, to_scaled
from headrace.connectors.message_formats.kernels.text_values import store_plain_text

NUMBER = 7
WIDTH = 8
_QUOTE = 34
_LARGEST = np.uint64((1 << 63) - 1)
_MAX_FLOAT = 3.4028235677973362e38  # greater values round to infinity


@inner
def _store_number(column, row, at, size, powers):
    """Store a number that is written as text; return 0, or the reason why it does not fit."""
    kind = get(column, KIND)
    end, mantissa, exponent, flags = scan_number(at, at + size)
    is_number = end == at + size
    if kind == INTEGER:
        if not is_number or flags & FRACTIONAL:
            return NOT_INTEGER
        if flags & LONG or mantissa > _LARGEST + np.uint64(flags & NEGATIVE):
            return OUT_OF_RANGE
        return store_integer(column, row, -np.int64(mantissa) if flags & NEGATIVE else np.int64(mantissa))
    if kind == EPOCH:
        status, value = to_scaled(mantissa, exponent, flags, get(column, SCALE), True)
        if not is_number:
            return NOT_NUMBER
        if status == 1:
            store_value(column, row, value)
            return 0
    elif is_number:
        is_known, number = to_double(mantissa, exponent, flags, powers)
        if is_known and (kind != FLOAT or abs(number) < _MAX_FLOAT):
            store_value(column, row, bits_of_double(number))
            return 0
    store_text(column, row, at, size | RAW, DEFERRED)
    return 0


@inner
def _store_truth(column, row, at, size):
    """Store true or false in any case, or 1 or 0; return 0, or the reason why the text is neither."""
    first = load_byte(at)
    if size == 1 and (first == 48 or first == 49):
        store_value(column, row, first - 48)
        return 0
    word = np.int64(0)
    for i in range(min(size, 6)):
        word = word << 8 | (load_byte(at + i) | 32)
    if word == 0x74727565 or word == 0x66616C7365:
        store_value(column, row, 1 if size == 4 else 0)
        return 0
    return NOT_BOOLEAN


@inner
def _store(column, row, at, size, is_quoted, has_quotes, powers):
    kind = get(column, KIND)
    if kind == SKIP or (size == 0 and not is_quoted):
        return 0
    if kind == TEXT and has_quotes:
        store_text(column, row, at, size | DOUBLED, PRESENT)
        return 0
    if kind >= TEXT or kind == DECIMAL:
        return store_plain_text(column, row, at, size)
    if kind == BOOLEAN:
        return _store_truth(column, row, at, size)
    return _store_number(column, row, at, size, powers)


@inner
def _run(columns, count, at, end, row, delimiter, powers):
    """Read a record; return why it is rejected, or 0, the column, and where."""
    begin = at
    for place in range(count):
        column = columns + 8 * WIDTH * place
        start, is_quoted, has_quotes = at, False, False
        if at < end and load_byte(at) == _QUOTE:
            is_quoted = True
            start = at = at + 1
            while at < end:
                if load_byte(at) == _QUOTE:
                    if at + 1 >= end or load_byte(at + 1) != _QUOTE:
                        break
                    has_quotes = True
                    at += 1
                at += 1
            if at >= end:
                return MALFORMED, -1, start - begin
            size = at - start
            at += 1
        else:
            while at < end and load_byte(at) != delimiter:
                byte = load_byte(at)
                if byte == 10 or byte == 13 or byte == _QUOTE:
                    return MALFORMED, -1, at - begin
                at += 1
            size = at - start
        is_last = place == count - 1
        if is_last != (at >= end) or (not is_last and load_byte(at) != delimiter):
            return MALFORMED, -1, at - begin
        reason = _store(column, row, start, size, is_quoted, has_quotes, powers)
        if reason != 0:
            return reason, get(column, NUMBER), start - begin
        at += 1
    return 0, -1, 0


@jit
def decode_csv(data, offsets, columns, count, delimiter, powers, codes, rejecting, positions):
    """Read all messages, which begin and end at offsets from an address.

    A rejected message has its reason in `codes`, and the column, or −1, and the position of the byte in the other arrays.
    """
    powers_at = np.int64(powers.ctypes.data)
    for row in range(offsets.size - 1):
        at, end = data + offsets[row], data + offsets[row + 1]
        if end > at and load_byte(end - 1) == 10:
            end -= 1
        if end > at and load_byte(end - 1) == 13:
            end -= 1
        code, column, place = EMPTY, -1, 0
        if offsets[row + 1] > offsets[row]:
            code, column, place = NOT_UTF8, -1, 0
            if is_utf8(at, end):
                code, column, place = _run(columns, count, at, end, row, delimiter, powers_at)
        if code:
            codes[row], rejecting[row], positions[row] = code, column, place


@jit
def check_utf8(data, offsets, codes, code):
    """Set the code of each message that is not UTF-8."""
    for row in range(offsets.size - 1):
        if not is_utf8(data + offsets[row], data + offsets[row + 1]):
            codes[row] = code
