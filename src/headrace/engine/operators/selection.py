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

from headrace.engine.compute.columns import combine_chunks, to_numbers, valid_mask
from headrace.engine.kernels import select as select_kernels
from headrace.engine.row_batch import RowBatch
from headrace.model.expression import Expression
from headrace.planner.predicate_index import (
    NULL_CODE,
    TRUE_CODE,
    CellLayout,
    CellSpans,
    Dimension,
    PredicateIndex,
    compute_cell_spans,
    compute_grid_spans,
    extend_grid_spans,
)

Integers = npt.NDArray[np.int64]
_MAX_TABLE_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class CellAssignment:
    """Rows with their cells. `rows` (None: all) are positions in the batch; `cells` holds their cells, all < `cell_count`.

    `labels` gives the cell numbers valid across batches (None: the same numbers); `spans` gives the cells of each predicate.
    """

    rows: Integers | None
    cells: Integers
    cell_count: int
    labels: Integers | None
    spans: CellSpans
    wanted_cells: npt.NDArray[np.bool_]


class CellAssigner:
    """Assigns the rows of batches to the cells of a predicate index; built once for each operator."""

    def __init__(self, selection: PredicateIndex, before: CellAssigner | None = None) -> None:
        """Take a predicate index; all derived values are computed lazily. `before` is that of the operator before a change."""
        self.predicate_index = selection
        known = None if before is None else before.__dict__.get("spans")
        self._before = None if before is None or known is None else (before.predicate_index, known)

    @cached_property
    def spans(self) -> CellSpans:
        """The spans of all predicates over the whole grid."""
        before, self._before = self._before, None
        return compute_grid_spans(self.predicate_index) if before is None else extend_grid_spans(self.predicate_index, *before)

    @cached_property
    def wanted_cells(self) -> npt.NDArray[np.bool_]:
        """The cells that at least one query selects."""
        return self.spans.find_covered_cells()

    @cached_property
    def _segment_finders(self) -> list[_SegmentFinder]:
        return [_SegmentFinder(dimension) for dimension in self.predicate_index.dimensions]

    def get_lookup_table(self, batch: RowBatch) -> tuple[npt.NDArray[Any], int, Integers] | None:
        """Return (values, base, cells) if selection is a table look-up of integers without NULLs; None otherwise.

        The cell of a value is cells[value − base], clamped at both ends; −1 where no query selects it.
        """
        if self.predicate_index.layout is not CellLayout.GRID or len(self._segment_finders) != 1:
            return None
        values = self._segment_finders[0].get_integers(batch)
        return (
            None
            if values is None or self._lookup_cells is None
            else (values, self._segment_finders[0].table_base, self._lookup_cells)
        )

    @cached_property
    def _lookup_cells(self) -> Integers | None:
        table = self._segment_finders[0].table
        return None if table is None else np.where(self.wanted_cells[table], table, -1)

    def assign_cells(self, batch: RowBatch) -> CellAssignment:
        """Find the cell of every row."""
        if self.predicate_index.layout is CellLayout.PER_QUERY:
            return self._assign_per_query(batch)
        cells = np.zeros(batch.row_count, np.int64)
        for finder, stride in zip(self._segment_finders, self.predicate_index.strides, strict=True):
            finder.add_segments(batch, stride, cells)
        if self.predicate_index.layout is CellLayout.GRID:
            return CellAssignment(None, cells, self.predicate_index.cell_count, None, self.spans, self.wanted_cells)
        labels, codes = select_kernels.factorize_values(cells)
        order = np.argsort(labels)
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        spans = compute_cell_spans(self.predicate_index, labels[order])
        return CellAssignment(None, rank[codes], len(labels), labels[order], spans, spans.find_covered_cells())

    def _assign_per_query(self, batch: RowBatch) -> CellAssignment:
        hits = [
            np.flatnonzero(_evaluate_truth_codes(dimension.expression, batch) == TRUE_CODE)
            for dimension in self.predicate_index.dimensions
        ]
        cells = np.repeat(np.arange(len(hits)), [len(rows) for rows in hits])
        return CellAssignment(np.concatenate(hits), cells, len(hits), None, self.spans, np.ones(len(hits), np.bool_))


