"""Compaction of stored segments, and the promotion of shuffle files to state files.

A slice of a join buffer and a state store get new segments with every batch. Where they have many, adjacent ones of similar
size are merged: a row is copied a logarithmic number of times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from headrace.engine.batch_job import StateRef
from headrace.engine.joins.segment import RowSegment, concat_segments
from headrace.storage.store import Store

_MAX_BUFFER_SEGMENTS = 16
_SMALL_BUFFER_ROWS = 1 << 16  # larger buffers are not merged: their shuffle files are linked, not copied
Segment = TypeVar("Segment")


class SegmentExtent(NamedTuple):
    """The rows of a segment, and the batches that inserted them."""

    row_count: int
    oldest_batch: int = 0
    newest_batch: int = 0


def group_segments(
    segments: Sequence[Segment], measure: Callable[[Segment], SegmentExtent], max_segments: int, span_fraction: int = 1
) -> list[list[Segment]]:
    """Return adjacent segments in groups, each of which becomes one segment; no groups of several up to `max_segments`.

    The first part of a group is not much larger than the rest, and a group spans at most 1/`span_fraction` of all batches.
    """
    groups = [([segment], measure(segment)) for segment in segments]
    if len(groups) <= max_segments:
        return [group for group, _ in groups]
    max_batches = _count_batches([extent for _, extent in groups]) // span_fraction
    merged: list[tuple[list[Segment], SegmentExtent]] = []
    for added in groups:
        merged.append(added)
        while len(merged) > 1:
            (first, first_extent), (last, last_extent) = merged[-2:]
            extents = (first_extent, last_extent)
            if first_extent.row_count > 2 * last_extent.row_count or _count_batches(extents) > max_batches:
                break
            oldest, newest = min(extent.oldest_batch for extent in extents), max(extent.newest_batch for extent in extents)
            merged[-2:] = [(first + last, SegmentExtent(first_extent.row_count + last_extent.row_count, oldest, newest))]
    return [group for group, _ in merged]


def _count_batches(extents: Sequence[SegmentExtent]) -> int:
    """Return the number of batches that segments span; event times of joined rows would not tell their age."""
    return 1 + max(extent.newest_batch for extent in extents) - min(extent.oldest_batch for extent in extents)


def compact_buffers(buffers: Sequence[tuple[StateRef, RowSegment]]) -> list[tuple[StateRef, RowSegment]]:
    """Return join buffers, the small segments of a slice merged where there are many; those without a file are to be written."""
    slices: dict[tuple[str, int, int, int], list[tuple[StateRef, RowSegment]]] = defaultdict(list)
    for ref, rows in buffers:
        slices[ref.slice_key].append((ref, rows))
    compacted: list[tuple[StateRef, RowSegment]] = []
    for slice_buffers in slices.values():
        compacted += [entry for entry in slice_buffers if entry[1].row_count >= _SMALL_BUFFER_ROWS]
        small_buffers = [entry for entry in slice_buffers if entry[1].row_count < _SMALL_BUFFER_ROWS]
        for group in group_segments(small_buffers, lambda entry: SegmentExtent(entry[1].row_count), _MAX_BUFFER_SEGMENTS):
            compacted += group if len(group) == 1 else [_merge_buffers(group)]
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
