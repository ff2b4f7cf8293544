"""Query-sets as arrays: one row of 64-bit words a set."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Sets = npt.NDArray[np.uint64]


def words(bits: Iterable[int]) -> int:
    """Return how many words sets of these bits need."""
    return max(bits, default=0) // 64 + 1


def set_of(bits: Iterable[int], width: int) -> Sets:
    """Return one set, as an array of `width` words."""
    found = np.zeros(width, np.uint64)
    for bit in bits:
        found[bit // 64] |= np.uint64(1) << np.uint64(bit % 64)
    return found


def widened(sets: Sets, width: int) -> Sets:
    """Return the same sets with more words, or with fewer where those left out matter to nobody."""
    if sets.shape[1] == width:
        return sets
    if sets.shape[1] > width:
        return np.ascontiguousarray(sets[:, :width])
    return np.concatenate([sets, np.zeros((len(sets), width - sets.shape[1]), np.uint64)], axis=1)
