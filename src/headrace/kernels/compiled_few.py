"""Windows over slices where few are due: every partial is gone through once, entry by entry, with nothing built before.

With millions of keys and a window or two this is bound by reading the partials; with many windows prefix sums and trees win
(`headrace.kernels.compiled`).
"""

from __future__ import annotations

from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def window_sums(starts, cells, values, rows, targets, offsets, lows, highs, out):
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
def window_floats(starts, cells, high, low, rows, targets, offsets, lows, highs, out_high, out_low):
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
