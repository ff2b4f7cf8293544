"""Compiled loops of selection: the cell of each row, and the slot of each row and cell; numba caches them on disk.

All kernels are data-driven: constants, boundaries, spans and offsets are arguments, so a new query of a known shape compiles
nothing. A `valid` array of length zero means that there are no NULLs. An id or cell of −1 means: dropped.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def add_segments_table(values, valid, base, table, null_segment, stride, cells):
    """Add stride · segment to cells, for a small integer domain: table[v − base], clamped at both ends."""
    top = table.size - 1
    for i in range(values.size):
        if valid.size and not valid[i]:
            cells[i] += null_segment * stride
            continue
        at = np.int64(values[i]) - base
        at = 0 if at < 0 else (top if at > top else at)
        cells[i] += table[at] * stride


@_jit
def add_segments_search(values, valid, boundaries, above, null_segment, stride, cells):
    """Add stride · segment to cells by binary search; NaN is above all boundaries (`above` is their number)."""
    for i in range(values.size):
        if valid.size and not valid[i]:
            cells[i] += null_segment * stride
            continue
        v = values[i]
        if v != v:
            cells[i] += above * stride
            continue
        low, high = 0, boundaries.size
        while low < high:
            middle = (low + high) >> 1
            if boundaries[middle] <= v:
                low = middle + 1
            else:
                high = middle
        cells[i] += low * stride


@_jit
def compute_slot_cell_ids(slot, cells, keep, size):
    """Return slot · size + cell, or −1 where no query selects the cell."""
    out = np.empty(slot.size, np.int64)
    for i in range(slot.size):
        c = cells[i]
        out[i] = slot[i] * size + c if keep[c] else -1
    return out


@_jit
def factorize_values(values):
    """Return (distinct values ≥ 0, code of each value or −1), in the order of first occurrence."""
    capacity = 1024
    while capacity < values.size * 2 and capacity < 1 << 16:
        capacity *= 2
    table = np.full(capacity, -1, np.int64)
    distinct = np.empty(min(values.size, capacity), np.int64)
    codes = np.empty(values.size, np.int64)
    count = 0
    for i in range(values.size):
        v = values[i]
        if v < 0:
            codes[i] = -1
            continue
        if count * 2 >= table.size:
            larger_table = np.full(table.size * 4, -1, np.int64)
            for c in range(count):
                h = (distinct[c] * np.int64(-7046029254386353131)) >> 20 & (larger_table.size - 1)
                while larger_table[h] >= 0:
                    h = (h + 1) & (larger_table.size - 1)
                larger_table[h] = c
            table = larger_table
        if count == distinct.size:
            larger_distinct = np.empty(max(distinct.size * 2, 16), np.int64)
            larger_distinct[:count] = distinct
            distinct = larger_distinct
        h = (v * np.int64(-7046029254386353131)) >> 20 & (table.size - 1)
        while table[h] >= 0 and distinct[table[h]] != v:
            h = (h + 1) & (table.size - 1)
        if table[h] < 0:
            table[h] = count
            distinct[count] = v
            count += 1
        codes[i] = table[h]
    return distinct[:count].copy(), codes
