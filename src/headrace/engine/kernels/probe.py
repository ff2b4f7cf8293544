"""Compiled loops of sliding joins: hash indexes over state rows, look-ups, and pairs with matching query-sets and times.

For every condition, the partners of a row are a range of positions in some order of the state rows: those of equal hash,
those between two bounds, or all.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def index_hashes(hashes, valid, bits):
    """Return (directory, sorted hashes, order): an index of rows by hash.

    Cell c = hash >> (64 − bits) covers the positions from directory[c] up to directory[c + 1]. Rows that are not `valid` are
    excluded; an empty `valid` means that all rows are valid.
    """
    cells = 1 << bits
    shift = np.uint64(64 - bits)
    directory = np.zeros(cells + 1, np.int64)
    for i in range(hashes.size):
        if valid.size == 0 or valid[i]:
            directory[np.int64(hashes[i] >> shift) + 1] += 1
    for cell in range(cells):
        directory[cell + 1] += directory[cell]
    at = directory[:-1].copy()
    total = directory[cells]
    ordered = np.empty(total, np.uint64)
    order = np.empty(total, np.int32)
    for i in range(hashes.size):
        if valid.size == 0 or valid[i]:
            h = hashes[i]
            c = np.int64(h >> shift)
            j = at[c]
            at[c] += 1
            first = directory[c]
            while j > first and ordered[j - 1] > h:  # cells are small; insertion keeps rows of equal hash in order of arrival
                ordered[j] = ordered[j - 1]
                order[j] = order[j - 1]
                j -= 1
            ordered[j] = h
            order[j] = i
    return directory, ordered, order


@_jit
def look_up_hashes(hashes, valid, directory, ordered, bits):
    """Return for each hash the range of positions that have it: (begins, ends)."""
    shift = np.uint64(64 - bits)
    begins = np.zeros(hashes.size, np.int64)
    ends = np.zeros(hashes.size, np.int64)
    for i in range(hashes.size):
        if valid.size == 0 or valid[i]:
            h = hashes[i]
            c = np.int64(h >> shift)
            j = directory[c]
            last = directory[c + 1]
            while j < last and ordered[j] < h:
                j += 1
            begins[i] = j
            while j < last and ordered[j] == h:
                j += 1
            ends[i] = j
    return begins, ends


@_jit
def find_matches(begins, ends, order, sets, stored, low, high, times, births, before, row, place, out_own, out_theirs, out_sets):
    """Find pairs of a probing row and a state row with intersecting query-sets, from (row, place among its partners) on.

    The partners of row i are order[begins[i] : ends[i]] (an empty `order` is the identity) whose time is between low[i] and
    high[i], and whose insert batch (`births`, may be empty) is less than `before`. Return (count, row, place) when all rows are
    done or the output is full.
    """
    count = 0
    words = sets.shape[1]
    while row < begins.size:
        at = begins[row] + place
        end = ends[row]
        while at < end:
            other = at if order.size == 0 else np.int64(order[at])
            at += 1
            if times[other] < low[row] or times[other] > high[row]:
                continue
            if births.size and births[other] >= before:
                continue
            intersects = False
            for w in range(words):
                common = sets[row, w] & stored[other, w]
                out_sets[count, w] = common
                intersects = intersects or common != 0
            if intersects:
                out_own[count] = row
                out_theirs[count] = other
                count += 1
                if count == out_own.size:
                    return count, row, at - begins[row]
        row += 1
        place = 0
    return count, row, place


@_jit
def clear_outside_windows(one, two, one_range, two_range, bits, sets):
    """Clear the bits of pairs in which either time is older than the other by more than its range."""
    for i in range(one.size):
        if one[i] + one_range < two[i] or two[i] + two_range < one[i]:
            for w in range(sets.shape[1]):
                sets[i, w] &= ~bits[w]


@_jit
def clear_early_rows(times, since, bits, sets):
    """Clear the bits of rows whose time is before `since`."""
    for i in range(times.size):
        if times[i] < since:
            for w in range(sets.shape[1]):
                sets[i, w] &= ~bits[w]
