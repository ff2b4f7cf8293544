"""One text searched for another, row by row; compiled like the loops of `compiled`.

Texts are UTF-8: `data` holds the bytes of all rows, row i is data[starts[i]:starts[i + 1]]. Rows that are NULL get a result,
too, which means nothing. Bytes are compared as they are; only what stands for *one character* looks for where it ends.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)
_ANY, _ONE = ord("%"), ord("_")


@_jit
def _width(first):
    """Return how many bytes the character has that begins with this one."""
    if first < 0xC0:
        return 1
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4


@_jit
def _same(data, at, search, begin, size):
    i = 0
    while i < size and data[at + i] == search[begin + i]:
        i += 1
    return i == size


@_jit
def _fits(data, at, end, pattern, begin, stop, escape):
    """Tell whether data[at:end] is like pattern[begin:stop]; a `%` takes as little as will do, and more when the rest fails."""
    p, again, kept = begin, -1, at
    while at < end:
        if p < stop:
            if stop - p >= escape.size and _same(pattern, p, escape, 0, escape.size):
                taken = p if p + escape.size == stop else p + escape.size
                size = _width(pattern[taken])
                if end - at >= size and _same(data, at, pattern, taken, size):
                    at, p = at + size, taken + size
                    continue
            elif pattern[p] == _ANY:
                p += 1
                again, kept = p, at
                continue
            elif pattern[p] == _ONE:
                at, p = at + _width(data[at]), p + 1
                continue
            elif pattern[p] == data[at]:
                at, p = at + 1, p + 1
                continue
        elif again == stop:  # it ended with `%`
            return True
        if again < 0:
            return False
        kept += _width(data[kept])
        at, p = kept, again
    while p < stop and pattern[p] == _ANY and not (stop - p >= escape.size and _same(pattern, p, escape, 0, escape.size)):
        p += 1
    return p == stop


@_jit
def like(data, starts, pattern, pattern_starts, escape):
    """Tell of each row whether its text is like its pattern; `escape` holds the bytes of the character that escapes."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        out[i] = _fits(data, starts[i], starts[i + 1], pattern, pattern_starts[i], pattern_starts[i + 1], escape)
    return out


@_jit
def starts_with(data, starts, search, search_starts):
    """Tell of each row whether its text begins with what is searched for."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        size = search_starts[i + 1] - search_starts[i]
        out[i] = starts[i + 1] - starts[i] >= size and _same(data, starts[i], search, search_starts[i], size)
    return out


@_jit
def ends_with(data, starts, search, search_starts):
    """Tell of each row whether its text ends with what is searched for."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        size = search_starts[i + 1] - search_starts[i]
        out[i] = starts[i + 1] - starts[i] >= size and _same(data, starts[i + 1] - size, search, search_starts[i], size)
    return out


@_jit
def contains(data, starts, search, search_starts):
    """Tell of each row whether what is searched for is anywhere in its text."""
    out = np.empty(starts.size - 1, np.bool_)
    for i in range(out.size):
        size = search_starts[i + 1] - search_starts[i]
        out[i] = False
        for at in range(starts[i], starts[i + 1] - size + 1):
            if _same(data, at, search, search_starts[i], size):
                out[i] = True
                break
    return out
