"""Rows of sliding joins: in transit between state stores, and in the immutable, indexed segments of a store.

A row in transit carries the set of queries that it still matters to. A batch inserts one segment for each store and
partition. Compaction merges adjacent segments from time to time and drops the rows that no query needs any more, so that a
store never has many. `insert_batch` is the batch that inserted a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks, to_numbers
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.joins.index import HashIndex, IndexKeys, SortedIndex, build_hash_index, build_sorted_index
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, select_all_rows
from headrace.engine.operators.query_sets import QueryBitmaps, resize_bitmaps
from headrace.model.expression import Expression
from headrace.planner.join.normalized_join import time_column_of

Integers = npt.NDArray[np.int64]
Bitmasks = npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class ProbeTuples:
    """Rows with the joined columns that are still needed, and the event time of each relation.

    `delta_mask` holds, as bits by rank, the relations whose row in the tuple was inserted in this batch.
    """

    rows: JoinedRows
    delta_mask: Bitmasks

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self.rows.row_count

    @property
    def sets(self) -> QueryBitmaps:
        """The query-set of each row."""
        return self.rows.sets

    @property
    def evaluate(self) -> Evaluator:
        """Evaluate expressions over joined columns."""
        return self.rows.evaluate

    def get_times(self, relation: str) -> Integers:
        """Return the event times of the rows of a relation."""
        return to_numbers(combine_chunks(self.rows.get_column(time_column_of(relation))))

    def take(self, row_ids: Integers, sets: QueryBitmaps | None = None) -> ProbeTuples:
        """Return the rows at `row_ids`, with other query-sets if given."""
        return ProbeTuples(self.rows.take(row_ids, sets), self.delta_mask[row_ids])

    def pack_columns(self, names: Iterable[str]) -> PackedRows:
        """Return the rows with these columns, materialized for shipping."""
        available = [name for name in names if self.has_column(name)]
        return PackedRows({name: combine_chunks(self.rows.get_column(name)) for name in available}, self.sets, self.delta_mask)

    def has_column(self, name: str) -> bool:
        """Return whether the rows have a column."""
        return any(name in selection.table.columns for selection in self.rows.selections)


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Rows for shipping: materialized columns, query-sets and delta masks."""

    columns: dict[str, pa.Array]
    sets: QueryBitmaps
    delta_mask: Bitmasks

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """The approximate memory of the rows."""
        return int(self.sets.nbytes + self.delta_mask.nbytes + sum(column.nbytes for column in self.columns.values()))

    def take(self, row_ids: Integers) -> PackedRows:
        """Return the rows at `row_ids`, copied."""
        arrow_ids = pa.array(row_ids)
        columns = {name: column.take(arrow_ids) for name, column in self.columns.items()}
        return PackedRows(columns, self.sets[row_ids], self.delta_mask[row_ids])


def unpack_rows(packed_rows: Sequence[PackedRows], width: int) -> ProbeTuples:
    """Concatenate the rows of several senders; `width` is that of query-sets, in words."""
    names = [name for name in packed_rows[0].columns if all(name in rows.columns for rows in packed_rows)]
    sets = np.concatenate([resize_bitmaps(rows.sets, width) for rows in packed_rows])
    table = JoinTable({name: ChunkedColumn([rows.columns[name] for rows in packed_rows]) for name in names}, len(sets))
    return ProbeTuples(select_all_rows(table, sets), np.concatenate([rows.delta_mask for rows in packed_rows]))


