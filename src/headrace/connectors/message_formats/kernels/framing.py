"""Files cut into messages: lines of text, and messages behind their lengths.

Addresses may be of a mapped file: no byte behind its end is read.
"""

from __future__ import annotations

import numpy as np

from headrace.connectors.message_formats.kernels.avro_messages import read_varint
from headrace.connectors.message_formats.kernels.json_text import is_blank
from headrace.connectors.message_formats.kernels.memory import (
    first_byte,
    inner,
    jit,
    load_byte,
    load_word,
    store_byte,
    store_word,
)

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_ZERO = np.uint64(0)


@inner
def _find_line_end(at, end):
    """Return the address behind the next newline, or the end."""
    while at + 8 <= end:
        word = load_word(at) ^ _NEWLINES
        marks = (word - _ONES) & ~word & _HIGHS
        if marks != _ZERO:
            return at + first_byte(marks) + 1
        at += 8
    while at < end:
        at += 1
        if load_byte(at - 1) == 10:
            return at
    return end


@jit
def split_lines(data, start, limit, end, offsets):
    """Fill in where lines begin, and where the last one ends, as offsets from an address; return the number of lines.

    They are those that begin before `limit`, as many as there is room for. A blank line belongs to the line before it; those at
    the start belong to none.
    """
    at, stop, last, count = data + start, data + limit, data + end, 0
    while at < stop and count < offsets.size - 1:
        line = at
        at = _find_line_end(at, last)
        text = line
        while text < at and is_blank(load_byte(text)):
            text += 1
        if text < at:
            offsets[count] = line - data
            count += 1
    offsets[count] = at - data
    return count


@inner
def _copy_exactly(target, source, end):
    """Copy bytes; up to 7 bytes after the target are not overwritten, and none after the source are read."""
    while source + 8 <= end:
        store_word(target, load_word(source))
        target, source = target + 8, source + 8
    while source < end:
        store_byte(target, load_byte(source))
        target, source = target + 1, source + 1


@jit
def split_delimited(data, start, limit, end, offsets, target):
    """Copy messages, each behind its length as a varint, back to back, with their bounds in `offsets`.

    They are those that end before `limit`, as many as there is room for. Return their number, the offset behind the last of them,
    and whether a length that is malformed or reaches beyond the end follows.
    """
    at, stop, last, count = data + start, data + limit, data + end, 0
    offsets[0] = 0
    while at < stop and count < offsets.size - 1:
        prefix = at
        while at < last and at < prefix + 10 and load_byte(at) >= 128:
            at += 1
        is_cut = at == last or at == prefix + 10
        size = np.int64(0)
        if not is_cut:
            at, size = read_varint(prefix)
        if is_cut or at == 0 or size < 0 or size > last - at:
            return count, prefix - data, True
        if at + size > stop:
            return count, prefix - data, False
        _copy_exactly(target + offsets[count], at, at + size)
        offsets[count + 1] = offsets[count] + size
        count += 1
        at += size
    return count, at - data, False
