"""Compiled loops that map event time and key of each row to the slot in which it is accumulated.

A slot is slice · number of keys + key. Edges are the starts of slices, ascending.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_jit = njit(cache=True, nogil=True, boundscheck=False)


@_jit
def _find_slice(edges, time):
    low, high = 0, edges.size - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if edges[middle] <= time:
            low = middle
        else:
            high = middle - 1
    return low


@_jit
def assign_slots(times, edges, keys, key_count):
    """Return slice · key_count + key for each row; the slice of a row is the last edge not after its time."""
    out = np.empty(times.size, np.int64)
    at, last = 0, edges.size - 1
    for i in range(times.size):
        t = times[i]
        if t < edges[at] or (at < last and t >= edges[at + 1]):
            at = _find_slice(edges, t)
        out[i] = at * key_count + keys[i]
    return out


@_jit
def assign_slots_direct(times, edges, values, valid, low, place, key_count):
    """Return slice · key_count + key for each row, with key = place[value − low] (last entry: NULL)."""
    out = np.empty(times.size, np.int64)
    at, last = 0, edges.size - 1
    for i in range(times.size):
        t = times[i]
        if t < edges[at] or (at < last and t >= edges[at + 1]):
            at = _find_slice(edges, t)
        key = place[place.size - 1] if valid.size and not valid[i] else place[values[i] - low]
        out[i] = at * key_count + key
    return out
