"""Rows inside joins: row ids into tables instead of copies, until a column is read (late materialization)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks, take
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.model.expression import Expression

Integers = npt.NDArray[np.int64]
Bitmasks = npt.NDArray[np.uint64]
_PARTIAL_FRACTION = 2  # a condition is evaluated on all rows if more than 1/2 of them need it
_SPARSE_FRACTION = 4  # reads of fewer than one value in so many do not concatenate


class ChunkedColumn:
    """A column in several arrays; they are concatenated only if many of its values are read."""

    def __init__(self, arrays: Sequence[pa.Array], combine_limit: int = 0) -> None:
        """Take at least one array; with at most `combine_limit` values per array, the first read concatenates them."""
        self._arrays = list(arrays)
        self._combine_limit = combine_limit * len(self._arrays)
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        """Return the number of values."""
        return int(self._ends[-1])

    def combine_chunks(self) -> pa.Array:
        """Return all values as one array."""
        if len(self._arrays) > 1:
            self._arrays = [pa.concat_arrays(self._arrays)]
            self._ends = self._ends[-1:]
        return self._arrays[0]

    def take(self, row_ids: Integers) -> pa.Array:
        """Return the values at `row_ids`; NULL at −1."""
        is_missing = row_ids < 0
        null_mask = is_missing if is_missing.any() else None
        if len(self._arrays) == 1 or len(self) <= self._combine_limit or len(row_ids) > len(self) // _SPARSE_FRACTION:
            return take(self.combine_chunks(), row_ids, null_mask)
        chunk_of_row = np.searchsorted(self._ends, np.maximum(row_ids, 0), side="right")
        order = np.argsort(chunk_of_row, kind="stable")
        cuts = np.searchsorted(chunk_of_row[order], np.arange(len(self._arrays) + 1))
        chunk_values = []
        for chunk, array in enumerate(self._arrays):
            rows = order[cuts[chunk] : cuts[chunk + 1]]
            first_row = int(self._ends[chunk]) - len(array)
            chunk_values.append(take(array, row_ids[rows] - first_row, None if null_mask is None else null_mask[rows]))
        positions = np.empty(len(row_ids), np.int64)
        positions[order] = np.arange(len(row_ids))
        return take(pa.concat_arrays(chunk_values), positions)


@dataclass(frozen=True, slots=True, eq=False)
class JoinTable:
    """Columns of one or more inputs, named as in the plan."""

    columns: Mapping[str, ChunkedColumn]
    row_count: int


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
    """Rows of one or more tables side by side, each with its query-set; columns are materialized on access.

    In sliding joins, `delta_mask` holds, as bits, the relations whose row was inserted in this batch. `extra_columns`
    belong to these rows only: `take` drops them.
    """

    selections: list[TableSelection]
    sets: QueryBitmaps
    delta_mask: Bitmasks | None = None
    extra_columns: dict[str, pa.Array] = field(default_factory=dict)
    _evaluator: Evaluator | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.sets)

    def has_column(self, name: str) -> bool:
        """Return whether the rows have a column."""
        return name in self.extra_columns or any(name in selection.table.columns for selection in self.selections)

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
            [selection.take(row_ids) for selection in self.selections],
            self.sets[row_ids] if sets is None else sets,
            None if self.delta_mask is None else self.delta_mask[row_ids],
        )

    def take_columns(self, row_ids: Integers) -> JoinedRows:
        """Return the columns of the rows at `row_ids`, for output: the rows have neither query-sets nor delta masks."""
        is_identity = len(row_ids) == self.row_count and bool((row_ids == np.arange(len(row_ids))).all())
        selections = self.selections if is_identity else [selection.take(row_ids) for selection in self.selections]
        return JoinedRows(list(selections), np.empty((len(row_ids), 0), np.uint64))

    def restrict_sets(self, sets: QueryBitmaps) -> JoinedRows:
        """Return the rows with these query-sets, without the rows whose query-set is empty."""
        if join_kernels.are_rows_live(sets):
            return JoinedRows(self.selections, sets, self.delta_mask)
        alive = join_kernels.find_live_rows(sets)
        return self.take(alive, sets[alive])

    def pair_with(
        self,
        row_ids: Integers,
        other_rows: JoinedRows,
        other_ids: Integers,
        sets: QueryBitmaps,
        delta_mask: Bitmasks | None = None,
    ) -> JoinedRows:
        """Return rows of both sides, paired by row id; −1 stands for a missing row."""
        return JoinedRows(
            [
                *(selection.take(row_ids) for selection in self.selections),
                *(selection.take(other_ids) for selection in other_rows.selections),
            ],
            sets,
            delta_mask,
        )

    def clear_failing(self, conditions: Mapping[Expression, QueryBitmaps]) -> bool:
        """Clear the bits of each condition where it does not hold, and return whether there are such rows.

        An overflow counts as unknown, like NULL.
        """
        any_fails = False
        for condition, bits in conditions.items():
            needing = join_kernels.find_users(self.sets, bits)
            if not needing.size:
                continue
            if needing.size >= self.row_count // _PARTIAL_FRACTION:
                any_fails |= join_kernels.clear_failing(mask_true(self.evaluate(condition)), bits, self.sets)
                continue
            some = self.take(needing)
            if join_kernels.clear_failing(mask_true(some.evaluate(condition)), bits, some.sets):
                self.sets[needing] = some.sets
                any_fails = True
        return any_fails


def mask_true(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return the mask of values that are TRUE, neither FALSE nor NULL."""
    column = combine_chunks(values)
    return np.asarray(column.fill_null(False) if column.null_count else column)
