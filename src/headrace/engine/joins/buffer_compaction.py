"""Compaction of join buffers after a batch, and the promotion of shuffle files to state files."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.engine.batch_job import StateRef
from headrace.engine.joins.join_buffer import BufferedRows
from headrace.engine.operators.query_sets import resize_bitmaps
from headrace.storage.posix import PosixStore

_MAX_SMALL_BUFFERS = 16
_SMALL_BUFFER_ROWS = 1 << 16  # larger buffers are not merged: no row is written more than a few times


def compact_buffers(buffers: Sequence[tuple[StateRef, BufferedRows]]) -> list[tuple[StateRef, BufferedRows]]:
    """Return join buffers, the small ones of a slice merged where there are many; those without a file are to be written."""
    slices: dict[tuple[str, int, int, int], list[tuple[StateRef, BufferedRows]]] = defaultdict(list)
    for ref, rows in buffers:
        slices[ref.slice_key].append((ref, rows))
    compacted: list[tuple[StateRef, BufferedRows]] = []
    for slice_buffers in slices.values():
        small_buffers = [entry for entry in slice_buffers if entry[1].row_count < _SMALL_BUFFER_ROWS]
        if len(small_buffers) > _MAX_SMALL_BUFFERS:
            compacted += [entry for entry in slice_buffers if entry[1].row_count >= _SMALL_BUFFER_ROWS]
            compacted.append(
                (replace(small_buffers[0][0], file="", index=0), _concat_buffers([rows for _, rows in small_buffers]))
            )
        else:
            compacted += slice_buffers
    return compacted


class ShuffleFilePromoter:
    """Promotes shuffle files of the checkpoint to state files: their rows are linked, not written again."""

    def __init__(self, store: PosixStore) -> None:
        """Take the store of the checkpoint."""
        self._store = store
        self._promoted: set[str] = set()

    def __call__(self, ref: StateRef) -> StateRef:
        """Return the state reference of buffered rows, after promoting their shuffle file."""
        folder, _, name = ref.file.partition("/")
        if folder == "state":
            return ref
        if name not in self._promoted:
            self._promoted.add(name)
            self._store.put_file(f"state/{name}", lambda temporary: _link_or_copy(self._store.path_of(ref.file), temporary))
        return replace(ref, file=f"state/{name}")


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _concat_buffers(buffers: Sequence[BufferedRows]) -> BufferedRows:
    width = max(rows.sets.shape[1] for rows in buffers)
    columns = [pa.concat_arrays(arrays) for arrays in zip(*(rows.columns for rows in buffers), strict=True)]
    return BufferedRows(buffers[0].slice_start, columns, np.concatenate([resize_bitmaps(rows.sets, width) for rows in buffers]))
