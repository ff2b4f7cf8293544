"""What the decoders of all formats write: the kinds of columns, the states of values, and the reasons of rejects.

A value is one word of 64 bits, or two, by column and row. A text is two words, address and size, with ESCAPED in the size if JSON
escapes are still in it. A DEFERRED value is the same two words, of its text; Python converts it.
"""

from __future__ import annotations

from headrace.connectors.message_formats.kernels.memory import get, inner, put, store_byte

SKIP, OBJECT, INTEGER, DOUBLE, FLOAT, EPOCH, DECIMAL, BOOLEAN, TEXT, DATE, TIMESTAMP = range(11)  # numbers, truth, then texts
MISSING, PRESENT, DEFERRED = 0, 1, 2
ESCAPED = 1 << 40
RAW = 1 << 41  # of the size of a deferred text that is not JSON
DOUBLED = 1 << 42  # of the size of a text in which quotes are doubled

# Why a message is rejected; from NOT_INTEGER on because of a column.
EMPTY, NOT_UTF8, NOT_OBJECT, MALFORMED, TRAILING, TOO_DEEP, BEHIND_MALFORMED = 1, 2, 3, 4, 5, 6, 7
NOT_INTEGER, NOT_NUMBER, NOT_BOOLEAN, NOT_TEXT, NOT_DATE, NOT_TIMESTAMP, NOT_DECIMAL = 10, 11, 12, 13, 14, 15, 16
OUT_OF_RANGE, LOST_DIGITS, LONE_SURROGATE, NOT_NESTED = 17, 18, 19, 20
NOT_TEXT_BYTES, UNFIT_BRANCH = 21, 22

# The record of a column begins with its kind, digits after the point and the bounds of its integers, and the addresses of first
# words, of second words and of states, by row.
KIND, SCALE, LOW, HIGH, VALUES, SIZES, STATES = range(7)


@inner
def store_value(field, row, value):
    """Store the value of a column."""
    put(get(field, VALUES), row, value)
    store_byte(get(field, STATES) + row, PRESENT)


@inner
def store_text(field, row, at, size, state):
    """Store a text, or the text of a value that is deferred."""
    put(get(field, VALUES), row, at)
    put(get(field, SIZES), row, size)
    store_byte(get(field, STATES) + row, state)
