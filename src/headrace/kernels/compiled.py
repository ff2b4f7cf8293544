"""Compiled loops over rows and cells: selection, accumulation, windows and hashes; numba compiles each once and caches it.

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
def window_sums_prefix(firsts, lasts, cells, values, size, begins, ends, targets, offsets, lows, highs, out):
    """Add to out[targets[q], key] the sum over parts begins[q] … ends[q] − 1 of the cells in the spans of q, for every key.

    Parts are ordered by slice; the cells of key k in part p are firsts[p, k] … lasts[p, k] − 1, ascending. Prefix sums over
    parts *and* cells answer each span with four look-ups, no matter how many slices a window has; few spans over few cells are
    summed directly. Sums are exact modulo 2⁶⁴, so subtracting prefix sums is exact, too.
    """
    parts = firsts.shape[0]
    prefix = np.zeros((parts + 1, size + 1), np.int64)
    line = np.zeros(size + 1, np.int64)
    spans = offsets[offsets.size - 1]
    for k in range(firsts.shape[1]):
        count = 0
        for p in range(parts):
            count += lasts[p, k] - firsts[p, k]
        if count == 0:
            continue
        if spans * count <= parts * size:
            for q in range(targets.size):
                total = np.int64(0)
                for p in range(begins[q], ends[q]):
                    for c in range(firsts[p, k], lasts[p, k]):
                        for s in range(offsets[q], offsets[q + 1]):
                            if lows[s] <= cells[c] < highs[s]:
                                total += values[c]
                out[targets[q], k] += total
            continue
        for p in range(parts):
            for j in range(size + 1):
                line[j] = 0
            for c in range(firsts[p, k], lasts[p, k]):
                line[cells[c] + 1] = values[c]
            total = np.int64(0)
            for j in range(size + 1):
                total += line[j]
                prefix[p + 1, j] = prefix[p, j] + total
        for q in range(targets.size):
            total = np.int64(0)
            for s in range(offsets[q], offsets[q + 1]):
                low, high = lows[s], highs[s]
                total += (prefix[ends[q], high] - prefix[ends[q], low]) - (prefix[begins[q], high] - prefix[begins[q], low])
            out[targets[q], k] += total


@_jit
def find_nonzero_entries(rows):
    """Return (flat positions, columns, number per row) of the nonzero entries of a matrix."""
    counts = np.zeros(rows.shape[0], np.int64)
    for w in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            counts[w] += rows[w, k] != 0
    total = counts.sum()
    positions, columns = np.empty(total, np.int64), np.empty(total, np.int64)
    at = 0
    for w in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            if rows[w, k] != 0:
                positions[at] = w * rows.shape[1] + k
                columns[at] = k
                at += 1
    return positions, columns, counts


@_jit
def repeat_values(values, counts, total):
    """Return each values[i] counts[i] times in a row, like np.repeat."""
    out = np.empty(total, np.int64)
    at = 0
    for i in range(values.size):
        for _ in range(counts[i]):
            out[at] = values[i]
            at += 1
    return out


@_jit
def _pick_extreme(op, a, b):
    """Return the lesser (op 0) or greater (op 1) of two partial results; NaN is greater than everything."""
    if op == 0:
        return b if (a != a or b < a) else a
    return b if (b != b or b > a) else a


@_jit
def window_extremes_tree(op, neutral, starts, cells, values, rows, size, targets, offsets, lows, highs, out):
    """Combine into out[targets[q], rows[key]] the least (op 0) or greatest (op 1) over the cells in the spans of q.

    A segment tree over the cells of a key answers each span in logarithmic time, without an inverse operation.
    """
    width = 1
    while width < size:
        width *= 2
    tree = np.full(2 * width, neutral, values.dtype)
    for k in range(starts.size - 1):
        row = rows[k]
        tree[:] = neutral
        for c in range(starts[k], starts[k + 1]):
            tree[width + cells[c]] = values[c]
        for n in range(width - 1, 0, -1):
            tree[n] = _pick_extreme(op, tree[2 * n], tree[2 * n + 1])
        for q in range(targets.size):
            best = out[targets[q], row]
            for s in range(offsets[q], offsets[q + 1]):
                left, right = lows[s] + width, highs[s] + width
                while left < right:
                    if left & 1:
                        best = _pick_extreme(op, best, tree[left])
                        left += 1
                    if right & 1:
                        right -= 1
                        best = _pick_extreme(op, best, tree[right])
                    left >>= 1
                    right >>= 1
            out[targets[q], row] = best


@_jit
def window_floats_tree(starts, cells, high, low, rows, size, targets, offsets, lows, highs, out_high, out_low):
    """Add to (out_high, out_low)[targets[q], rows[key]] the float pairs of the cells in the spans of q.

    Uses a segment tree, not prefix sums: subtracting float sums would lose precision.
    """
    width = 1
    while width < size:
        width *= 2
    tree_high, tree_low = np.zeros(2 * width), np.zeros(2 * width)
    for k in range(starts.size - 1):
        row = rows[k]
        tree_high[:] = 0.0
        tree_low[:] = 0.0
        for c in range(starts[k], starts[k + 1]):
            tree_high[width + cells[c]] = high[c]
            tree_low[width + cells[c]] = low[c]
        for n in range(width - 1, 0, -1):
            a, b = tree_high[2 * n], tree_high[2 * n + 1]
            s = a + b
            t = s - a
            tree_high[n] = s
            tree_low[n] = tree_low[2 * n] + tree_low[2 * n + 1] + ((a - (s - t)) + (b - t))
        for q in range(targets.size):
            sum_high, sum_low = out_high[targets[q], row], out_low[targets[q], row]
            for p in range(offsets[q], offsets[q + 1]):
                left, right = lows[p] + width, highs[p] + width
                while left < right:
                    node = -1
                    if left & 1:
                        node = left
                        left += 1
                        s = sum_high + tree_high[node]
                        t = s - sum_high
                        sum_low += tree_low[node] + ((sum_high - (s - t)) + (tree_high[node] - t))
                        sum_high = s
                    if right & 1:
                        right -= 1
                        node = right
                        s = sum_high + tree_high[node]
                        t = s - sum_high
                        sum_low += tree_low[node] + ((sum_high - (s - t)) + (tree_high[node] - t))
                        sum_high = s
                    left >>= 1
                    right >>= 1
            out_high[targets[q], row] = sum_high
            out_low[targets[q], row] = sum_low


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


@_jit
def mark_session_heads(keys, starts, ends, gap):
    """Mark the first interval of each session, for intervals sorted by (key, start); intervals at most `gap` apart merge."""
    heads = np.zeros(keys.size, np.bool_)
    reach = np.int64(0)
    for i in range(keys.size):
        if i == 0 or keys[i] != keys[i - 1] or starts[i] > reach + gap:
            heads[i] = True
            reach = ends[i]
        elif ends[i] > reach:
            reach = ends[i]
    return heads