@dataclass(frozen=True, slots=True, eq=False)
class StateSegment:
    """Rows of a relation; `insert_batch` holds the batch of each, `delta_mask` (for rows of this batch) their new relations."""

    columns: dict[str, pa.Array]
    sets: QueryBitmaps
    insert_batch: npt.NDArray[np.int32]
    delta_mask: Bitmasks
    bitmap_version: int  # the batch that defines which query each bit of a query-set stands for
    hash_indexes: dict[IndexKeys, HashIndex] = field(default_factory=dict)
    sorted_indexes: dict[Expression, SortedIndex] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """The approximate size in bytes, without indexes."""
        row_bytes = self.sets.nbytes + self.insert_batch.nbytes + self.delta_mask.nbytes
        return int(row_bytes + sum(column.nbytes for column in self.columns.values()))

    def get_times(self, relation: str) -> Integers:
        """Return the event times of a relation's rows."""
        return to_numbers(combine_chunks(self.columns[time_column_of(relation)]))

    def evaluate(self, expression: Expression) -> pa.Array:
        """Return the values of an expression over the columns."""
        return combine_chunks(Evaluator(self.columns, self.row_count)(expression))

    def with_columns(self, types: Mapping[str, pa.DataType]) -> StateSegment:
        """Return the rows with all of these columns; NULL for columns that no query needed when the rows were inserted."""
        missing = {name: pa.nulls(self.row_count, data_type) for name, data_type in types.items() if name not in self.columns}
        return replace(self, columns={**self.columns, **missing}) if missing else self

    def get_hash_index(self, keys: IndexKeys) -> HashIndex:
        """Return the index by these keys, built on first use if it was not built at insertion."""
        if keys not in self.hash_indexes:
            self.hash_indexes[keys] = build_hash_index([self.evaluate(key) for key in keys], self.row_count)
        return self.hash_indexes[keys]

    def get_sorted_index(self, value: Expression) -> SortedIndex:
        """Return the index by a value, built on first use if it was not built at insertion."""
        if value not in self.sorted_indexes:
            self.sorted_indexes[value] = build_sorted_index(self.evaluate(value))
        return self.sorted_indexes[value]


def build_segment(
    packed_rows: Sequence[PackedRows], batch: int, hashed: Iterable[IndexKeys], sorted_by: Iterable[Expression], width: int
) -> StateSegment:
    """Return the segment that a batch inserts, with the indexes that probes will use."""
    names = [name for name in packed_rows[0].columns if all(name in rows.columns for rows in packed_rows)]
    columns = {name: pa.concat_arrays([rows.columns[name] for rows in packed_rows]) for name in names}
    sets = np.concatenate([resize_bitmaps(rows.sets, width) for rows in packed_rows])
    insert_batches, delta_masks = np.full(len(sets), batch, np.int32), np.concatenate([rows.delta_mask for rows in packed_rows])
    segment = StateSegment(columns, sets, insert_batches, delta_masks, batch)
    return build_indexes(segment, hashed, sorted_by)


def build_indexes(segment: StateSegment, hashed: Iterable[IndexKeys], sorted_by: Iterable[Expression]) -> StateSegment:
    """Build these indexes; return the segment."""
    for keys in hashed:
        segment.get_hash_index(keys)
    for value in sorted_by:
        segment.get_sorted_index(value)
    return segment


def merge_segments(
    segments: Sequence[StateSegment], selected: Sequence[Integers], width: int, bitmap_version: int
) -> StateSegment:
    """Return selected rows of several segments as one segment, without indexes; a column that a segment lacks is NULL there.

    The bits of query-sets must have the same meaning in all segments: that of `bitmap_version`.
    """
    types = {name: column.type for segment in segments for name, column in segment.columns.items()}
    columns = {}
    for name, data_type in types.items():
        chunks = []
        for segment, row_ids in zip(segments, selected, strict=True):
            column = segment.columns.get(name)
            chunks.append(pa.nulls(len(row_ids), data_type) if column is None else column.take(pa.array(row_ids)))
        columns[name] = pa.concat_arrays(chunks)
    pairs = list(zip(segments, selected, strict=True))
    sets = np.concatenate([resize_bitmaps(segment.sets, width)[row_ids] for segment, row_ids in pairs])
    insert_batches = np.concatenate([segment.insert_batch[row_ids] for segment, row_ids in pairs])
    return StateSegment(columns, sets, insert_batches, np.zeros(len(sets), np.uint64), bitmap_version)
