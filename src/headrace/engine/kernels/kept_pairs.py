"""Compiled loops of joins whose pairs are kept: indexes matched with each other, and the kept pairs that a window contains.

Indexes are those of `kernels.join.index_hashes`: their distinct hashes are in the order of their upper bits, so that two indexes
are matched in one pass over each, without random access.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def _count_bits(size):
    bits = 0
    while size >> bits:
        bits += 1
    return bits


@_jit
def make_filter(distinct):
    """Return a bitmap of the upper bits of these hashes, with 8 to 16 bits for each hash."""
    bits = max(6, _count_bits(distinct.size) + 3)
    shift = np.uint64(64 - bits)
    words = np.zeros(1 << (bits - 6), np.uint64)
    for h in distinct:
        cell = h >> shift
        words[cell >> np.uint64(6)] |= np.uint64(1) << (cell & np.uint64(63))
    return words


@_jit
def match_hashes(distinct, starts, other_filter, other_directory, other_distinct, other_starts):
    """Return (numbers of hashes, numbers of the same hashes in another index, number of pairs of rows)."""
    shift = np.uint64(64 - _count_bits(other_directory.size - 2))
    filter_shift = np.uint64(64 - 6 - _count_bits(other_filter.size - 1))
    codes = np.empty(distinct.size, np.int32)
    other_codes = np.empty(distinct.size, np.int32)
    count = 0
    pairs = np.int64(0)
    for code in range(distinct.size):
        h = distinct[code]
        bit = h >> filter_shift
        if not other_filter[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1):
            continue
        cell = np.int64(h >> shift)
        for other in range(other_directory[cell], other_directory[cell + 1]):
            if other_distinct[other] == h:
                codes[count] = code
                other_codes[count] = other
                count += 1
                pairs += np.int64(starts[code + 1] - starts[code]) * np.int64(other_starts[other + 1] - other_starts[other])
                break
    return codes[:count].copy(), other_codes[:count].copy(), pairs


@_jit
def pair_matches(codes, starts, order, sets, other_codes, other_starts, other_order, other_sets, out_rows, out_others):
    """Pair the rows of equal hashes; return the number of pairs, or −1 if there are more than the output takes.

    Rows of order −1 are gone. Pairs are in the order of rows, and their query-sets intersect; without query-sets, they are in the
    order of hashes.
    """
    count = 0
    words = sets.shape[1]
    if words == 0:
        for m in range(codes.size):
            for i in range(starts[codes[m]], starts[codes[m] + 1]):
                for j in range(other_starts[other_codes[m]], other_starts[other_codes[m] + 1]):
                    if order[i] >= 0 and other_order[j] >= 0:
                        if count == out_rows.size:
                            return -1
                        out_rows[count] = order[i]
                        out_others[count] = other_order[j]
                        count += 1
        return count
    other_code_of_row = np.full(sets.shape[0], -1, np.int32)
    for m in range(codes.size):
        for i in range(starts[codes[m]], starts[codes[m] + 1]):
            if order[i] >= 0:
                other_code_of_row[order[i]] = other_codes[m]
    for row in range(other_code_of_row.size):
        code = other_code_of_row[row]
        if code < 0:
            continue
        for j in range(other_starts[code], other_starts[code + 1]):
            other = other_order[j]
            if other < 0:
                continue
            intersects = False
            for w in range(words):
                intersects = intersects or (sets[row, w] & other_sets[other, w]) != 0
            if intersects:
                if count == out_rows.size:
                    return -1
                out_rows[count] = row
                out_others[count] = other
                count += 1
    return count


@_jit
def select_pairs(
    rows, others, at, base, places, other_base, other_places, sets, other_sets, count, out_rows, out_others, out_sets
):
    """Select kept pairs, from position `at` on, whose rows have a place and query-sets that intersect there.

    The place of row r is base + r or, if there are `places`, places[r]: −1 without one. The output has `count` pairs already.
    Return (count, next position) when all pairs are read or the output is full.
    """
    words = sets.shape[1]
    while at < rows.size and count < out_sets.shape[0]:
        row = np.int64(places[rows[at]]) if places.size else base + rows[at]
        other = np.int64(other_places[others[at]]) if other_places.size else other_base + others[at]
        at += 1
        if row < 0 or other < 0:
            continue
        intersects = False
        for w in range(words):
            common = sets[row, w] & other_sets[other, w]
            out_sets[count, w] = common
            intersects = intersects or common != 0
        if intersects:
            out_rows[count] = row
            out_others[count] = other
            count += 1
    return count, at


@_jit
def order_pairs(rows, others, sets):
    """Return the pairs in the order of rows; they stay as they are where rows are few in a wide range."""
    if rows.size < 2:
        return rows, others, sets
    low = rows.min()
    span = rows.max() - low + 1
    if span > 8 * rows.size:
        return rows, others, sets
    places = np.zeros(span + 1, np.int64)
    for row in rows:
        places[row - low + 1] += 1
    for i in range(span):
        places[i + 1] += places[i]
    ordered_rows, ordered_others, ordered_sets = np.empty_like(rows), np.empty_like(others), np.empty_like(sets)
    for i in range(rows.size):
        place = places[rows[i] - low]
        places[rows[i] - low] += 1
        ordered_rows[place] = rows[i]
        ordered_others[place] = others[i]
        ordered_sets[place] = sets[i]
    return ordered_rows, ordered_others, ordered_sets
