"""Compiled loops that match each text against its own pattern or search string.

Texts are UTF-8: `data` holds the bytes of all rows, row i is data[starts[i]:starts[i + 1]]. The result of NULL rows is
undefined. Comparison is bytewise; only the wildcard for a single character decodes its width. Offsets are converted to int64 at
the top, because numba compiles an inner function once for each combination of types.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)
_PERCENT, _UNDERSCORE = ord("%"), ord("_")
_FIRST = np.int64(0)


@_jit
def _character_width(first):
    """Return the number of bytes of the character with this first byte."""
    if first < 0xC0:
        return 1
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4


@_jit
def _equal_bytes(data, at, search, begin, size):
    i = 0
    while i < size and data[at + i] == search[begin + i]:
        i += 1
    return i == size


@_jit
def _matches_like(data, at, end, pattern, begin, stop, escape):
    """Return whether data[at:end] is LIKE pattern[begin:stop]; `%` takes as little as possible, and more on a mismatch."""
    p, after_percent, retry_at = begin, -1, at
    while at < end:
        if p < stop:
            if stop - p >= escape.size and _equal_bytes(pattern, p, escape, _FIRST, escape.size):
                literal = p if p + escape.size == stop else p + escape.size
                size = _character_width(pattern[literal])
                if end - at >= size and _equal_bytes(data, at, pattern, literal, size):
                    at, p = at + size, literal + size
                    continue
            elif pattern[p] == _PERCENT:
                p += 1
                after_percent, retry_at = p, at
                continue
            elif pattern[p] == _UNDERSCORE:
                at, p = at + _character_width(data[at]), p + 1
                continue
            elif pattern[p] == data[at]:
                at, p = at + 1, p + 1
                continue
        elif after_percent == stop:  # the pattern ends with `%`
            return True
        if after_percent < 0:
            return False
        retry_at += _character_width(data[retry_at])
        at, p = retry_at, after_percent
    while (
        p < stop
        and pattern[p] == _PERCENT
        and not (stop - p >= escape.size and _equal_bytes(pattern, p, escape, _FIRST, escape.size))
    ):
        p += 1
    return p == stop


@_jit
def match_like(data, starts, pattern, pattern_starts, escape):
    """Return for each row whether its text is LIKE its pattern; `escape` holds the bytes of the escape character."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        at, end = np.int64(starts[i]), np.int64(starts[i + 1])
        out[i] = _matches_like(data, at, end, pattern, np.int64(pattern_starts[i]), np.int64(pattern_starts[i + 1]), escape)
    return out


@_jit
def starts_with(data, starts, search, search_starts):
    """Return for each row whether its text starts with its search string."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        at, end, begin = np.int64(starts[i]), np.int64(starts[i + 1]), np.int64(search_starts[i])
        size = search_starts[i + 1] - begin
        out[i] = end - at >= size and _equal_bytes(data, at, search, begin, size)
    return out


@_jit
def ends_with(data, starts, search, search_starts):
    """Return for each row whether its text ends with its search string."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        at, end, begin = np.int64(starts[i]), np.int64(starts[i + 1]), np.int64(search_starts[i])
        size = search_starts[i + 1] - begin
        out[i] = end - at >= size and _equal_bytes(data, end - size, search, begin, size)
    return out


@_jit
def contains_text(data, starts, search, search_starts):
    """Return for each row whether its text contains its search string."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        at, end, begin = np.int64(starts[i]), np.int64(starts[i + 1]), np.int64(search_starts[i])
        size = search_starts[i + 1] - begin
        out[i] = False
        for place in range(at, end - size + 1):
            if _equal_bytes(data, place, search, begin, size):
                out[i] = True
                break
    return out
