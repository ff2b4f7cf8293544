"""The grammar of JSON: texts with escapes, and values that are skipped.

Functions take an address and return the address after what they read, or 0 for anything malformed. They may read into the next
message; the caller compares the end that it gets with that of its message.
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.decoded import ESCAPED, LONE_SURROGATE
from headrace.connectors.message_formats.kernels.memory import (
    first_byte,
    get,
    inner,
    load_byte,
    load_word,
    mark_special,
    put,
    store_byte,
)
from headrace.connectors.message_formats.kernels.scalars import NO_LIMIT, scan_number

MAX_DEPTH = 512
QUOTE, BACKSLASH, COMMA, COLON = 34, 92, 44, 58
LOW_WORD = np.uint64(0xFFFFFFFF)
NULL = np.uint64(0x6C6C756E)
_TRUE, _FALS = np.uint64(0x65757274), np.uint64(0x736C6166)
_ZERO = np.uint64(0)


@inner
def is_blank(byte):
    """Return whether a byte is white space between tokens."""
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@inner
def skip_blanks(at):
    """Return the address of the next byte that is no white space."""
    while is_blank(load_byte(at)):
        at += 1
    return at


@inner
def _hex_digits(at):
    """Return the number of four hexadecimal digits, or −1."""
    value = 0
    for i in range(4):
        byte = load_byte(at + i)
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 65 <= byte <= 70:
            digit = byte - 55
        elif 97 <= byte <= 102:
            digit = byte - 87
        else:
            return -1
        value = value * 16 + digit
    return value


@inner
def _skip_escape(at):
    """Return the end of the escape whose backslash is at an address, or 0, and whether it is half of a surrogate pair."""
    kind = load_byte(at + 1)
    if kind != 117:
        simple = kind == 34 or kind == 92 or kind == 47 or kind == 98 or kind == 102 or kind == 110 or kind == 114 or kind == 116
        return (at + 2 if simple else 0), False
    code = _hex_digits(at + 2)
    if code < 0:
        return 0, False
    if code < 0xD800 or code > 0xDFFF:
        return at + 6, False
    if code < 0xDC00 and load_byte(at + 6) == BACKSLASH and load_byte(at + 7) == 117:
        low = _hex_digits(at + 8)
        if 0xDC00 <= low <= 0xDFFF:
            return at + 12, False
    return at + 6, True


@inner
def scan_text(at):
    """Return the address of the closing quote of the text that begins at an address, or 0; and 0, ESCAPED or LONE_SURROGATE."""
    found = 0
    while True:
        marks = mark_special(load_word(at))
        if marks == _ZERO:
            at += 8
            continue
        at += first_byte(marks)
        byte = load_byte(at)
        if byte == QUOTE:
            return at, found
        if byte != BACKSLASH:
            return 0, 0
        at, is_lone = _skip_escape(at)
        if at == 0:
            return 0, 0
        found = LONE_SURROGATE if is_lone or found == LONE_SURROGATE else ESCAPED


@inner
def _store_code(target, code):
    """Write a character as UTF-8 and return the address after it."""
    if code < 0x80:
        store_byte(target, code)
        return target + 1
    if code < 0x800:
        store_byte(target, 0xC0 | code >> 6)
    else:
        if code < 0x10000:
            store_byte(target, 0xE0 | code >> 12)
        else:
            store_byte(target, 0xF0 | code >> 18)
            store_byte(target + 1, 0x80 | code >> 12 & 0x3F)
            target += 1
        store_byte(target + 1, 0x80 | code >> 6 & 0x3F)
        target += 1
    store_byte(target + 1, 0x80 | code & 0x3F)
    return target + 2


@inner
def unescape(target, source, end):
    """Write a valid text without its escapes and return the address after it."""
    while source < end:
        byte = load_byte(source)
        if byte != BACKSLASH:
            store_byte(target, byte)
            target, source = target + 1, source + 1
            continue
        kind = load_byte(source + 1)
        if kind == 117:
            code = _hex_digits(source + 2)
            source += 6
            if 0xD800 <= code <= 0xDBFF:
                code = 0x10000 + ((code - 0xD800) << 10) + _hex_digits(source + 2) - 0xDC00
                source += 6
            target = _store_code(target, code)
            continue
        source += 2
        if kind == 98:
            kind = 8
        elif kind == 102:
            kind = 12
        elif kind == 110:
            kind = 10
        elif kind == 114:
            kind = 13
        elif kind == 116:
            kind = 9
        store_byte(target, kind)
        target += 1
    return target


@inner
def skip_literal(at):
    """Return the end of `null`, `true` or `false`, or 0."""
    word = load_word(at) & LOW_WORD
    if word == NULL or word == _TRUE:
        return at + 4
    return at + 5 if word == _FALS and load_byte(at + 4) == 101 else 0


@inner
def _skip_scalar(at):
    """Return the end of a value that is neither an object nor an array, or 0."""
    byte = load_byte(at)
    if byte == QUOTE:
        end, _ = scan_text(at + 1)
        return end + 1 if end else 0
    if byte == 45 or 48 <= byte <= 57:
        end, _, _, _ = scan_number(at, NO_LIMIT)
        return end
    return skip_literal(at)


@inner
def skip_value(at, end, depth, brackets):
    """Return the end of the value at an address, 0 if it is malformed, or −1 if it is too deep; `brackets` is scratch space."""
    byte = load_byte(at)
    if byte != 123 and byte != 91:
        return _skip_scalar(at)
    first = depth
    while at < end:
        byte = load_byte(at)
        if byte == 123 or byte == 91:
            if depth >= MAX_DEPTH:
                return -1
            put(brackets, depth, byte)
            depth += 1
            at = skip_blanks(at + 1)
            if load_byte(at) != byte + 2:
                if byte == 123:
                    at = _skip_name(at)
                    if at == 0:
                        return 0
                continue
        else:
            at = _skip_scalar(at)
            if at == 0:
                return 0
            at = skip_blanks(at)
        while load_byte(at) == get(brackets, depth - 1) + 2:
            depth -= 1
            if depth == first:
                return at + 1
            at = skip_blanks(at + 1)
        if load_byte(at) != COMMA:
            return 0
        at = skip_blanks(at + 1)
        if get(brackets, depth - 1) == 123:
            at = _skip_name(at)
            if at == 0:
                return 0
    return 0


@inner
def _skip_name(at):
    """Return the address of the value after the name at an address, or 0."""
    if load_byte(at) != QUOTE:
        return 0
    at, _ = scan_text(at + 1)
    if at == 0:
        return 0
    at = skip_blanks(at + 1)
    return skip_blanks(at + 1) if load_byte(at) == COLON else 0
