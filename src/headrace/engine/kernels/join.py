"""Compiled loops of joins: query-sets of rows, hash indexes of keys, pairs of rows whose query-sets intersect.

A query-set is a row of `uint64` words; bit b of the set is in word b // 64. A key number of −1 has no partner.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def restrict_sets(codes, table, sets):
    """AND into the set of each row the set that the table holds for its code."""
    for i in range(codes.size):
        for w in range(sets.shape[1]):
            sets[i, w] &= table[codes[i], w]


@_jit
def find_live_rows(sets):
    """Return the rows whose query-set is not empty."""
    rows = np.empty(sets.shape[0], np.int64)
    count = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            if sets[i, w]:
                rows[count] = i
                count += 1
                break
    return rows[:count].copy()


@_jit
def fold_keys(values, low, span, into):
    """Append a column to keys packed into integers: into · span + (value − low)."""
    for i in range(values.size):
        into[i] = into[i] * span + (np.int64(values[i]) - low)


@_jit
def _scatter_by_hash(values, valid, shift):
    """Partition non-NULL values by the upper bits of their hash; return (values, row numbers, start of each partition)."""
    parts = 1 << (64 - shift)
    begins = np.zeros(parts + 1, np.int64)
    for i in range(values.size):
        if valid.size == 0 or valid[i]:
            h = np.uint64(values[i]) * np.uint64(0x9E3779B97F4A7C15)
            begins[np.int64(h >> np.uint64(shift)) + 1] += 1
    for p in range(parts):
        begins[p + 1] += begins[p]
    at = begins[:-1].copy()
    keys = np.empty(begins[parts], np.int64)
    row_numbers = np.empty(begins[parts], np.int32)
    for i in range(values.size):
        if valid.size == 0 or valid[i]:
            h = np.uint64(values[i]) * np.uint64(0x9E3779B97F4A7C15)
            part = np.int64(h >> np.uint64(shift))
            keys[at[part]] = values[i]
            row_numbers[at[part]] = i
            at[part] += 1
    return keys, row_numbers, begins


@_jit
def index_keys(right, right_valid, left, left_valid):
    """Return (key number of each left row, or −1; starts, order): right rows of key k are order[starts[k]:starts[k + 1]].

    Both sides are first partitioned so that each partition fits the cache of a core; each partition is a small hash join.
    """
    shift = 63
    while shift > 52 and right.size >> (63 - shift) > 8192:
        shift -= 1
    right_keys, right_rows, right_begins = _scatter_by_hash(right, right_valid, shift)
    left_keys, left_rows, left_begins = _scatter_by_hash(left, left_valid, shift)
    largest_part = 0
    for p in range(right_begins.size - 1):
        largest_part = max(largest_part, right_begins[p + 1] - right_begins[p])
    capacity = 16
    while capacity < largest_part * 2:
        capacity *= 2
    table = np.empty(capacity, np.int64)
    codes = np.empty(largest_part, np.int64)
    sizes = np.empty(largest_part, np.int64)
    left_codes = np.full(left.size, -1, np.int64)
    order = np.empty(right_keys.size, np.int64)
    starts = np.zeros(right_keys.size + 1, np.int64)
    first_key = 0
    filled = 0
    for p in range(right_begins.size - 1):
        first, last = right_begins[p], right_begins[p + 1]
        if first == last or left_begins[p] == left_begins[p + 1]:
            continue  # no row of this partition has a partner
        room = 16
        while room < (last - first) * 2:
            room *= 2
        mask = room - 1
        table[:room] = -1
        count = 0
        for i in range(first, last):
            h = np.int64(np.uint64(right_keys[i]) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & mask
            while table[h] >= 0 and right_keys[table[h]] != right_keys[i]:
                h = (h + 1) & mask
            if table[h] < 0:
                table[h] = i
                codes[i - first] = count
                sizes[count] = 0
                count += 1
            code = codes[table[h] - first]
            codes[i - first] = code
            sizes[code] += 1
        for i in range(left_begins[p], left_begins[p + 1]):
            h = np.int64(np.uint64(left_keys[i]) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & mask
            while table[h] >= 0 and right_keys[table[h]] != left_keys[i]:
                h = (h + 1) & mask
            if table[h] >= 0:
                left_codes[left_rows[i]] = first_key + codes[table[h] - first]
        for k in range(count):
            starts[first_key + k] = filled
            filled += sizes[k]
            sizes[k] = starts[first_key + k]  # from here on: position of the next row of the key
        starts[first_key + count] = filled
        for i in range(first, last):
            code = codes[i - first]
            order[sizes[code]] = right_rows[i]
            sizes[code] += 1
        first_key += count
    return left_codes, starts[: first_key + 1].copy(), order[:filled].copy()


@_jit
def group_rows_by_key(codes, count):
    """Return (starts, order): the rows of key k are order[starts[k]:starts[k + 1]], in order of arrival."""
    starts = np.zeros(count + 1, np.int64)
    for i in range(codes.size):
        if codes[i] >= 0:
            starts[codes[i] + 1] += 1
    for k in range(count):
        starts[k + 1] += starts[k]
    next_position = starts[:-1].copy()
    order = np.empty(starts[count], np.int64)
    for i in range(codes.size):
        c = codes[i]
        if c >= 0:
            order[next_position[c]] = i
            next_position[c] += 1
    return starts, order


@_jit
def find_pairs_by_key(left_codes, left_sets, starts, order, right_sets, row, place, out_left, out_right, out_sets):
    """Find pairs of rows with equal keys and intersecting query-sets, from (left row, place among its partners) on.

    `right_sets` are in the order of `order`. Return (count, row, place) when all rows are done or the output is full.
    """
    count = 0
    words = left_sets.shape[1]
    while row < left_codes.size:
        code = left_codes[row]
        if code >= 0:
            at = starts[code] + place
            end = starts[code + 1]
            while at < end:
                intersects = False
                for w in range(words):
                    common = left_sets[row, w] & right_sets[at, w]
                    out_sets[count, w] = common
                    intersects = intersects or common != 0
                if intersects:
                    out_left[count] = row
                    out_right[count] = order[at]
                    count += 1
                at += 1
                if count == out_left.size:
                    return count, row, at - starts[code]
        row += 1
        place = 0
    return count, row, place


@_jit
def find_pairs_in_ranges(begins, ends, left_sets, order, right_sets, row, place, out_left, out_right, out_sets):
    """Find pairs of rows with intersecting query-sets, from (left row, place among its partners) on.

    The partners of left row i are order[begins[i] : ends[i]]; `right_sets` are in the order of `order`. Return (count, row,
    place) when all rows are done or the output is full.
    """
    count = 0
    words = left_sets.shape[1]
    while row < begins.size:
        at = begins[row] + place
        end = ends[row]
        while at < end:
            intersects = False
            for w in range(words):
                common = left_sets[row, w] & right_sets[at, w]
                out_sets[count, w] = common
                intersects = intersects or common != 0
            if intersects:
                out_left[count] = row
                out_right[count] = order[at]
                count += 1
            at += 1
            if count == out_left.size:
                return count, row, at - begins[row]
        row += 1
        place = 0
    return count, row, place


@_jit
def merge_sets(rows, sets, into):
    """OR sets into the sets of the rows they belong to."""
    for i in range(rows.size):
        for w in range(sets.shape[1]):
            into[rows[i], w] |= sets[i, w]


@_jit
def list_rows_by_bit(sets, mask):
    """Return (bits, rows): for every bit of the mask, ascending, the rows whose set contains it."""
    total = 0
    counts = np.zeros(sets.shape[1] * 64 + 1, np.int64)
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            word = sets[i, w] & mask[w]
            bit = w * 64
            while word:
                if word & np.uint64(1):
                    counts[bit + 1] += 1
                    total += 1
                word >>= np.uint64(1)
                bit += 1
    for b in range(counts.size - 1):
        counts[b + 1] += counts[b]
    bits = np.empty(total, np.int64)
    rows = np.empty(total, np.int64)
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            word = sets[i, w] & mask[w]
            bit = w * 64
            while word:
                if word & np.uint64(1):
                    bits[counts[bit]] = bit
                    rows[counts[bit]] = i
                    counts[bit] += 1
                word >>= np.uint64(1)
                bit += 1
    return bits, rows
