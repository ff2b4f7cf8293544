"""Where to divide the load of a key partition: the median of the hashes of its input, found by a sample.

A reduce task samples its input only if the driver asks for it, which it does once a partition is overloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import take
from headrace.engine.compute.keys import hash_to_range

_SAMPLED_KEYS = 4096  # of a partition
_SAMPLED_INPUTS = 64  # the largest ones

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """Input of a partition: `rows` rows or groups, and a function that returns the key columns of some of them."""

    rows: int
    select_keys: Callable[[Integers], Sequence[pa.Array]]

    @classmethod
    def of_columns(cls, rows: int, columns: Sequence[pa.Array]) -> KeyedInput:
        """Return the input with these key columns."""
        return cls(rows, lambda row_ids: [take(column, row_ids) for column in columns])


def find_split_hash(inputs: Sequence[KeyedInput]) -> int | None:
    """Return the hash that divides the rows best: the first one of the upper part. None if all rows have one hash."""
    largest = sorted(inputs, key=lambda item: -item.rows)[:_SAMPLED_INPUTS]
    total = sum(item.rows for item in largest)
    if not total:
        return None
    step = max(1, total // _SAMPLED_KEYS)
    samples = [_hash_sample(item, step) for item in largest if item.rows]
    hashes, counts = np.unique(np.concatenate(samples), return_counts=True)
    if len(hashes) < 2:
        return None
    below = np.cumsum(counts)[:-1]  # rows below hashes[1], hashes[2], …
    return int(hashes[1 + int(np.argmin(np.abs(2 * below - counts.sum())))])


def _hash_sample(item: KeyedInput, step: int) -> Integers:
    row_ids = np.arange(0, item.rows, step)
    return hash_to_range(item.select_keys(row_ids), len(row_ids))
