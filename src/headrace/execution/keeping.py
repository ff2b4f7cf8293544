"""What is kept of a slice after a batch: many small pieces are put together, so that there are never many.

Pieces that are kept as they are have a reference; what is new, or was put together, is still to be written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.execution.bucketing import Bucket
from headrace.execution.compaction import compact
from headrace.execution.job import PartRef
from headrace.execution.windows import Slice
from headrace.kernels.partial import Partial
from headrace.kernels.sets import widened

_MANY_PARTS = 8
_MANY_BUCKETS = 16
_SMALL_ROWS = 1 << 16  # larger buckets are left alone: no row is written more than a few times


def few_slices(parts: Sequence[tuple[PartRef | None, Slice]]) -> list[tuple[PartRef | None, Slice]]:
    """Return the parts of one slice of a store, made one where they are many."""
    if len(parts) <= _MANY_PARTS:
        return list(parts)
    first = parts[0][1]
    merged = compact(first.store.components, [part.load() for _, part in parts])
    return [(None, Slice(first.store, first.selection, first.start, constant(merged)))]


def few_buckets(pieces: Sequence[tuple[PartRef, Bucket]]) -> list[tuple[PartRef, Bucket]]:
    """Return buckets, those of one slice made one where there are many small ones; what has no file is to be written."""
    slices: dict[tuple[str, int, int, int], list[tuple[PartRef, Bucket]]] = defaultdict(list)
    for at, bucket in pieces:
        slices[at.slice].append((at, bucket))
    found: list[tuple[PartRef, Bucket]] = []
    for mine in slices.values():
        small = [piece for piece in mine if piece[1].rows < _SMALL_ROWS]
        if len(small) > _MANY_BUCKETS:
            found += [piece for piece in mine if piece[1].rows >= _SMALL_ROWS]
            found.append((replace(small[0][0], file="", index=0), _united([bucket for _, bucket in small])))
        else:
            found += mine
    return found


def _united(buckets: Sequence[Bucket]) -> Bucket:
    width = max(bucket.sets.shape[1] for bucket in buckets)
    columns = [pa.concat_arrays(arrays) for arrays in zip(*(bucket.columns for bucket in buckets), strict=True)]
    return Bucket(buckets[0].slice_start, columns, np.concatenate([widened(bucket.sets, width) for bucket in buckets]))


def constant(partial: Partial) -> Callable[[], Partial]:
    """Return a way to load what is there already."""
    return lambda: partial
