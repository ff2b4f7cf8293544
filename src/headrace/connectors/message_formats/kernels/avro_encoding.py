"""Avro records from columns: one loop over all rows, driven by a record for each field.

OP                 how a value is written; NULLS and VALUES are the numbers of the branches of its union, or −1
DATA ENDS VALID    addresses: of the values or the bytes of texts, of the offsets of texts, and of a byte for each row
"""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.memory import copy_bytes, get, inner, jit, load_byte, load_int, put, store_byte

OP, NULLS, VALUES, DATA, ENDS, VALID = range(6)
WIDTH = 6
VARINT, EIGHT, FOUR, ONE, BYTES, DECIMAL = range(6)
LONGEST_VALUE = 32  # bytes of anything but a text, with the branch of the union


@inner
def write_varint(at, value):
    """Write a number in groups of 7 bits and return the address after it."""
    while value < 0 or value > 127:
        store_byte(at, value & 127 | 128)
        value = value >> 7 & 0x1FFFFFFFFFFFFFF
        at += 1
    store_byte(at, value)
    return at + 1


@inner
def _write_zigzag(at, value):
    return write_varint(at, value << 1 ^ value >> 63)


@inner
def _write_value(at, field, row):
    op, data = get(field, OP), get(field, DATA)
    if op == VARINT:
        return _write_zigzag(at, get(data, row))
    if op == EIGHT:
        put(at, 0, get(data, row))
        return at + 8
    if op == FOUR:
        put(at, 0, load_int(data + 4 * row))
        return at + 4
    if op == ONE:
        store_byte(at, load_byte(data + row))
        return at + 1
    if op == DECIMAL:
        at = _write_zigzag(at, 16)
        for i in range(16):
            store_byte(at + i, load_byte(data + 16 * row + 15 - i))
        return at + 16
    start = load_int(get(field, ENDS) + 4 * row) & 0xFFFFFFFF
    size = (load_int(get(field, ENDS) + 4 * row + 4) & 0xFFFFFFFF) - start
    at = _write_zigzag(at, size)
    copy_bytes(at, data + start, size)
    return at + size


@jit
def encode_records(fields, count, header, header_size, rows, target, ends):
    """Write a record for each row, back to back, with their ends in `ends`; return the first field that lacks a NULL, or −1."""
    first = at = target
    ends[0] = 0
    for row in range(rows):
        copy_bytes(at, header, header_size)
        at += header_size
        for place in range(count):
            field = fields + 8 * WIDTH * place
            is_null = get(field, VALID) != 0 and load_byte(get(field, VALID) + row) == 0
            branch = get(field, NULLS) if is_null else get(field, VALUES)
            if is_null and branch < 0:
                return place
            if branch >= 0:
                at = _write_zigzag(at, branch)
            if not is_null:
                at = _write_value(at, field, row)
        ends[row + 1] = at - first
    return -1
