"""Which adjacent segments become one, so that there are never many and a row is copied a logarithmic number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

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
