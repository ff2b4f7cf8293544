"""The decoder of JSON messages: one loop over all messages, driven by the tables of a schema.

Columns and the objects on their paths are *fields*, numbered in depth-first order: the columns below an object are a range. Most
messages have their fields in the same order, so the name after field f is first compared with the name that followed f the last
time; only if it is another one it is hashed.

A field is a record of FIELD_WIDTH numbers, and known by its address:

    KIND SCALE LOW HIGH          its type, digits after the point, and the bounds of integers
    VALUES SIZES STATES          addresses of its words, of second words, and of its states, by row
    NAME NAME_SIZE               its name, with a closing quote behind it; PREDICTABLE if JSON writes it as it is
    OWNER END SLOTS MASK         the object it is in; of an object the end of the fields in it, and its hash table
    NEXT INNER                   the field that followed it in an earlier message; the one that came first in it
    NUMBER                       the column, for rejects
    MARK PLACE SEEN              of this message: the reason why the value does not fit, its place; the last row that has it

The first field is the message itself; its MARK says whether any other is set.
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.decoded import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DEFERRED,
    DOUBLE,
    EMPTY,
    EPOCH,
    ESCAPED,
    FLOAT,
    HIGH,
    INTEGER,
    KIND,
    LONE_SURROGATE,
    LOST_DIGITS,
    LOW,
    MALFORMED,
    MISSING,
    NOT_BOOLEAN,
    NOT_DATE,
    NOT_DECIMAL,
    NOT_INTEGER,
    NOT_NESTED,
    NOT_NUMBER,
    NOT_OBJECT,
    NOT_TEXT,
    NOT_TIMESTAMP,
    NOT_UTF8,
    OBJECT,
    OUT_OF_RANGE,
    PRESENT,
    SCALE,
    SIZES,
    SKIP,
    STATES,
    TEXT,
    TIMESTAMP,
    TOO_DEEP,
    TRAILING,
    store_text,
    store_value,
)  # fmt: skip
from headrace.connectors.message_formats.kernels.json_text import (
    COLON,
    COMMA,
    LOW_WORD,
    MAX_DEPTH,
    NULL,
    QUOTE,
    is_blank,
    scan_text,
    skip_blanks,
    skip_literal,
    skip_value,
    unescape,
)  # fmt: skip
from headrace.connectors.message_formats.kernels.memory import (
    bits_of_double,
    equal_bytes,
    get,
    inner,
    is_utf8,
    jit,
    load_byte,
    load_word,
    put,
    store_byte,
)  # fmt: skip
from headrace.connectors.message_formats.kernels.scalars import (
    FRACTIONAL,
    LONG,
    NEGATIVE,
    NO_LIMIT,
    parse_date,
    parse_timestamp,
    scan_number,
    to_double,
    to_scaled,
)

NAME, NAME_SIZE, PREDICTABLE, OWNER, END, SLOTS, MASK, NEXT, INNER, MARK, PLACE, SEEN, NUMBER = range(7, 20)
FIELD_WIDTH = 20
_FIELD_BYTES = 8 * FIELD_WIDTH
_ZERO = np.uint64(0)
_LARGEST = (1 << 63) - 1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MAX_FLOAT = 3.4028235677973362e38  # greater values round to infinity


@inner
def hash_name(at, size):
    """Return a hash of a name, of its size and up to 16 of its bytes."""
    word = _ZERO
    if size >= 8:
        word = load_word(at) ^ load_word(at + size - 8) * _MULTIPLIER
    elif size > 0:
        word = load_word(at) << np.uint64(64 - 8 * size)
    word = (word ^ np.uint64(size)) * _MULTIPLIER
    return np.int64(word >> np.uint64(40))


@jit
def fill_slots(fields, end):
    """Enter the fields of all objects into their hash tables, which have 0 where no field is."""
    field = fields + _FIELD_BYTES
    while field < end:
        owner = get(field, OWNER)
        place = hash_name(get(field, NAME), get(field, NAME_SIZE)) & get(owner, MASK)
        while get(get(owner, SLOTS), place) != 0:
            place = (place + 1) & get(owner, MASK)
        put(get(owner, SLOTS), place, field)
        field += _FIELD_BYTES


@inner
def _find_field(owner, at, size):
    """Return the field of an object that has a name, or 0."""
    mask, slots = get(owner, MASK), get(owner, SLOTS)
    place = hash_name(at, size) & mask
    field = get(slots, place)
    while field != 0 and (get(field, NAME_SIZE) != size or not equal_bytes(get(field, NAME), at, size)):
        place = (place + 1) & mask
        field = get(slots, place)
    return field


@inner
def _find_escaped_field(owner, at, size, scratch, room):
    """Return the field whose name is written with escapes, or 0; a name that needs more room than any field is none."""
    return _find_field(owner, scratch, unescape(scratch, at, at + size) - scratch) if size <= room else 0


@inner
def _store_integer(field, row, mantissa, flags):
    """Store an integer; return 0, or the reason why it does not fit."""
    if flags & FRACTIONAL:
        return NOT_INTEGER
    is_negative = flags & NEGATIVE
    if flags & LONG or mantissa > np.uint64(_LARGEST) + np.uint64(is_negative):
        return OUT_OF_RANGE
    value = -np.int64(mantissa) if is_negative else np.int64(mantissa)
    if value < get(field, LOW) or value > get(field, HIGH):
        return OUT_OF_RANGE
    store_value(field, row, value)
    return 0


@inner
def _store_scaled(field, row, kind, value):
    """Store a decimal or a time as an integer; return 0, or the reason why it does not fit."""
    if value < get(field, LOW) or value > get(field, HIGH):
        return OUT_OF_RANGE
    store_value(field, row, value)
    if kind == DECIMAL:
        put(get(field, SIZES), row, value >> 63)
    return 0


@inner
def _decode_number(at, field, row, kind, powers):
    """Decode a number, or text that spells a decimal, or that names what is no finite number."""
    is_text = 1 if load_byte(at) == QUOTE else 0
    if is_text and (kind == INTEGER or kind == EPOCH):
        return 0, NOT_INTEGER if kind == INTEGER else NOT_NUMBER
    at += is_text
    end, mantissa, exponent, flags = scan_number(at, NO_LIMIT)
    if is_text and (kind != DECIMAL or end == 0 or load_byte(end) != QUOTE):
        end, found = scan_text(at)
        if end == 0 or found != 0 or end - at > 400:
            return 0, NOT_DECIMAL if kind == DECIMAL else NOT_NUMBER
        store_text(field, row, at, end - at, DEFERRED)
        return end + 1, 0
    if end == 0:
        return 0, NOT_INTEGER if kind == INTEGER else NOT_DECIMAL if kind == DECIMAL else NOT_NUMBER
    reason = 0
    if kind == INTEGER:
        reason = _store_integer(field, row, mantissa, flags)
    elif kind == DOUBLE or kind == FLOAT:
        is_known, value = to_double(mantissa, exponent, flags, powers)
        if is_known and (kind == DOUBLE or abs(value) < _MAX_FLOAT):
            store_value(field, row, bits_of_double(value))
        else:
            store_text(field, row, at, end - at, DEFERRED)
    else:
        status, scaled = to_scaled(mantissa, exponent, flags, get(field, SCALE), kind == EPOCH)
        if status == 2:
            store_text(field, row, at, end - at, DEFERRED)
        else:
            reason = _store_scaled(field, row, kind, scaled) if status else LOST_DIGITS
    return (end + is_text if reason == 0 else 0), reason


@inner
def _decode_text(at, field, row, kind):
    """Decode text, a date or a time."""
    if load_byte(at) != QUOTE:
        return 0, NOT_TEXT if kind == TEXT else NOT_DATE if kind == DATE else NOT_TIMESTAMP
    end, found = scan_text(at + 1)
    if end == 0:
        return 0, NOT_TEXT
    if found == LONE_SURROGATE:
        return 0, LONE_SURROGATE
    if kind == TEXT:
        store_text(field, row, at + 1, (end - at - 1) | found, PRESENT)
        return end + 1, 0
    is_known, value = False, 0
    if kind == TIMESTAMP:
        is_known, value = parse_timestamp(at + 1, end)
    elif end - at == 11:
        is_known, value = parse_date(at + 1)
    if is_known:
        store_value(field, row, value)
    else:
        store_text(field, row, at + 1, (end - at - 1) | found, DEFERRED)
    return end + 1, 0


@inner
def _decode_value(at, field, row, powers):
    """Store the value of a column; return its end, or 0 and the reason why it does not fit."""
    kind = get(field, KIND)
    if load_word(at) & LOW_WORD == NULL:
        store_byte(get(field, STATES) + row, MISSING)
        return at + 4, 0
    if kind == BOOLEAN:
        end = skip_literal(at)
        if end != 0:
            store_value(field, row, 1 if end - at == 4 else 0)
        return end, NOT_BOOLEAN
    if kind >= TEXT:
        return _decode_text(at, field, row, kind)
    return _decode_number(at, field, row, kind, powers)


@inner
def _mark_columns(message, owner, row, mark, place):
    """Set the mark of all columns below an object, whose states become MISSING."""
    field = owner + _FIELD_BYTES
    while field < get(owner, END):
        if get(field, KIND) > OBJECT:
            store_byte(get(field, STATES) + row, MISSING)
            put(field, MARK, mark)
            put(field, PLACE, place)
            if mark:
                put(message, MARK, 1)
        field += _FIELD_BYTES


@inner
def _decode_message(begin, end, row, message, powers, brackets, owners, scratch, room):
    """Store the columns of one message; return why it is rejected, or 0, and where."""
    at = begin
    while at < end and is_blank(load_byte(at)):
        at += 1
    if at == end:
        return EMPTY, 0
    if load_byte(at) != 123:
        stop = skip_value(at, end, np.int64(0), brackets)
        return (NOT_OBJECT if 0 < stop <= end and skip_blanks(stop) >= end else MALFORMED), at - begin
    owner, previous, depth = message, message + 8, np.int64(0)  # `previous` + 8 · NEXT is where the next field is learnt
    at = skip_blanks(at + 1)
    is_name_next = load_byte(at) != 125
    while True:
        if is_name_next:
            if load_byte(at) != QUOTE or at >= end:
                return MALFORMED, at - begin
            field = get(previous, NEXT)
            size = get(field, NAME_SIZE)
            if equal_bytes(get(field, NAME), at + 1, size + 1):
                at += size + 2
                previous = field
            else:
                stop, found = scan_text(at + 1)
                if stop == 0 or stop >= end:
                    return MALFORMED, at - begin
                size = stop - at - 1
                if found == 0:
                    field = _find_field(owner, at + 1, size)
                else:
                    field = _find_escaped_field(owner, at + 1, size, scratch, room) if found == ESCAPED else 0
                if field != 0:
                    if get(field, PREDICTABLE):
                        put(previous, NEXT, field)
                    previous = field
                at = stop + 1
            if load_byte(at) != COLON:
                at = skip_blanks(at)
                if load_byte(at) != COLON:
                    return MALFORMED, at - begin
            at = skip_blanks(at + 1)
            kind = get(field, KIND) if field != 0 else SKIP
            stop, reason = 0, 0
            if kind > OBJECT:
                stop, reason = _decode_value(at, field, row, powers)
                if get(message, MARK):
                    put(field, MARK, 0)
            elif kind == OBJECT:
                if get(field, SEEN) == row:
                    _mark_columns(message, field, row, 0, 0)
                put(field, SEEN, row)
                if load_byte(at) == 123:
                    put(owners, depth, owner)
                    depth += 1
                    owner, previous = field, field + 8
                    at = skip_blanks(at + 1)
                    is_name_next = load_byte(at) != 125
                    continue
                if load_byte(at) != 110:
                    _mark_columns(message, field, row, NOT_NESTED, at - begin)
            if stop == 0:
                stop = skip_value(at, end, depth, brackets)
                if reason:
                    put(field, MARK, reason)
                    put(field, PLACE, at - begin)
                    put(message, MARK, 1)
            if stop <= 0:
                return (MALFORMED if stop == 0 else TOO_DEEP), at - begin
            at = skip_blanks(stop)
        byte = load_byte(at)
        if byte == COMMA and is_name_next:
            at = skip_blanks(at + 1)
            continue
        if byte != 125 or at >= end:
            return MALFORMED, at - begin
        at += 1
        if depth == 0:
            break
        depth -= 1
        previous, owner = owner, get(owners, depth)
        at = skip_blanks(at)
        is_name_next = load_byte(at) == COMMA
        if is_name_next:
            at = skip_blanks(at + 1)
    place = at - begin
    while at < end and is_blank(load_byte(at)):
        at += 1
    return (0 if at == end else TRAILING if at < end else MALFORMED), place


@jit
def decode_messages(data, offsets, is_plain, fields, powers, codes, rejecting, positions):
    """Decode all messages at an address.

    `fields` are the records, of which the message is the first. A rejected message
    has its reason in `codes`, and the column, or −1, and the position of the byte in the other arrays; its states are
    MISSING. `is_plain` says that all bytes are ASCII.
    """
    count = fields.shape[0]
    message = np.int64(fields.ctypes.data)
    stacks = np.empty(2 * MAX_DEPTH + 2, np.int64)
    brackets = np.int64(stacks.ctypes.data)
    owners = brackets + 8 * MAX_DEPTH + 8
    room = np.int64(0)  # a literal would compile everything below for itself, too
    for field in range(count):
        room = max(room, 6 * fields[field, NAME_SIZE])
    space = np.zeros(room + 32, np.uint8)
    scratch = np.int64(space.ctypes.data)
    powers_at = np.int64(powers.ctypes.data)
    for row in range(offsets.size - 1):
        at, end = data + offsets[row], data + offsets[row + 1]
        code, place, column = NOT_UTF8, 0, -1
        if is_plain or is_utf8(at, end):
            code, place = _decode_message(at, end, row, message, powers_at, brackets, owners, scratch, room)
        if fields[0, MARK]:
            for field in range(count):
                if field and fields[field, MARK] and code == 0:
                    code, column, place = fields[field, MARK], fields[field, NUMBER], fields[field, PLACE]
                fields[field, MARK] = 0
        if code:
            codes[row], rejecting[row], positions[row] = code, column, place
            for field in range(1, count):
                if fields[field, KIND] > OBJECT:
                    store_byte(fields[field, STATES] + row, MISSING)
