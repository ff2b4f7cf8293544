"""Compiled loops that combine the partial aggregates of slices into window results, and merge sessions.

`…_scan` kernels read each partial once, entry by entry, and build no index: with millions of keys and one or two due
windows, reading the partials bounds the time. With many windows prefix sums (`window_sums_prefix`) and segment trees
(`…_tree`) are faster. Spans, offsets and targets are arguments, so a new query of a known shape compiles nothing.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.engine.kernels.group import PACKED_HALF_ROW, PACKED_ROW

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


LANES = 8  # keys of a block: their sums are side by side, in one line of the cache, and are added by one instruction or two


@_jit
def _sum_directly(first, lanes, firsts, lasts, cells, values, begins, ends, targets, offsets, lows, highs, out):
    """Add to out the sums of a block of keys, entry by entry: for few spans over few cells."""
    for key in range(first, first + lanes):
        for q in range(targets.size):
            total = np.int64(0)
            for p in range(begins[q], ends[q]):
                for c in range(firsts[p, key], lasts[p, key]):
                    for s in range(offsets[q], offsets[q + 1]):
                        if lows[s] <= cells[c] < highs[s]:
                            total += values[c]
            out[targets[q], key] += total


@_jit
def _count_block_entries(first, lanes, firsts, lasts):
    count = 0
    for p in range(firsts.shape[0]):
        for key in range(first, first + lanes):
            count += lasts[p, key] - firsts[p, key]
    return count


@_jit
def _sum_over_cells_and_parts(prefix, parts, width):
    """Turn values by part, cell and lane into their sums over earlier cells and parts."""
    for p in range(1, parts + 1):
        row, earlier = prefix[p * width : (p + 1) * width], prefix[(p - 1) * width : p * width]
        for i in range(LANES, width):
            row[i] += row[i - LANES]
        for i in range(width):
            row[i] += earlier[i]


@_jit
def _sum_spans(prefix, late, early, first_span, last_span, lows, highs, totals):
    """Set totals, by lane, to the sums of spans over the parts between two rows of prefix sums: four look-ups for each span."""
    t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = np.int64(0)
    for s in range(first_span, last_span):
        a, b = late + highs[s] * LANES, late + lows[s] * LANES
        c, d = early + highs[s] * LANES, early + lows[s] * LANES
        t0 += (prefix[a] - prefix[b]) - (prefix[c] - prefix[d])
        t1 += (prefix[a + 1] - prefix[b + 1]) - (prefix[c + 1] - prefix[d + 1])
        t2 += (prefix[a + 2] - prefix[b + 2]) - (prefix[c + 2] - prefix[d + 2])
        t3 += (prefix[a + 3] - prefix[b + 3]) - (prefix[c + 3] - prefix[d + 3])
        t4 += (prefix[a + 4] - prefix[b + 4]) - (prefix[c + 4] - prefix[d + 4])
        t5 += (prefix[a + 5] - prefix[b + 5]) - (prefix[c + 5] - prefix[d + 5])
        t6 += (prefix[a + 6] - prefix[b + 6]) - (prefix[c + 6] - prefix[d + 6])
        t7 += (prefix[a + 7] - prefix[b + 7]) - (prefix[c + 7] - prefix[d + 7])
    totals[0], totals[1], totals[2], totals[3] = t0, t1, t2, t3
    totals[4], totals[5], totals[6], totals[7] = t4, t5, t6, t7


@_jit
def window_sums_prefix(firsts, lasts, cells, values, size, begins, ends, targets, offsets, lows, highs, out):
    """Add to out[targets[q], key] the sum over parts begins[q] … ends[q] − 1 of the cells in the spans of q, for every key.

    Parts are ordered by slice; the cells of key k in part p are firsts[p, k] … lasts[p, k] − 1, ascending. Prefix sums over
    parts *and* cells answer each span with four look-ups, no matter how many slices a window has; few spans over few cells are
    summed directly. Sums are exact modulo 2⁶⁴, so subtracting prefix sums is exact, too. Keys are processed in blocks.
    """
    parts, width = firsts.shape[0], (size + 1) * LANES
    prefix, totals = np.zeros((parts + 1) * width, np.int64), np.zeros(LANES, np.int64)
    spans = offsets[offsets.size - 1]
    for first in range(0, firsts.shape[1], LANES):
        lanes = min(LANES, firsts.shape[1] - first)
        count = _count_block_entries(first, lanes, firsts, lasts)
        if spans * count <= parts * size * lanes:
            if count:
                _sum_directly(first, lanes, firsts, lasts, cells, values, begins, ends, targets, offsets, lows, highs, out)
            continue
        prefix[width:] = 0
        for p in range(parts):
            for lane in range(lanes):
                for c in range(firsts[p, first + lane], lasts[p, first + lane]):
                    prefix[(p + 1) * width + (cells[c] + 1) * LANES + lane] = values[c]
        _sum_over_cells_and_parts(prefix, parts, width)
        for q in range(targets.size):
            _sum_spans(prefix, ends[q] * width, begins[q] * width, offsets[q], offsets[q + 1], lows, highs, totals)
            for lane in range(lanes):
                out[targets[q], first + lane] += totals[lane]


@_jit
def window_counts_and_sums_prefix(
    firsts, lasts, cells, counts, sums, size, begins, ends, targets, offsets, lows, highs, count_out, sum_out
):
    """Add row counts and sums like `window_sums_prefix`, both in one pass, as one word: count · 2⁴⁰ + sum.

    The caller ensures that the sum over all cells of a key stays within ± 2³⁹, and the count below 2²³.
    """
    parts, width = firsts.shape[0], (size + 1) * LANES
    prefix, totals = np.zeros((parts + 1) * width, np.int64), np.zeros(LANES, np.int64)
    spans = offsets[offsets.size - 1]
    for first in range(0, firsts.shape[1], LANES):
        lanes = min(LANES, firsts.shape[1] - first)
        count = _count_block_entries(first, lanes, firsts, lasts)
        if spans * count <= parts * size * lanes:
            if count:
                _sum_directly(first, lanes, firsts, lasts, cells, counts, begins, ends, targets, offsets, lows, highs, count_out)
                _sum_directly(first, lanes, firsts, lasts, cells, sums, begins, ends, targets, offsets, lows, highs, sum_out)
            continue
        prefix[width:] = 0
        for p in range(parts):
            for lane in range(lanes):
                for c in range(firsts[p, first + lane], lasts[p, first + lane]):
                    word = np.int64(counts[c]) * PACKED_ROW + np.int64(sums[c])
                    prefix[(p + 1) * width + (cells[c] + 1) * LANES + lane] = word
        _sum_over_cells_and_parts(prefix, parts, width)
        for q in range(targets.size):
            _sum_spans(prefix, ends[q] * width, begins[q] * width, offsets[q], offsets[q + 1], lows, highs, totals)
            for lane in range(lanes):
                word = totals[lane]
                total = ((word + PACKED_HALF_ROW) & (PACKED_ROW - 1)) - PACKED_HALF_ROW
                count_out[targets[q], first + lane] += (word - total) >> 40
                sum_out[targets[q], first + lane] += total


@_jit
def count_nonzero_entries(rows):
    """Return the number of nonzero entries of each row of a matrix."""
    counts = np.zeros(rows.shape[0], np.int64)
    for w in range(rows.shape[0]):
        count = np.int64(0)
        for k in range(rows.shape[1]):
            count += rows[w, k] != 0
        counts[w] = count
    return counts


@_jit
def list_nonzero_columns(rows, total):
    """Return the columns of the nonzero entries of a matrix, row by row; `total` is their number."""
    columns = np.empty(total + 1, np.int32)
    at = 0
    for w in range(rows.shape[0]):
        for k in range(rows.shape[1]):  # without a branch: the column of a zero is overwritten by the next one
            columns[at] = k
            at += rows[w, k] != 0
    return columns[:total]


@_jit
def pick_nonzero_entries(rows, values, total):
    """Return the values at the nonzero entries of a matrix `rows`, row by row; `total` is their number."""
    picked = np.empty(total + 1, values.dtype)
    at = 0
    for w in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            picked[at] = values[w, k]
            at += rows[w, k] != 0
    return picked[:total]


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
