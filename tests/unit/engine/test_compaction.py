"""Stored segments of joins: shuffle files promoted to state, and compaction."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.batch_job import BatchJob, MapReport, ShuffleBlock, StateRef
from headrace.engine.joins.routing import BufferAddress, RoutedRows
from headrace.engine.joins.segment import RowSegment
from headrace.engine.joins.segment_compaction import ShuffleFilePromoter, compact_buffers
from headrace.engine.joins.segment_groups import SegmentExtent, group_segments
from headrace.model.partition_map import PartitionMap
from headrace.storage import container
from headrace.storage.posix import PosixStore


def make_buffer(rows: int, width: int = 1) -> RowSegment:
    return RowSegment({"x": pa.array(np.arange(rows))}, np.ones((rows, width), np.uint64))


def make_ref(file: str = "", start: int = 0, index: int = 0) -> StateRef:
    return StateRef(file, index, 0, "s", 1, 0, start)


@pytest.mark.parametrize("links", [True, False])
def test_a_shuffle_file_is_promoted_to_state_unchanged(tmp_path: Path, links: bool, monkeypatch: Any) -> None:
    def refuse_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse_links)
    store = PosixStore(tmp_path)
    address = BufferAddress("s", 1, 0, 0)
    block = ShuffleBlock(0, MapReport(), join_rows=[RoutedRows(address, make_buffer(rows)) for rows in (3, 5)])
    container.write(store, "shuffle/7-0-0.block", block, sync=False)
    promote = ShuffleFilePromoter(store)
    promoted = [promote(make_ref("shuffle/7-0-0.block", index=index)) for index in (0, 1)]
    store.delete("shuffle/7-0-0.block")
    assert [ref.file for ref in promoted] == ["state/7-0-0.block"] * 2
    job = BatchJob(8, PartitionMap(1), PartitionMap(1), str(tmp_path), {}, ())
    assert [job.load_buffered_rows(ref).row_count for ref in promoted] == [3, 5]
    assert promote(promoted[1]) == promoted[1]


def test_small_buffers_of_a_slice_are_merged_and_large_buffers_are_kept() -> None:
    large = (make_ref("state/large", start=5), make_buffer(1 << 16))
    small = [(make_ref(f"state/{number}", start=5), make_buffer(number, 1 + number // 9)) for number in range(1, 18)]
    other = (make_ref("state/other", start=9), make_buffer(1))
    compacted = compact_buffers([*small[:9], large, *small[9:], other])
    assert [ref.file for ref, _ in compacted] == ["state/large", "", "", "state/other"]
    assert [rows.row_count for _, rows in compacted[1:3]] == [sum(range(1, 16)), 16 + 17]
    assert {rows.sets.shape[1] for _, rows in compacted[1:3]} == {2}
    assert compact_buffers([large, *small[:16], other]) == [large, *small[:16], other]


@pytest.mark.parametrize(
    ("row_counts", "max_segments", "span_fraction", "expected"),
    [
        ([1, 1, 1], 3, 1, [[1], [1], [1]]),  # few segments stay as they are
        ([1, 1, 1], 2, 1, [[1, 1, 1]]),
        ([100, 9, 9, 9], 2, 1, [[100], [9, 9, 9]]),  # the first one is much larger
        ([40, 9, 9, 9], 2, 1, [[40, 9, 9, 9]]),
        ([5] * 8, 2, 4, [[5, 5]] * 4),  # one batch each: a group spans a quarter of 8 batches
    ],
)
def test_adjacent_segments_of_similar_size_are_grouped(
    row_counts: list[int], max_segments: int, span_fraction: int, expected: list[list[int]]
) -> None:
    segments = [SegmentExtent(rows, batch, batch) for batch, rows in enumerate(row_counts)]
    groups = group_segments(segments, lambda extent: extent, max_segments, span_fraction)
    assert [[extent.row_count for extent in group] for group in groups] == expected
