"""Protobuf messages from columns: one loop over all rows, driven by a record for each field; NULL leaves the field out.

OP TAG SIZE        how a value is written; address and size of its tag
DATA ENDS VALID    addresses: of the values or the bytes of texts, of the offsets of texts, and of a byte for each row
"""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.avro_encoding import write_varint
from headrace.connectors.message_formats.kernels.memory import copy_bytes, get, inner, jit, load_byte, load_int, put, store_byte

OP, TAG, SIZE, DATA, ENDS, VALID = range(6)
WIDTH = 6
VARINT, ZIGZAG, EIGHT, FOUR, ONE, BYTES, TIME = range(7)
LONGEST_VALUE = 40  # bytes of anything but a text, with its tag


@inner
def _write_time(at, micros):
    """Write a google.protobuf.Timestamp with its size."""
    seconds = micros // 1_000_000
    begin = at + 1
    end = begin
    if seconds != 0:
        store_byte(end, 8)
        end = write_varint(end + 1, seconds)
    nanos = (micros - seconds * 1_000_000) * 1000
    if nanos != 0:
        store_byte(end, 16)
        end = write_varint(end + 1, nanos)
    store_byte(at, end - begin)
    return end


@inner
def _write_value(at, field, row):
    op, data = get(field, OP), get(field, DATA)
    if op == VARINT:
        return write_varint(at, get(data, row))
    if op == ZIGZAG:
        return write_varint(at, get(data, row) << 1 ^ get(data, row) >> 63)
    if op == TIME:
        return _write_time(at, get(data, row))
    if op == EIGHT:
        put(at, 0, get(data, row))
        return at + 8
    if op == FOUR:
        put(at, 0, load_int(data + 4 * row))
        return at + 4
    if op == ONE:
        store_byte(at, load_byte(data + row))
        return at + 1
    start = load_int(get(field, ENDS) + 4 * row) & 0xFFFFFFFF
    size = (load_int(get(field, ENDS) + 4 * row + 4) & 0xFFFFFFFF) - start
    at = write_varint(at, size)
    copy_bytes(at, data + start, size)
    return at + size


@jit
def encode_fields(fields, count, header, header_size, rows, target, ends):
    """Write a message for each row, back to back, with their ends in `ends`."""
    first = at = target
    ends[0] = 0
    for row in range(rows):
        copy_bytes(at, header, header_size)
        at += header_size
        for place in range(count):
            field = fields + 8 * WIDTH * place
            if get(field, VALID) == 0 or load_byte(get(field, VALID) + row) != 0:
                copy_bytes(at, get(field, TAG), get(field, SIZE))
                at = _write_value(at + get(field, SIZE), field, row)
        ends[row + 1] = at - first
