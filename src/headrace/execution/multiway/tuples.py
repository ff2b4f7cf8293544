"""Joined rows in transit between state stores, each with the set of queries that it still matters to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.joined_rows import ChunkedColumn, JoinedRows, JoinTable, select_all_rows
from headrace.kernels.columns import combine_chunks, to_numbers
from headrace.kernels.expression import Evaluator
from headrace.kernels.sets import QueryBitmaps, resize_bitmaps
from headrace.sharing.multiway.asked import time_column_of

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
