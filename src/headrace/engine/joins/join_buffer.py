"""Join buffers in the map stage: assigns rows of joins to their slice and key partition, each with its query-set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.compute.keys import assign_partitions, encode_keys
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, QuerySetAssigner
from headrace.engine.row_batch import KeyEncoder, RowBatch
from headrace.model.expression import Expression
from headrace.model.record import record
from headrace.planner.shared_plan import JoinBuffer

SAMPLE_ROWS = 256  # rows sampled from a batch
_KEY_SAMPLE_ROWS = 1 << 14


@record("buffered-rows")
@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of one slice and partition, in order of arrival: the columns that joins need, and a query-set for each row."""

    slice_start: int
    columns: list[pa.Array]
    sets: QueryBitmaps

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """The approximate memory of the rows."""
        return int(self.sets.nbytes + sum(column.nbytes for column in self.columns))


def buffer_rows(
    buffer: JoinBuffer,
    set_assigner: QuerySetAssigner,
    live: QueryBitmaps,
    batch: RowBatch,
    encoder: KeyEncoder,
    partition_count: int,
    oldest: int,
    samples: list[QueryBitmaps],
) -> Iterator[tuple[int, BufferedRows]]:
    """Yield (partition, buffered rows); rows that matter to none of the `live` queries, or are older than `oldest`, are dropped.

    Query-sets of sampled rows are appended to `samples`.
    """
    query_sets = set_assigner.assign_sets(batch)
    query_sets &= live
    samples.append(query_sets[:: max(1, batch.row_count // SAMPLE_ROWS)].copy())
    if batch.min_time < oldest:
        query_sets[batch.times < oldest] = 0
    rows = join_kernels.find_live_rows(query_sets)
    if not rows.size:
        return
    is_full = rows.size == batch.row_count
    row_ids = pa.array(rows)
    keys = [combine_chunks(batch.evaluate(key)) for key in buffer.keys]
    keys = keys if is_full else [key.take(row_ids) for key in keys]
    edges = encoder.find_slice_edges(buffer.slice_progressions)
    slices = np.searchsorted(edges, batch.times if is_full else batch.times[rows], side="right") - 1
    targets = assign_partitions(keys, rows.size, partition_count) * len(edges) + slices
    starts, order = join_kernels.group_rows_by_key(targets, partition_count * len(edges))
    ordered_rows = order if is_full else rows[order]
    columns = [combine_chunks(batch.table[name]) for name in buffer.columns]
    for target in np.flatnonzero(np.diff(starts)).tolist():
        target_rows = ordered_rows[starts[target] : starts[target + 1]]
        target_ids = pa.array(target_rows)  # a copy: pickling a slice of an array would ship the whole array
        yield (
            target // len(edges),
            BufferedRows(
                int(edges[target % len(edges)]), [column.take(target_ids) for column in columns], query_sets[target_rows]
            ),
        )


def estimate_key_count(keys: Sequence[Expression], batch: RowBatch) -> int:
    """Return an estimate of the number of distinct keys of a stream, from a sample of adjacent rows."""
    if not keys:
        return 1
    rows = min(batch.row_count, _KEY_SAMPLE_ROWS)
    columns = [combine_chunks(batch.evaluate(key)).slice(0, rows) for key in keys]
    encoded = encode_keys(columns, rows)
    distinct_count = len(np.unique(encoded.codes))
    low, high = float(distinct_count), 1e12
    for _ in range(60):  # n rows contain about D (1 − e^(−n/D)) of D keys
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * -np.expm1(-rows / middle) < distinct_count else (low, middle)
    return round(low)
