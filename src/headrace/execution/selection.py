"""Shared selection: assigns each row to its cell, which stands for the set of queries that the row still matters to."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.execution.batch import Batch
from headrace.kernels import compiled
from headrace.kernels.columns import combine_chunks, to_numbers, valid_mask
from headrace.model.expression import Expression
from headrace.sharing.selection import (
    NULL_CODE,
    TRUE_CODE,
    CellLayout,
    CellSpans,
    Dimension,
    PredicateIndex,
    compute_cell_spans,
    compute_grid_spans,
)

Integers = npt.NDArray[np.int64]
_MAX_TABLE = 1 << 16


@dataclass(frozen=True, slots=True)
class Tagged:
    """Rows with their cells. `rows` (None: all) are positions in the batch; `cells` holds their cells, all < `cell_count`.

    `labels` gives the cell numbers valid across batches (None: the same numbers); `spans` gives the cells of each predicate.
    """

    rows: Integers | None
    cells: Integers
    size: int
    labels: Integers | None
    spans: CellSpans
    keep: npt.NDArray[np.bool_]


class SharedSelection:
    """Assigns the rows of batches to the cells of a predicate index; built once for each epoch."""

    def __init__(self, selection: PredicateIndex) -> None:
        """Take a predicate index; all derived values are computed lazily."""
        self.selection = selection

    @cached_property
    def spans(self) -> CellSpans:
        """The spans of all predicates over the whole grid."""
        return compute_grid_spans(self.selection)

    @cached_property
    def keep(self) -> npt.NDArray[np.bool_]:
        """The cells that at least one query selects."""
        return self.spans.find_covered_cells()

    @cached_property
    def _finders(self) -> list[_Finder]:
        return [_Finder(dimension) for dimension in self.selection.dimensions]

    def table(self, batch: Batch) -> tuple[npt.NDArray[Any], int, Integers] | None:
        """Return (values, base, cells) if selection is a table look-up of integers without NULLs; None otherwise.

        The cell of a value is cells[value − base], clamped at both ends; −1 where no query selects it.
        """
        if self.selection.layout is not CellLayout.GRID or len(self._finders) != 1:
            return None
        values = self._finders[0].integers(batch)
        return None if values is None or self._cells is None else (values, self._finders[0].base, self._cells)

    @cached_property
    def _cells(self) -> Integers | None:
        table = self._finders[0].table
        return None if table is None else np.where(self.keep[table], table, -1)

    def tag(self, batch: Batch) -> Tagged:
        """Find the cell of every row."""
        if self.selection.layout is CellLayout.PER_QUERY:
            return self._tag_each(batch)
        cells = np.zeros(batch.rows, np.int64)
        for finder, stride in zip(self._finders, self.selection.strides, strict=True):
            finder.add_segments(batch, stride, cells)
        if self.selection.layout is CellLayout.GRID:
            return Tagged(None, cells, self.selection.cell_count, None, self.spans, self.keep)
        labels, codes = compiled.factorize_values(cells)
        order = np.argsort(labels)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        spans = compute_cell_spans(self.selection, labels[order])
        return Tagged(None, rank[codes], len(labels), labels[order], spans, spans.find_covered_cells())

    def _tag_each(self, batch: Batch) -> Tagged:
        hits = [np.flatnonzero(_truth_codes(dimension.expression, batch) == TRUE_CODE) for dimension in self.selection.dimensions]
        cells = np.repeat(np.arange(len(hits)), [len(rows) for rows in hits])
        return Tagged(np.concatenate(hits), cells, len(hits), None, self.spans, np.ones(len(hits), np.bool_))


def segments(dimension: Dimension, batch: Batch) -> Integers:
    """Return the segment of every row in one dimension."""
    segment_ids = np.zeros(batch.rows, np.int64)
    _Finder(dimension).add_segments(batch, 1, segment_ids)
    return segment_ids


def rows_by_predicate(assignment: Tagged, predicates: Sequence[int]) -> dict[int, Integers]:
    """Return for each predicate the positions of its rows, ascending; the cost is proportional to the rows returned."""
    order = np.argsort(assignment.cells, kind="stable")
    cell_starts = np.searchsorted(assignment.cells[order], np.arange(assignment.size + 1))
    rows = {}
    for predicate in predicates:
        row_groups = [order[cell_starts[low] : cell_starts[high]] for low, high in assignment.spans.get_spans(predicate)]
        positions = np.sort(np.concatenate(row_groups)) if row_groups else np.zeros(0, np.int64)
        rows[predicate] = positions if assignment.rows is None else np.sort(assignment.rows[positions])
    return rows


class _Finder:
    """Finds the segment of values in one dimension: by table for a small integer domain, else by binary search."""

    def __init__(self, dimension: Dimension) -> None:
        self._dimension, self._bounds = dimension, dimension.boundaries
        self._null = dimension.segment_count - 1
        self.table: Integers | None = None
        self._floats = self._integers = np.zeros(0, np.int64)
        if self._bounds and not isinstance(self._bounds[0], str):
            self._floats = np.array(self._bounds, np.float64)
            integers = [int(bound) for bound in self._bounds] if isinstance(self._bounds[0], int) else []
            info = np.iinfo(np.int64)
            self._integers = np.array([max(bound, info.min) for bound in integers if bound <= info.max], np.int64)
            if integers and integers[-1] - integers[0] < _MAX_TABLE and info.min < integers[0] and integers[-1] < info.max:
                self.table = np.searchsorted(self._integers, np.arange(integers[0] - 1, integers[-1] + 1), side="right").astype(
                    np.int64
                )

    @property
    def base(self) -> int:
        """The integer that the first entry of the table stands for."""
        return int(self._integers[0]) - 1

    def integers(self, batch: Batch) -> npt.NDArray[Any] | None:
        """Return the values to look up if they are integers without NULLs; None otherwise."""
        column = combine_chunks(batch.evaluate(self._dimension.expression))
        numeric = pa.types.is_integer(column.type) and not column.null_count
        return to_numbers(column) if numeric else None

    def add_segments(self, batch: Batch, stride: int, cells: Integers) -> None:
        """Add stride · segment to the cell of every row."""
        if self._bounds is None:
            cells += _truth_codes(self._dimension.expression, batch) * np.int64(stride)
            return
        column = combine_chunks(batch.evaluate(self._dimension.expression))
        if pa.types.is_string(column.type):
            cells += _string_segments(column, self._bounds, self._null) * stride
            return
        values, valid = to_numbers(column), valid_mask(column)
        if values.dtype == np.float64:
            compiled.add_segments_search(values, valid, self._floats, len(self._bounds), self._null, stride, cells)
        elif self.table is not None:
            compiled.add_segments_table(values, valid, self.base, self.table, self._null, stride, cells)
        else:
            compiled.add_segments_search(values, valid, self._integers, len(self._bounds), self._null, stride, cells)


def _string_segments(column: pa.Array, bounds: Sequence[Any], null_segment: int) -> Integers:
    encoded = column.dictionary_encode(null_encoding="encode")
    table = [null_segment if value is None else bisect.bisect_right(bounds, value) for value in encoded.dictionary.to_pylist()]
    return np.array(table, np.int64)[np.asarray(encoded.indices)] if table else np.zeros(len(column), np.int64)


def _truth_codes(expression: Expression, batch: Batch) -> Integers:
    column = combine_chunks(batch.evaluate(expression))
    codes = pc.multiply(column.cast(pa.int8()), pa.scalar(TRUE_CODE, pa.int8()))
    return np.asarray(pc.fill_null(codes, pa.scalar(NULL_CODE, pa.int8()))).astype(np.int64)
