"""Query-sets as bitmaps: one row of 64-bit words per set."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

QueryBitmaps = npt.NDArray[np.uint64]


def count_words(bits: Iterable[int]) -> int:
    """Return the number of words that sets of these bits need."""
    return max(bits, default=0) // 64 + 1


def make_bitmap(bits: Iterable[int], width: int) -> QueryBitmaps:
    """Return one set, as an array of `width` words."""
    bitmap = np.zeros(width, np.uint64)
    for bit in bits:
        bitmap[bit // 64] |= np.uint64(1) << np.uint64(bit % 64)
    return bitmap


def resize_bitmaps(sets: QueryBitmaps, width: int) -> QueryBitmaps:
    """Return the same sets with more words, or with fewer where no query needs the dropped words."""
    if sets.shape[1] == width:
        return sets
    if sets.shape[1] > width:
        return np.ascontiguousarray(sets[:, :width])
    return np.concatenate([sets, np.zeros((len(sets), width - sets.shape[1]), np.uint64)], axis=1)


def estimate_selected_share(samples: Iterable[QueryBitmaps], bits: frozenset[int]) -> float | None:
    """Return the share of sampled rows whose set has any of the bits; None if no sample covers all of the bits.

    The first set of a sample contains all bits that the sample covers.
    """
    mask = make_bitmap(bits, count_words(bits))
    rows = hits = 0
    for sample in samples:
        sets = resize_bitmaps(sample, len(mask))
        if np.array_equal(sets[0] & mask, mask):
            rows += len(sets) - 1
            hits += int(np.any(sets[1:] & mask, axis=1).sum())
    return max(hits, 0.5) / rows if rows else None
