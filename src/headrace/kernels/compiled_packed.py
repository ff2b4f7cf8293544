"""Compiled loops that keep row count and sum in one word, count · 2⁴⁰ + sum.

This halves the memory per addition, and memory bounds the map stage. The caller ensures that sums stay within ± 2³⁹ and
counts below 2²³.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)
PACKED_ROW = np.int64(1 << 40)
PACKED_HALF_ROW = np.int64(1 << 39)


@_jit
def select_and_add_packed(values, base, table, slot, size, summed, out):
    """Compute cell, group, row count and sum in one pass, for the common query shape.

    That shape compares one integer and sums one integer, without NULLs. No query selects rows with a cell of −1.
    """
    top = table.size - 1
    for i in range(values.size):
        cell = table[min(max(np.int64(values[i]) - base, 0), top)]
        if cell >= 0:
            out[slot[i] * size + cell] += PACKED_ROW + summed[i]


@_jit
def unpack_counts_and_sums(packed, out):
    """Add the packed counts and sums to (out[:, 0], out[:, 1]), and clear the packed words."""
    for i in range(packed.size):
        word = packed[i]
        if word:
            total = ((word + PACKED_HALF_ROW) & (PACKED_ROW - 1)) - PACKED_HALF_ROW
            out[i, 0] += (word - total) >> 40
            out[i, 1] += total
            packed[i] = 0
