"""Batches of rows, in chunks that fit a core's cache."""

from __future__ import annotations

import pyarrow as pa

from headrace.engine import row_batch
from headrace.engine.row_batch import RowBatch
from headrace.model.types import TIMESTAMP


def test_chunks_without_rows_are_left_out():
    times = [pa.array(values, pa.int64()).cast(TIMESTAMP) for values in ([], range(row_batch.CHUNK_ROWS), [], [7], [])]
    batch = RowBatch(pa.table({"time": pa.chunked_array(times)}), "time")
    assert [chunk.row_count for chunk in batch.chunks] == [row_batch.CHUNK_ROWS, 1]
    assert (batch.min_time, batch.max_time) == (0, row_batch.CHUNK_ROWS - 1)
