"""Compaction of stored segments, and the promotion of shuffle files to state files.

A slice of a join buffer and a state store get new segments with every batch. Where they have many, adjacent ones of similar
size are merged: a row is copied a logarithmic number of times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from headrace.engine.batch_job import StateRef
from headrace.engine.joins.segment import RowSegment, concat_segments
from headrace.engine.joins.segment_groups import SegmentExtent, group_segments
from headrace.storage.store import Store

_MAX_BUFFER_SEGMENTS = 16
_SMALL_BUFFER_ROWS = 1 << 16  # larger buffers are not merged: their shuffle files are linked, not copied


BufferEntry = tuple[StateRef, RowSegment]


def compact_buffers(
    buffers: Sequence[BufferEntry], merged_parts: dict[RowSegment, list[RowSegment]] | None = None
) -> list[BufferEntry]:
    """Return join buffers, the small segments of a slice merged where there are many; those without a file are to be written.

    `merged_parts` receives the segments that became one.
    """
    slices: dict[tuple[str, int, int, int], list[tuple[StateRef, RowSegment]]] = defaultdict(list)
    for ref, rows in buffers:
        slices[ref.slice_key].append((ref, rows))
    compacted: list[tuple[StateRef, RowSegment]] = []
    for slice_buffers in slices.values():
        compacted += [entry for entry in slice_buffers if entry[1].row_count >= _SMALL_BUFFER_ROWS]
        small_buffers = [entry for entry in slice_buffers if entry[1].row_count < _SMALL_BUFFER_ROWS]
        for group in group_segments(small_buffers, lambda entry: SegmentExtent(entry[1].row_count), _MAX_BUFFER_SEGMENTS):
            entry = group[0] if len(group) == 1 else _merge_buffers(group)
            compacted.append(entry)
            if len(group) > 1 and merged_parts is not None:
                merged_parts[entry[1]] = [rows for _, rows in group]
    return compacted


def _merge_buffers(buffers: Sequence[tuple[StateRef, RowSegment]]) -> tuple[StateRef, RowSegment]:
    segments = [rows for _, rows in buffers]
    merged = concat_segments(segments, max(rows.sets.shape[1] for rows in segments))
    return replace(buffers[0][0], file="", index=0), merged


class ShuffleFilePromoter:
    """Promotes shuffle files of the checkpoint to state files: their rows are linked, not written again.

    A shuffle file keeps its name, which is that of one attempt of a map task: all attempts of a reduce task promote it alike.
    """

    def __init__(self, store: Store) -> None:
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
            self._store.link(ref.file, f"state/{name}")
        return replace(ref, file=f"state/{name}")
