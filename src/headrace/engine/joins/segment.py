"""Immutable rows of joins: columns with a query-set for each row, as they travel between stages and are stored as state.

Join buffers hold segments by slice; state stores of sliding joins hold them by the batches that inserted their rows, with
indexes. Compaction merges adjacent segments from time to time, so that a slice or a store never has many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks, take, to_numbers
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.joins.index import HashIndex, IndexCache, IndexKeys, RowIndexes, SortedIndex
from headrace.engine.joins.joined_rows import Bitmasks, ChunkedColumn, Integers, JoinedRows, JoinTable, TableSelection
from headrace.engine.operators.query_sets import QueryBitmaps, resize_bitmaps
from headrace.model.expression import Expression
from headrace.model.record import record
from headrace.planner.join.normalized_join import time_column_of

ColumnTypes = Mapping[str, pa.DataType]


@record("row-segment")
@dataclass(frozen=True, slots=True, eq=False)
class RowSegment:
    """Rows of a join, in order of arrival: columns by name, and the query-set of each row.

    Rows of sliding joins have a `delta_mask` (see `JoinedRows`), of use in the batch that inserts them. Once stored, they have
    the batch of insertion of each row, the batch that defines which query each bit of a query-set stands for, and indexes (see
    `RowIndexes`).
    """

    columns: dict[str, pa.Array]
    sets: QueryBitmaps
    delta_mask: Bitmasks | None = None
    insert_batch: npt.NDArray[np.int32] | None = None
    bitmap_version: int = 0
    indexes: dict[str, HashIndex | SortedIndex] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """The approximate size in bytes, without indexes."""
        row_arrays = (self.sets, self.delta_mask, self.insert_batch)
        array_bytes = sum(array.nbytes for array in row_arrays if array is not None)
        return int(array_bytes + sum(column.nbytes for column in self.columns.values()))

    def evaluate(self, expression: Expression) -> pa.Array:
        """Return the values of an expression over the columns."""
        return combine_chunks(Evaluator(self.columns, self.row_count)(expression))

    def get_column(self, name: str) -> pa.Array:
        """Return the values of a column."""
        return self.columns[name]

    def get_insert_batches(self) -> npt.NDArray[np.int32]:
        """Return the batch of insertion of each row; rows must be stored."""
        assert self.insert_batch is not None
        return self.insert_batch

    def get_delta_masks(self) -> Bitmasks:
        """Return the delta mask of each row; rows must be those of a sliding join."""
        assert self.delta_mask is not None
        return self.delta_mask

    def take(self, row_ids: Integers) -> RowSegment:
        """Return the rows at `row_ids`, copied, without indexes."""
        return replace(
            self,
            columns={name: take(column, row_ids) for name, column in self.columns.items()},
            sets=self.sets[row_ids],
            delta_mask=None if self.delta_mask is None else self.delta_mask[row_ids],
            insert_batch=None if self.insert_batch is None else self.insert_batch[row_ids],
            indexes={},
        )

    def with_columns(self, types: ColumnTypes) -> RowSegment:
        """Return the rows with all of these columns; NULL for columns that no query needed when the rows were stored."""
        missing = {name: pa.nulls(self.row_count, data_type) for name, data_type in types.items() if name not in self.columns}
        return replace(self, columns={**self.columns, **missing}) if missing else self


def get_event_times(rows: RowSegment | JoinedRows, relation: str) -> Integers:
    """Return the event times of the rows of a relation of sliding joins."""
    return to_numbers(combine_chunks(rows.get_column(time_column_of(relation))))


def concat_segments(segments: Sequence[RowSegment], width: int) -> RowSegment:
    """Return the rows of several segments as one, without indexes; a column that a segment lacks is NULL there.

    `width` is that of query-sets, in words; their bits must have the same meaning in all segments.
    """
    first = segments[0]
    sets = _concat_sets(segments, width)
    if len(segments) == 1:
        return replace(first, sets=sets, indexes={})
    columns = {name: pa.concat_arrays(arrays) for name, arrays in _collect_columns(segments, _find_types(segments)).items()}
    insert_batches = [segment.insert_batch for segment in segments if segment.insert_batch is not None]
    insert_batch = np.concatenate(insert_batches) if len(insert_batches) == len(segments) else None
    return RowSegment(columns, sets, _concat_masks(segments), insert_batch, first.bitmap_version)


def view_columns(segments: Sequence[RowSegment], types: ColumnTypes | None = None, combine_limit: int = 0) -> JoinTable:
    """Return the columns of several segments without copying; a column that a segment lacks is NULL there.

    `types` are the columns of the result, by default all that occur; for `combine_limit` see `ChunkedColumn`.
    """
    columns = _collect_columns(segments, _find_types(segments) if types is None else types)
    row_count = sum(segment.row_count for segment in segments)
    return JoinTable({name: ChunkedColumn(arrays, combine_limit) for name, arrays in columns.items()}, row_count)


def view_segments(segments: Sequence[RowSegment], width: int, types: ColumnTypes | None = None) -> JoinedRows:
    """Return the rows of several segments, their columns as in `view_columns`; `width` is that of query-sets, in words."""
    selection = TableSelection(view_columns(segments, types))
    return JoinedRows([selection], _concat_sets(segments, width), _concat_masks(segments))


def pack_rows(rows: JoinedRows, names: Iterable[str]) -> RowSegment:
    """Return the columns with these names, as far as rows have them, materialized for rows that leave this worker."""
    columns = {name: combine_chunks(rows.get_column(name)) for name in names if rows.has_column(name)}
    return RowSegment(columns, rows.sets, rows.delta_mask)


def build_indexes(segment: RowSegment, hashed: Iterable[IndexKeys], sorted_by: Iterable[Expression]) -> RowSegment:
    """Return a segment with indexes by the hash of keys, and by values."""
    cache: IndexCache = {}
    indexes = RowIndexes(segment.evaluate, segment.row_count, cache)
    for keys in hashed:
        indexes.get_hash_index(keys)
    for value in sorted_by:
        indexes.get_sorted_index(value)
    return replace(segment, indexes=cache)


def _find_types(segments: Sequence[RowSegment]) -> ColumnTypes:
    return {name: column.type for segment in segments for name, column in segment.columns.items()}


def _collect_columns(segments: Sequence[RowSegment], types: ColumnTypes) -> dict[str, list[pa.Array]]:
    complete = [segment.with_columns(types) for segment in segments]
    return {name: [segment.columns[name] for segment in complete] for name in types}


def _concat_sets(segments: Sequence[RowSegment], width: int) -> QueryBitmaps:
    sets = [resize_bitmaps(segment.sets, width) for segment in segments]
    return sets[0] if len(sets) == 1 else np.concatenate(sets)


def _concat_masks(segments: Sequence[RowSegment]) -> Bitmasks | None:
    masks = [segment.delta_mask for segment in segments if segment.delta_mask is not None]
    return np.concatenate(masks) if len(masks) == len(segments) else None
