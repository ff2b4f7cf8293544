"""Rows inside joins: row ids into tables instead of copies, until a column is read (late materialization)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.model.record import record
from headrace.plan.window_join import split_joined_name

Integers = npt.NDArray[np.int64]
_SPARSE_FRACTION = 4  # reads of fewer than one value in so many do not concatenate


@record("chunked-column")
@dataclass(slots=True, eq=False)
class ChunkedColumn:
    """A column in several arrays, at least one; they are concatenated only if many of its values are read.

    With at most `combine_limit` values per array, the first read concatenates them.
    """

    arrays: Sequence[pa.Array]
    combine_limit: int = 0
    _ends: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Compute where the arrays end."""
        self._ends = np.cumsum([len(array) for array in self.arrays])

    def __len__(self) -> int:
        """Return the number of values."""
        return int(self._ends[-1])

    def combine_chunks(self) -> pa.Array:
        """Return all values as one array."""
        if len(self.arrays) > 1:
            self.arrays = [pa.concat_arrays(self.arrays)]
            self._ends = self._ends[-1:]
        return self.arrays[0]

    def take(self, row_ids: Integers) -> pa.Array:
        """Return the values at `row_ids`; NULL at −1."""
        is_missing = row_ids < 0
        null_mask = is_missing if is_missing.any() else None
        few = self.combine_limit * len(self.arrays)
        if len(self.arrays) == 1 or len(self) <= few or len(row_ids) > len(self) // _SPARSE_FRACTION:
            return self.combine_chunks().take(pa.array(row_ids, mask=null_mask))
        chunk_of_row = np.searchsorted(self._ends, np.maximum(row_ids, 0), side="right")
        order = np.argsort(chunk_of_row, kind="stable")
        cuts = np.searchsorted(chunk_of_row[order], np.arange(len(self.arrays) + 1))
        chunk_values = []
        for chunk, array in enumerate(self.arrays):
            rows = order[cuts[chunk] : cuts[chunk + 1]]
            first_row = int(self._ends[chunk]) - len(array)
            chunk_values.append(
                array.take(pa.array(row_ids[rows] - first_row, mask=None if null_mask is None else null_mask[rows]))
            )
        positions = np.empty(len(row_ids), np.int64)
        positions[order] = np.arange(len(row_ids))
        return pa.concat_arrays(chunk_values).take(pa.array(positions))


@record("join-table")
@dataclass(frozen=True, slots=True, eq=False)
class JoinTable:
    """Columns of one or more inputs, named `i.c` as in the plan."""

    columns: Mapping[str, ChunkedColumn]
    row_count: int

    @property
    def inputs(self) -> frozenset[int]:
        """The inputs that its columns belong to."""
        return frozenset(split_joined_name(name)[0] for name in self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class TableSelection:
    """A selection of the rows of a table, by row id; −1 stands for a missing row, None for all rows in order."""

    table: JoinTable
    row_ids: Integers | None = None

    def take(self, rows: Integers) -> TableSelection:
        """Return the selection of these rows only; −1 stands for a missing row."""
        if self.row_ids is None:
            return TableSelection(self.table, rows)
        is_missing = rows < 0
        if not is_missing.any():
            return TableSelection(self.table, self.row_ids[rows])
        return TableSelection(self.table, np.where(is_missing, -1, self.row_ids[np.where(is_missing, 0, rows)]))

    def get_column(self, name: str) -> pa.Array:
        """Return the values of a column; NULL for a missing row."""
        column = self.table.columns[name]
        return column.combine_chunks() if self.row_ids is None else column.take(self.row_ids)


class _LazyColumns(dict[str, pa.Array]):
    """The columns of joined rows, each materialized on first access."""

    def __init__(self, rows: JoinedRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, name: str) -> pa.Array:
        self[name] = self._rows.get_column(name)
        return self[name]


@dataclass(slots=True, eq=False)
class JoinedRows:
    """Rows of several inputs side by side, each with its query-set; `extra_columns` are additional columns."""

    selections: Sequence[TableSelection]
    sets: QueryBitmaps
    extra_columns: dict[str, pa.Array] = field(default_factory=dict)
    _evaluator: Evaluator | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    def get_column(self, name: str) -> pa.Array:
        """Return the values of a column; NULL where the input is missing."""
        if name in self.extra_columns:
            return self.extra_columns[name]
        for selection in self.selections:
            if name in selection.table.columns:
                return selection.get_column(name)
        raise KeyError(name)

    @property
    def evaluate(self) -> Evaluator:
        """Evaluate expressions over joined columns, each at most once."""
        if self._evaluator is None:
            self._evaluator = Evaluator(_LazyColumns(self), self.row_count)
        return self._evaluator

    def take(self, row_ids: Integers, sets: QueryBitmaps | None = None) -> JoinedRows:
        """Return the rows at `row_ids`, with other query-sets if given."""
        return JoinedRows(
            [selection.take(row_ids) for selection in self.selections], self.sets[row_ids] if sets is None else sets
        )

    def pair_with(self, row_ids: Integers, other_rows: JoinedRows, other_ids: Integers, sets: QueryBitmaps) -> JoinedRows:
        """Return rows of both sides, paired by row id; −1 stands for a missing row."""
        return JoinedRows(
            [
                *(selection.take(row_ids) for selection in self.selections),
                *(selection.take(other_ids) for selection in other_rows.selections),
            ],
            sets,
        )

    def materialize_columns(self, names: Sequence[str]) -> JoinTable:
        """Return the named columns materialized, for rows that leave this worker."""
        return JoinTable({name: ChunkedColumn([self.get_column(name)]) for name in names}, self.row_count)


def select_all_rows(table: JoinTable, sets: QueryBitmaps) -> JoinedRows:
    """Return all rows of a table."""
    return JoinedRows([TableSelection(table)], sets)
