"""Window aggregates by a direct scan, for few due windows.

The kernels read each partial once, entry by entry, and build no prefix sums or trees. With millions of
keys and one or two windows, reading the partials bounds the time; with many windows prefix sums and trees are faster
(`window_sums_prefix`, `window_floats_tree`).
"""

from __future__ import annotations

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