def find_segments(dimension: Dimension, batch: RowBatch) -> Integers:
    """Return the segment of every row in one dimension."""
    segment_ids = np.zeros(batch.row_count, np.int64)
    _SegmentFinder(dimension).add_segments(batch, 1, segment_ids)
    return segment_ids


def group_rows_by_predicate(assignment: CellAssignment, predicates: Sequence[int]) -> dict[int, Integers]:
    """Return for each predicate the positions of its rows, ascending; the cost is proportional to the rows returned."""
    order = np.argsort(assignment.cells, kind="stable")
    cell_starts = np.searchsorted(assignment.cells[order], np.arange(assignment.cell_count + 1))
    rows = {}
    for predicate in predicates:
        row_groups = [order[cell_starts[low] : cell_starts[high]] for low, high in assignment.spans.get_spans(predicate)]
        positions = np.sort(np.concatenate(row_groups)) if row_groups else np.zeros(0, np.int64)
        rows[predicate] = positions if assignment.rows is None else np.sort(assignment.rows[positions])
    return rows


class _SegmentFinder:
    """Finds the segment of values in one dimension: by table for a small integer domain, else by binary search."""

    def __init__(self, dimension: Dimension) -> None:
        self._dimension, self._bounds = dimension, dimension.boundaries
        self._null_segment = dimension.segment_count - 1
        self.table: Integers | None = None
        self._floats = self._integers = np.zeros(0, np.int64)
        if self._bounds and not isinstance(self._bounds[0], str):
            self._floats = np.array(self._bounds, np.float64)
            integers = [int(bound) for bound in self._bounds] if isinstance(self._bounds[0], int) else []
            info = np.iinfo(np.int64)
            self._integers = np.array([max(bound, info.min) for bound in integers if bound <= info.max], np.int64)
            if integers and integers[-1] - integers[0] < _MAX_TABLE_SIZE and info.min < integers[0] and integers[-1] < info.max:
                self.table = np.searchsorted(self._integers, np.arange(integers[0] - 1, integers[-1] + 1), side="right").astype(
                    np.int64
                )

    @property
    def table_base(self) -> int:
        """The integer that the first entry of the table stands for."""
        return int(self._integers[0]) - 1

    def get_integers(self, batch: RowBatch) -> npt.NDArray[Any] | None:
        """Return the values to look up if they are integers without NULLs; None otherwise."""
        column = combine_chunks(batch.evaluate(self._dimension.expression))
        numeric = pa.types.is_integer(column.type) and not column.null_count
        return to_numbers(column) if numeric else None

    def add_segments(self, batch: RowBatch, stride: int, cells: Integers) -> None:
        """Add stride · segment to the cell of every row."""
        if self._bounds is None:
            cells += _evaluate_truth_codes(self._dimension.expression, batch) * np.int64(stride)
            return
        column = combine_chunks(batch.evaluate(self._dimension.expression))
        if pa.types.is_string(column.type):
            cells += _find_string_segments(column, self._bounds, self._null_segment) * stride
            return
        values, valid = to_numbers(column), valid_mask(column)
        if values.dtype == np.float64:
            select_kernels.add_segments_search(values, valid, self._floats, len(self._bounds), self._null_segment, stride, cells)
        elif self.table is not None:
            select_kernels.add_segments_table(values, valid, self.table_base, self.table, self._null_segment, stride, cells)
        else:
            select_kernels.add_segments_search(
                values, valid, self._integers, len(self._bounds), self._null_segment, stride, cells
            )


def _find_string_segments(column: pa.Array, bounds: Sequence[Any], null_segment: int) -> Integers:
    encoded = column.dictionary_encode(null_encoding="encode")
    table = [null_segment if value is None else bisect.bisect_right(bounds, value) for value in encoded.dictionary.to_pylist()]
    return np.array(table, np.int64)[np.asarray(encoded.indices)] if table else np.zeros(len(column), np.int64)


def _evaluate_truth_codes(expression: Expression, batch: RowBatch) -> Integers:
    column = combine_chunks(batch.evaluate(expression))
    codes = pc.multiply(column.cast(pa.int8()), pa.scalar(TRUE_CODE, pa.int8()))
    return np.asarray(pc.fill_null(codes, pa.scalar(NULL_CODE, pa.int8()))).astype(np.int64)
