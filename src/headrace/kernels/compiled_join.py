"""The loops of joins: query-sets of rows, equal keys to equal numbers, pairs of rows whose sets meet.

A query-set is a row of `uint64` words, bit b of the set in word b // 64. A key number of −1 has no partner.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def restrict(codes, table, sets):
    """AND to the set of each row the set that the table has for its code."""
    for i in range(codes.size):
        for w in range(sets.shape[1]):
            sets[i, w] &= table[codes[i], w]


@_jit
def alive(sets):
    """Return the rows whose set is not empty."""
    found = np.empty(sets.shape[0], np.int64)
    count = 0
    for i in range(sets.shape[0]):
        for w in range(sets.shape[1]):
            if sets[i, w]:
                found[count] = i
                count += 1
                break
    return found[:count].copy()


@_jit
def number_keys(right, right_valid, left, left_valid):
    """Return (number of each right key, number of each left key, how many); a left key that is not right has −1."""
    capacity = 1024
    while capacity < right.size * 2:
        capacity *= 2
    table = np.full(capacity, -1, np.int64)
    keys = np.empty(right.size, np.int64)
    rights = np.full(right.size, -1, np.int64)
    lefts = np.full(left.size, -1, np.int64)
    count = 0
    mask = capacity - 1
    for i in range(right.size):
        if right_valid.size and not right_valid[i]:
            continue
        v = right[i]
        h = (v * np.int64(-7046029254386353131)) >> 20 & mask
        while table[h] >= 0 and keys[table[h]] != v:
            h = (h + 1) & mask
        if table[h] < 0:
            table[h] = count
            keys[count] = v
            count += 1
        rights[i] = table[h]
    for i in range(left.size):
        if left_valid.size and not left_valid[i]:
            continue
        v = left[i]
        h = (v * np.int64(-7046029254386353131)) >> 20 & mask
        while table[h] >= 0 and keys[table[h]] != v:
            h = (h + 1) & mask
        lefts[i] = table[h]
    return rights, lefts, count


@_jit
def by_key(codes, count):
    """Return (starts, order): the rows of key k are order[starts[k]:starts[k + 1]], in order of arrival."""
    starts = np.zeros(count + 1, np.int64)
    for i in range(codes.size):
        if codes[i] >= 0:
            starts[codes[i] + 1] += 1
    for k in range(count):
        starts[k + 1] += starts[k]
    place = starts[:-1].copy()
    order = np.empty(starts[count], np.int64)
    for i in range(codes.size):
        c = codes[i]
        if c >= 0:
            order[place[c]] = i
            place[c] += 1
    return starts, order


@_jit
def pairs(left_codes, left_sets, starts, order, right_sets, row, place, out_left, out_right, out_sets):
    """Find pairs of rows with equal keys whose sets meet, from (left row, place among its partners) on.

    `right_sets` are in the order of `order`. Returns (how many, row, place) when all rows are done or the output is full.
    """
    count = 0
    words = left_sets.shape[1]
    while row < left_codes.size:
        code = left_codes[row]
        if code >= 0:
            at = starts[code] + place
            end = starts[code + 1]
            while at < end:
                met = False
                for w in range(words):
                    common = left_sets[row, w] & right_sets[at, w]
                    out_sets[count, w] = common
                    met = met or common != 0
                if met:
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
def join_sets(rows, sets, into):
    """OR sets to those of the rows they belong to."""
    for i in range(rows.size):
        for w in range(sets.shape[1]):
            into[rows[i], w] |= sets[i, w]


@_jit
def members(sets, mask):
    """Return (bits, rows): for every bit of the mask, ascending, the rows whose set has it."""
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
