"""Compiled loops that combine the partial aggregates of slices into window results, and merge sessions.

`…_scan` kernels read each partial once, entry by entry, and build no index: with millions of keys and one or two due
windows, reading the partials bounds the time. With many windows prefix sums (`window_sums_prefix`) and segment trees
(`…_tree`) are faster. Spans, offsets and targets are arguments, so a new query of a known shape compiles nothing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def window_sums_scan(starts, cells, values, rows, targets, offsets, lows, highs, out):
    """Add to out[targets[q], rows[key]] the integers of the cells in the spans of q."""
    for k in range(starts.size - 1):
        row = rows[k]
        for c in range(starts[k], starts[k + 1]):
            cell = cells[c]
            for q in range(targets.size):
                for s in range(offsets[q], offsets[q + 1]):
                    if lows[s] <= cell < highs[s]:
                        out[targets[q], row] += values[c]


@_jit
def window_floats_scan(starts, cells, high, low, rows, targets, offsets, lows, highs, out_high, out_low):
    """Add to (out_high, out_low)[targets[q], rows[key]] the float pairs of the cells in the spans of q, compensated."""
    for k in range(starts.size - 1):
        row = rows[k]
        for c in range(starts[k], starts[k + 1]):
            cell = cells[c]
            for q in range(targets.size):
                for p in range(offsets[q], offsets[q + 1]):
                    if lows[p] <= cell < highs[p]:
                        a = out_high[targets[q], row]
                        s = a + high[c]
                        t = s - a
                        out_low[targets[q], row] += low[c] + ((a - (s - t)) + (high[c] - t))
                        out_high[targets[q], row] = s


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
