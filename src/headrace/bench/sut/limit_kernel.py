"""Compile the loops of the hand-written kernel: filter, slice and sum in one pass over the rows, into dense arrays by key.

Arrays are indexed [slice, key]; slice number s is in row s % slices. Rows arrive almost in time order, so the slice of the
previous row is tried first. The caller ensures that keys fit and that all slices of a call are open.
"""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def accumulate_rows(keys: Any, values: Any, times: Any, length: int, counts: Any, sums: Any) -> None:
    """Add rows to `counts` and `sums`."""
    slices = counts.shape[0]
    start, stop, row = 1, 1, 0
    for i in range(len(times)):
        time = times[i]
        if time < start or time >= stop:
            number = time // length
            start, stop, row = number * length, (number + 1) * length, number % slices
        counts[row, keys[i]] += 1
        sums[row, keys[i]] += values[i]


@njit(cache=True, nogil=True)
def accumulate_matching_rows(
    keys: Any, values: Any, times: Any, length: int, counts: Any, sums: Any, tested: Any, low: float, high: float, outside: bool
) -> None:
    """Add the rows whose `tested` value is within [low, high], or outside of it if `outside` is true."""
    slices = counts.shape[0]
    start, stop, row = 1, 1, 0
    for i in range(len(times)):
        time = times[i]
        if time < start or time >= stop:
            number = time // length
            start, stop, row = number * length, (number + 1) * length, number % slices
        if (low <= tested[i] <= high) != outside:
            counts[row, keys[i]] += 1
            sums[row, keys[i]] += values[i]
