"""JSON objects from columns: one loop over all rows, driven by a record for each column.

KIND           how a value is written: as the text it is, as quoted text, as a time, or as true or false
PREFIX SIZE    address and size of what precedes a value: `{"name":` or `,"name":`
DATA ENDS      address of the bytes of texts or of the values, and of the offsets of texts
VALID          address of a byte for each row, 0 for NULL; 0 if there are no NULLs
"""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.memory import copy_bytes, get, inner, jit, load_byte, load_int, put, store_byte

KIND, PREFIX, SIZE, DATA, ENDS, VALID = range(6)
WIDTH = 6
LITERAL, QUOTED, TIME, TRUTH = range(4)
LONGEST_VALUE = 48  # bytes of a time, of `null`, or of the quotes of a text, with room for words
_DAY = 86_400_000_000


@inner
def _load_end(ends, row):
    """Return an offset of 32 bits."""
    return load_int(ends + 4 * row) & 0xFFFFFFFF


@inner
def _write_digits(at, value, count):
    for i in range(count):
        store_byte(at + count - 1 - i, 48 + value % 10)
        value //= 10
    return at + count


@inner
def write_date(at, days):
    """Write a day, counted from 1970-01-01, as `YYYY-MM-DD`; return the address after it."""
    days += 719468
    era = days // 146097
    day_of_era = days - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    at = _write_digits(at, year, 4)
    store_byte(at, 45)
    at = _write_digits(at + 1, month, 2)
    store_byte(at, 45)
    return _write_digits(at + 1, day_of_year - (153 * shifted + 2) // 5 + 1, 2)


@inner
def write_time(at, micros):
    """Write microseconds since 1970 as `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`; return the address after it."""
    days = micros // _DAY
    rest = micros - days * _DAY
    at = write_date(at, days)
    for separator, unit, size in ((84, 3_600_000_000, 2), (58, 60_000_000, 2), (58, 1_000_000, 2), (46, 1, 6)):
        if unit > 1 or rest > 0:
            store_byte(at, separator)
            at = _write_digits(at + 1, rest // unit, size)
            rest %= unit
    store_byte(at, 90)
    return at + 1


@inner
def _write_quoted(at, source, end):
    store_byte(at, 34)
    at += 1
    while source < end:
        byte = load_byte(source)
        source += 1
        if byte >= 32 and byte != 34 and byte != 92:
            store_byte(at, byte)
            at += 1
            continue
        store_byte(at, 92)
        short = 110 if byte == 10 else 114 if byte == 13 else 116 if byte == 9 else 0 if byte < 32 else byte
        if short:
            store_byte(at + 1, short)
            at += 2
            continue
        store_byte(at + 1, 117)
        at = _write_digits(at + 2, 0, 2)
        store_byte(at, 48 + (byte >> 4))
        low = byte & 15
        store_byte(at + 1, low + (48 if low < 10 else 87))
        at += 2
    store_byte(at, 34)
    return at + 1


@inner
def _write_value(at, column, row):
    kind, data = get(column, KIND), get(column, DATA)
    if kind == TIME:
        store_byte(at, 34)
        at = write_time(at + 1, get(data, row))
        store_byte(at, 34)
        return at + 1
    if kind == TRUTH:
        is_true = load_byte(data + row)
        put(at, 0, 0x65757274 if is_true else 0x65736C6166)
        return at + (4 if is_true else 5)
    start, end = data + _load_end(get(column, ENDS), row), data + _load_end(get(column, ENDS), row + 1)
    if kind == QUOTED:
        return _write_quoted(at, start, end)
    copy_bytes(at, start, end - start)
    return at + end - start


@jit
def encode_objects(columns, count, suffix, suffix_size, rows, target, ends):
    """Write an object for each row, back to back, with their ends in `ends`; the target has room for all escapes."""
    first = at = target
    ends[0] = 0
    for row in range(rows):
        for place in range(count):
            column = columns + 8 * WIDTH * place
            copy_bytes(at, get(column, PREFIX), get(column, SIZE))
            at += get(column, SIZE)
            if get(column, VALID) and not load_byte(get(column, VALID) + row):
                put(at, 0, 0x6C6C756E)
                at += 4
            else:
                at = _write_value(at, column, row)
        copy_bytes(at, suffix, suffix_size)
        at += suffix_size
        ends[row + 1] = at - first
