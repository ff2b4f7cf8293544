"""Compiled loops of grouping: the slot of each row, and counts, sums and extremes by group.

A slot is slice · number of keys + key. Edges are the starts of slices, ascending. A `valid` array of length zero means that
there are no NULLs. A group of −1 means: dropped.

The packed kernels keep row count and sum in one word, count · 2⁴⁰ + sum. This halves the memory per addition, and memory
bounds the map stage. The caller ensures that sums stay within ± 2³⁹ and counts below 2²³.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def _find_slice(edges, time):
    low, high = 0, edges.size - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if edges[middle] <= time:
            low = middle
        else:
            high = middle - 1
    return low


@_jit
def assign_slots(times, edges, keys, key_count):
    """Return slice · key_count + key for each row; the slice of a row is the last edge not after its time."""
    out = np.empty(times.size, np.int64)
    at, last = 0, edges.size - 1
    for i in range(times.size):
        t = times[i]
        if t < edges[at] or (at < last and t >= edges[at + 1]):
            at = _find_slice(edges, t)
        out[i] = at * key_count + keys[i]
    return out


@_jit
def assign_slots_direct(times, edges, values, valid, low, place, key_count):
    """Return slice · key_count + key for each row, with key = place[value − low] (last entry: NULL)."""
    out = np.empty(times.size, np.int64)
    at, last = 0, edges.size - 1
    for i in range(times.size):
        t = times[i]
        if t < edges[at] or (at < last and t >= edges[at + 1]):
            at = _find_slice(edges, t)
        key = place[place.size - 1] if valid.size and not valid[i] else place[values[i] - low]
        out[i] = at * key_count + key
    return out


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


@_jit
def extract_packed_groups(packed, size, slots, starts, cells, counts, sums):
    """Write the cells, row counts and sums of the groups with rows, and the slots that have such a group, with their first one.

    There are `size` groups for each slot; the outputs have room for all of them, and `starts` for one more. Return the numbers of
    slots and of groups, and bounds of the counts and of the magnitudes of sums.
    """
    at, used = 0, 0
    count_bits, sum_bits = np.int64(0), np.int64(0)
    for slot in range(packed.size // size):
        before = at
        for cell in range(size):  # without a branch: what is written for an empty group is overwritten by the next one
            word = packed[slot * size + cell]
            total = ((word + PACKED_HALF_ROW) & (PACKED_ROW - 1)) - PACKED_HALF_ROW
            count = (word - total) >> 40
            cells[at], counts[at], sums[at] = cell, count, total
            count_bits |= count
            sum_bits |= total ^ (total >> 63)
            at += word != 0
        slots[used], starts[used] = slot, before
        used += at > before
    starts[used] = at
    return used, at, count_bits, sum_bits


@_jit
def count_rows(at, out):
    """Count rows in out[:, 0]."""
    for i in range(at.size):
        if at[i] >= 0:
            out[at[i], 0] += 1


@_jit
def count_rows_and_sum_integers(at, values, valid, out):
    """Count rows in out[:, 0] and sum integers in out[:, 1]: two results per cache line."""
    for i in range(at.size):
        if at[i] >= 0:
            out[at[i], 0] += 1
            if valid.size == 0 or valid[i]:
                out[at[i], 1] += values[i]


@_jit
def count_rows_and_sum_floats(at, values, valid, counts, sums):
    """Count rows in counts[:, 0] and sum floats in sums[:, 1] and sums[:, 2].

    Both are views of the same memory, one line per group.
    """
    for i in range(at.size):
        if at[i] >= 0:
            counts[at[i], 0] += 1
            if valid.size == 0 or valid[i]:
                a, b = sums[at[i], 1], np.float64(values[i])
                s = a + b
                t = s - a
                sums[at[i], 1] = s
                sums[at[i], 2] += (a - (s - t)) + (b - t)


@_jit
def count_valid(at, valid, out):
    """Count rows that are not NULL."""
    for i in range(at.size):
        if at[i] >= 0 and valid[i]:
            out[at[i]] += 1


@_jit
def sum_integers(at, values, valid, out):
    """Sum integers."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]):
            out[at[i]] += values[i]


@_jit
def sum_floats(at, values, valid, high, low):
    """Sum floats with compensation for rounding: high + low is the sum to twice the precision."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]):
            a, b = high[at[i]], np.float64(values[i])
            s = a + b
            t = s - a
            high[at[i]] = s
            low[at[i]] += (a - (s - t)) + (b - t)


@_jit
def min_integers(at, values, valid, out):
    """Update minima."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]) and values[i] < out[at[i]]:
            out[at[i]] = values[i]


@_jit
def max_integers(at, values, valid, out):
    """Update maxima."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]) and values[i] > out[at[i]]:
            out[at[i]] = values[i]


@_jit
def min_floats(at, values, valid, out):
    """Update minima; NaN is greater than everything, and the initial value of an empty cell."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]):
            v, a = values[i], out[at[i]]
            if a != a or v < a:
                out[at[i]] = v


@_jit
def max_floats(at, values, valid, out):
    """Update maxima; NaN is greater than everything."""
    for i in range(at.size):
        if at[i] >= 0 and (valid.size == 0 or valid[i]):
            v, a = values[i], out[at[i]]
            if v != v or v > a:
                out[at[i]] = v


@_jit
def hash_integers(values, state):
    """Mix integers into running 64-bit hashes, in place."""
    for i in range(values.size):
        h = (state[i] ^ np.uint64(values[i])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
        state[i] = h * np.uint64(0xD6E8FEB86659FD93)


@_jit
def hash_strings(offsets, data, state):
    """Mix strings (Arrow offsets and bytes) into running 64-bit hashes, in place."""
    for i in range(offsets.size - 1):
        h = state[i] ^ np.uint64(0xCBF29CE484222325)
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        h ^= h >> np.uint64(32)
        state[i] = h * np.uint64(0xD6E8FEB86659FD93)
