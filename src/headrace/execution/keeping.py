"""What is kept of a slice after a batch: many small pieces are put together, so that there are never many.

Pieces that are kept as they are have a reference; what is new, or was put together, is still to be written.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.connectors.durable import write_whole
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


class Adoption:
    """Makes state of parcels that lie in the checkpoint: their rows need not be written again, they must only last."""

    def __init__(self, directory: Path) -> None:
        """Take the directory of the checkpoint."""
        self._directory = directory
        self._done: set[str] = set()

    def __call__(self, ref: PartRef) -> PartRef:
        """Return where a bucket is kept from now on."""
        folder, _, name = ref.file.partition("/")
        if folder == "state":
            return ref
        if name not in self._done:
            self._done.add(name)
            write_whole(self._directory / "state" / name, lambda hidden: _same_file(self._directory / ref.file, hidden))
        return replace(ref, file=f"state/{name}")


def _same_file(old: Path, new: Path) -> None:
    new.unlink(missing_ok=True)
    try:
        new.hardlink_to(old)
    except OSError:  # not every file system has links
        shutil.copyfile(old, new)


def _united(buckets: Sequence[Bucket]) -> Bucket:
    width = max(bucket.sets.shape[1] for bucket in buckets)
    columns = [pa.concat_arrays(arrays) for arrays in zip(*(bucket.columns for bucket in buckets), strict=True)]
    return Bucket(buckets[0].slice_start, columns, np.concatenate([widened(bucket.sets, width) for bucket in buckets]))


def constant(partial: Partial) -> Callable[[], Partial]:
    """Return a way to load what is there already."""
    return lambda: partial
