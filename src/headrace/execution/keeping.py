"""Compaction of stored slices after a batch: many small entries are merged, so that a slice never has many.

Entries that are stored already have a reference; new and merged ones are still to be written.
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
from headrace.kernels.partial import PartialAggregate
from headrace.kernels.sets import resize_bitmaps

_MANY_PARTS = 8
_MANY_BUCKETS = 16
_SMALL_ROWS = 1 << 16  # larger buffers are not merged: no row is written more than a few times


def few_slices(slice_partials: Sequence[tuple[PartRef | None, Slice]]) -> list[tuple[PartRef | None, Slice]]:
    """Return the partials of one slice of an operator, merged if there are more than 8."""
    if len(slice_partials) <= _MANY_PARTS:
        return list(slice_partials)
    first = slice_partials[0][1]
    merged = compact(first.store.components, [slice_partial.load() for _, slice_partial in slice_partials])
    return [(None, Slice(first.store, first.selection, first.start, constant(merged)))]


def few_buckets(buffers: Sequence[tuple[PartRef, Bucket]]) -> list[tuple[PartRef, Bucket]]:
    """Return join buffers, the small ones of a slice merged where there are many; those without a file are to be written."""
    slices: dict[tuple[str, int, int, int], list[tuple[PartRef, Bucket]]] = defaultdict(list)
    for ref, rows in buffers:
        slices[ref.slice].append((ref, rows))
    compacted: list[tuple[PartRef, Bucket]] = []
    for slice_buffers in slices.values():
        small_buffers = [entry for entry in slice_buffers if entry[1].rows < _SMALL_ROWS]
        if len(small_buffers) > _MANY_BUCKETS:
            compacted += [entry for entry in slice_buffers if entry[1].rows >= _SMALL_ROWS]
            compacted.append((replace(small_buffers[0][0], file="", index=0), _united([rows for _, rows in small_buffers])))
        else:
            compacted += slice_buffers
    return compacted


class Adoption:
    """Promotes shuffle files of the checkpoint to state files: their rows are linked, not written again."""

    def __init__(self, directory: Path) -> None:
        """Take the directory of the checkpoint."""
        self._directory = directory
        self._done: set[str] = set()

    def __call__(self, ref: PartRef) -> PartRef:
        """Return the state reference of buffered rows, after promoting their shuffle file."""
        folder, _, name = ref.file.partition("/")
        if folder == "state":
            return ref
        if name not in self._done:
            self._done.add(name)
            write_whole(self._directory / "state" / name, lambda temporary: _same_file(self._directory / ref.file, temporary))
        return replace(ref, file=f"state/{name}")


def _same_file(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _united(buffers: Sequence[Bucket]) -> Bucket:
    width = max(rows.sets.shape[1] for rows in buffers)
    columns = [pa.concat_arrays(arrays) for arrays in zip(*(rows.columns for rows in buffers), strict=True)]
    return Bucket(buffers[0].slice_start, columns, np.concatenate([resize_bitmaps(rows.sets, width) for rows in buffers]))


def constant(partial: PartialAggregate) -> Callable[[], PartialAggregate]:
    """Return a loader of a partial that is in memory already."""
    return lambda: partial
