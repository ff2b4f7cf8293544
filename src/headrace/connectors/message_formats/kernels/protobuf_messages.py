"""The decoder of Protobuf messages: a table of fields by number for each message type that has columns.

A field is a record that begins as that of a column. A message on the path of a column is a field, too, with the fields in it:

    OP NUMBER                how its value is written, and the column, for rejects
    FIELD WIRE               its number in the message, and the wire type that it must have
    SLOTS MASK               of a message: a hash table of the fields in it, by number
    FIRST END                of a message: the fields that are in it, directly or not
    OWNER IMPLICIT SEEN      the message it is in; whether a missing value is 0; the last row that has this message
    RIVAL                    the next field of the same oneof, in a circle; 0 without one
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.avro_messages import read_varint, store_integer, unzigzag
from headrace.connectors.message_formats.kernels.decoded import KIND as KIND_ITEM
from headrace.connectors.message_formats.kernels.decoded import (
    MALFORMED,
    MISSING,
    OBJECT,
    OUT_OF_RANGE,
    PRESENT,
    SIZES,
    STATES,
    TOO_DEEP,
    UNFIT_BRANCH,
    VALUES,
    store_text,
    store_value,
)
from headrace.connectors.message_formats.kernels.memory import (
    bits_of_double,
    double_of_bits,
    float_of_bits,
    get,
    inner,
    jit,
    load_byte,
    load_int,
    put,
    store_byte,
)
from headrace.connectors.message_formats.kernels.text_values import store_plain_text

OP, NUMBER, FIELD, WIRE, SLOTS, MASK, FIRST, END, OWNER, IMPLICIT, SEEN, RIVAL, SYMBOLS, SYMBOL_COUNT = range(7, 21)
WIDTH = 22
MESSAGE, SIGNED, SIGNED_32, UNSIGNED, UNSIGNED_32, ZIGZAG, BOOL, ENUM_NAME, FLOAT_BITS, DOUBLE_BITS, STRING, TIME, RIVAL_ONLY = (
    range(13)
)
_BYTES = 8 * WIDTH
_MAX_DEPTH = 100
_GROUP, _GROUP_END = 3, 4


@inner
def _find_field(message, number):
    """Return the field of a message with a number, or 0."""
    slots, mask = get(message, SLOTS), get(message, MASK)
    place = number & mask
    field = get(slots, place)
    while field != 0 and get(field, FIELD) != number:
        place = (place + 1) & mask
        field = get(slots, place)
    return field


@inner
def _enter(message, row):
    """Note that a row has a message; the values that it may leave out are 0, unless an earlier part of it has them."""
    if get(message, SEEN) == row:
        return
    put(message, SEEN, row)
    field = get(message, FIRST)
    while field < get(message, END):
        if get(field, IMPLICIT) and get(field, OWNER) == message:
            put(get(field, VALUES), row, 0)
            put(get(field, SIZES), row, 0)
            if get(field, OP) == ENUM_NAME:
                _store_symbol(field, row, 0)
            else:
                store_byte(get(field, STATES) + row, PRESENT)
        field += _BYTES


@inner
def _store_symbol(field, row, value):
    """Store the name of a number of an enum; return 0, or the reason why it has none."""
    symbol = get(field, SYMBOLS)
    for _ in range(get(field, SYMBOL_COUNT)):
        if get(symbol, 0) == value:
            store_text(field, row, get(symbol, 1), get(symbol, 2), PRESENT)
            return 0
        symbol += 24
    return UNFIT_BRANCH


@inner
def _clear(field, row):
    """Remove the value of a field of a oneof, and those in it if it is a message."""
    if get(field, KIND_ITEM) > OBJECT:
        store_byte(get(field, STATES) + row, MISSING)
        return
    put(field, SEEN, -1)
    below = get(field, FIRST)
    while below < get(field, END):
        put(below, SEEN, -1)
        if get(below, KIND_ITEM) > OBJECT:
            store_byte(get(below, STATES) + row, MISSING)
        below += _BYTES


@inner
def _clear_rivals(field, row):
    rival = get(field, RIVAL)
    while rival != 0 and rival != field:
        _clear(rival, row)
        rival = get(rival, RIVAL)


@inner
def _store_number(field, row, value):
    """Store a number of the wire type varint; return 0, or the reason why it does not fit."""
    op = get(field, OP)
    if op == BOOL:
        store_value(field, row, 1 if value != 0 else 0)
        return 0
    if op == ENUM_NAME:
        return _store_symbol(field, row, np.int64(np.int32(value)))
    if op == SIGNED_32:
        value = np.int64(np.int32(value))
    elif op == UNSIGNED_32:
        value &= 0xFFFFFFFF
    elif op == ZIGZAG:
        value = unzigzag(value)
    elif op == UNSIGNED and value < 0:
        return OUT_OF_RANGE
    return store_integer(field, row, value)


@inner
def _store_fixed(field, row, at, size):
    op = get(field, OP)
    if op == DOUBLE_BITS or op == FLOAT_BITS:
        number = double_of_bits(load_int(at)) if op == DOUBLE_BITS else float_of_bits(load_int(at))
        store_value(field, row, bits_of_double(number))
        return 0
    value = load_int(at)
    return _store_number(field, row, value if size == 8 else value & 0xFFFFFFFF)


@inner
def _store_time(field, row, at, end):
    """Store a google.protobuf.Timestamp; return 0, or the reason why it is none.

    A message may come in parts: what this part lacks is as in the part before it.
    """
    seconds = nanos = 0
    if load_byte(get(field, STATES) + row) == PRESENT:
        stored = get(get(field, VALUES), row)
        seconds, nanos = stored // 1_000_000, stored % 1_000_000 * 1000
    while at < end:
        tag = load_byte(at)
        at, value = read_varint(at + 1)
        if at == 0 or at > end or (tag != 8 and tag != 16):
            return UNFIT_BRANCH
        if tag == 8:
            seconds = value
        else:
            nanos = value
    if seconds < -62135596800 or seconds > 253402300799 or nanos < 0 or nanos > 999_999_999:
        return OUT_OF_RANGE
    store_value(field, row, seconds * 1_000_000 + nanos // 1000)
    return 0


@inner
def _skip_group(at, end, number, groups):
    """Return the end of a group whose first tag was read, or 0."""
    depth = 1
    put(groups, 0, number)
    while at < end:
        at, tag = read_varint(at)
        if at == 0 or tag < 8 or tag > 0xFFFFFFFF:
            return 0
        wire = tag & 7
        if wire == _GROUP:
            if depth >= _MAX_DEPTH:
                return 0
            put(groups, depth, tag >> 3)
            depth += 1
        elif wire == _GROUP_END:
            depth -= 1
            if get(groups, depth) != tag >> 3:
                return 0
            if depth == 0:
                return at if at <= end else 0
        elif wire == 1 or wire == 5:
            at += 8 if wire == 1 else 4
        elif wire == 0 or wire == 2:
            at, size = read_varint(at)
            if at == 0 or at > end:
                return 0
            if wire == 2:
                if size < 0 or size > end - at:
                    return 0
                at += size
        else:
            return 0
    return 0


@inner
def _run(root, begin, end, row, stack, groups):
    """Read a message; return why it is rejected, or 0, the column, and where."""
    at, message, stop, depth = begin, root, end, 0
    _enter(root, row)
    while True:
        while at >= stop:
            if at > stop:
                return MALFORMED, -1, at - begin
            if depth == 0:
                return 0, -1, 0
            depth -= 1
            message, stop = get(stack, 2 * depth), get(stack, 2 * depth + 1)
        start = at
        at, tag = read_varint(at)
        if at == 0 or at > stop or tag < 8 or tag > 0xFFFFFFFF:
            return MALFORMED, -1, start - begin
        wire, number = tag & 7, tag >> 3
        field = _find_field(message, number)
        if field != 0:
            if get(field, WIRE) != wire:
                field = 0
            elif get(field, RIVAL) != 0:
                _clear_rivals(field, row)
                if get(field, OP) == RIVAL_ONLY:
                    field = 0
        reason, value_at = 0, at
        if wire == 0 or wire == 2:
            at, value = read_varint(at)
            if at == 0 or at > stop:
                return MALFORMED, -1, start - begin
            if wire == 0:
                if field != 0:
                    reason = _store_number(field, row, value)
            else:
                if value < 0 or value > stop - at:
                    return MALFORMED, -1, start - begin
                if field != 0 and get(field, OP) == MESSAGE:
                    if depth >= _MAX_DEPTH:
                        return TOO_DEEP, -1, start - begin
                    put(stack, 2 * depth, message)
                    put(stack, 2 * depth + 1, stop)
                    depth += 1
                    message, stop = field, at + value
                    _enter(field, row)
                    continue
                if field != 0:
                    is_time = get(field, OP) == TIME
                    reason = _store_time(field, row, at, at + value) if is_time else store_plain_text(field, row, at, value)
                at += value
        elif wire == 1 or wire == 5:
            at += 8 if wire == 1 else 4
            if at > stop:
                return MALFORMED, -1, start - begin
            if field != 0:
                reason = _store_fixed(field, row, value_at, at - value_at)
        else:
            at = _skip_group(at, stop, number, groups) if wire == _GROUP else 0
            if at == 0:
                return MALFORMED, -1, start - begin
        if reason != 0:
            return reason, get(field, NUMBER), start - begin


@jit
def fill_numbers(field, end):
    """Enter all fields into the hash tables of their messages."""
    field += _BYTES
    while field < end:
        owner = get(field, OWNER)
        place = get(field, FIELD) & get(owner, MASK)
        while get(get(owner, SLOTS), place) != 0:
            place = (place + 1) & get(owner, MASK)
        put(get(owner, SLOTS), place, field)
        field += _BYTES


@jit
def decode_fields(data, starts, ends, rows, root, codes, rejecting, positions):
    """Read the messages of some rows, which begin and end at offsets from an address.

    A rejected message has its reason in `codes`, and the column, or −1, and the position of the byte in the other arrays.
    """
    space = np.empty(3 * _MAX_DEPTH + 6, np.int64)
    stack = np.int64(space.ctypes.data)
    groups = stack + 16 * _MAX_DEPTH + 16
    for row in rows:
        code, column, place = _run(root, data + starts[row], data + ends[row], row, stack, groups)
        if code:
            codes[row], rejecting[row], positions[row] = code, column, place


@jit
def read_indexes(data, starts, ends, rows, codes):
    """Move the starts of rows behind the list of indexes that follows the header of a registry.

    The indexes, 15 bits of each plus 1, are the code of a row; it is −1 if there are more than four or the list is malformed.
    """
    for i in range(rows.size):
        row = rows[i]
        at, end = data + starts[row], data + ends[row]
        at, count = read_varint(at)
        count = unzigzag(count)
        codes[i] = -1
        if at == 0 or at > end or count < 0 or count > 4:
            continue
        code = 0 if count else 1
        for place in range(count):
            at, index = read_varint(at)
            index = unzigzag(index)
            if at == 0 or at > end or index < 0 or index >= 1 << 14:
                at, code = end + 1, -1
                break
            code |= (index + 1) << (15 * place)
        if at <= end:
            codes[i] = code
            starts[row] = at - data
