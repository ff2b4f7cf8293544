"""The rows of the leaves in one round of window joins: from join buffers, or as the level before forwarded them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.execution.bucketing import BufferedRows
from headrace.execution.joined_rows import ChunkedColumn, JoinedRows, JoinTable, select_all_rows
from headrace.execution.joiner import Joiner, leaf_of
from headrace.execution.onward import ForwardedRows
from headrace.kernels import compiled_join
from headrace.kernels.sets import QueryBitmaps, make_bitmap, resize_bitmaps
from headrace.model.expression import Expression
from headrace.plan.join import present_column, split_joined_name
from headrace.sharing.joining import WindowJoinLeaf


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Buffered rows of this partition, with their stream, keys, slot and columns."""

    stream: str
    keys: tuple[Expression, ...]
    slot: int
    columns: tuple[str, ...]
    buffered_rows: BufferedRows


class BufferedLeaves:
    """Collects rows from join buffers: those that lie in the window of at least one query."""

    def __init__(self, slices: Sequence[BufferSlice], joiners: Sequence[Joiner], ends: Mapping[int, int], width: int) -> None:
        """Take buffers and joiners; `ends` maps the bit of each query to the end of its window."""
        self._slices, self._joiners, self._window_ends, self._set_width = slices, joiners, ends, width
        self._rows_by_leaf: dict[WindowJoinLeaf, JoinedRows | None] = {}

    def get_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        """Return the rows of a leaf with their query-sets; None if there are none."""
        if leaf not in self._rows_by_leaf:
            self._rows_by_leaf[leaf] = self._collect_rows(leaf)
        return self._rows_by_leaf[leaf]

    def _collect_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        users = [
            (joiner.bit, self._window_ends[joiner.bit], joiner.plan.inputs[leaf.input_index].window.size)
            for joiner in self._find_users(leaf)
        ]
        input_columns = (
            (*split_joined_name(column.name), column.type)
            for joiner in self._find_users(leaf)
            for column in joiner.plan.joined_columns
        )
        types = {name: kind for input_number, name, kind in input_columns if input_number == leaf.input_index and name}
        names = tuple(sorted(types))
        columns: list[list[pa.Array]] = [[] for _ in names]
        sets: list[QueryBitmaps] = []
        for buffer_slice in self._slices:
            if (buffer_slice.stream, buffer_slice.keys, buffer_slice.slot) != (leaf.stream, leaf.keys, leaf.slot):
                continue
            start = buffer_slice.buffered_rows.slice_start
            mask = make_bitmap([bit for bit, end, size in users if end - size <= start < end], self._set_width)
            if not mask.any():
                continue
            query_sets = resize_bitmaps(buffer_slice.buffered_rows.sets, self._set_width) & mask
            rows = compiled_join.find_live_rows(query_sets)
            if rows.size:
                is_full = rows.size == buffer_slice.buffered_rows.row_count
                sets.append(query_sets if is_full else query_sets[rows])
                row_ids = None if is_full else pa.array(rows)
                for arrays, name in zip(columns, names, strict=True):
                    # A later epoch added the column, for queries without a window over this slice.
                    if name not in buffer_slice.columns:
                        arrays.append(pa.nulls(rows.size, types[name]))
                        continue
                    column = buffer_slice.buffered_rows.columns[buffer_slice.columns.index(name)]
                    arrays.append(column if row_ids is None else column.take(row_ids))
        if not sets:
            return None
        all_sets = np.concatenate(sets) if len(sets) > 1 else sets[0]
        table = {f"{leaf.input_index}.{name}": ChunkedColumn(arrays) for name, arrays in zip(names, columns, strict=True)}
        table[present_column(leaf.input_index).name] = ChunkedColumn([pa.repeat(pa.scalar(True), len(all_sets))])
        return select_all_rows(JoinTable(table, len(all_sets)), all_sets)

    def _find_users(self, leaf: WindowJoinLeaf) -> list[Joiner]:
        return [joiner for joiner in self._joiners if leaf in map(leaf_of, joiner.path)]


class ForwardedLeaves:
    """Holds the rows that the level before forwarded."""

    def __init__(self, forwarded: Sequence[ForwardedRows], joiners: Iterable[Joiner], width: int) -> None:
        """Take the rows of one round, and the joiners that have a window in it."""
        by_query = {joiner.live.id: joiner for joiner in joiners}
        self._rows_by_leaf: dict[WindowJoinLeaf, JoinedRows] = {}
        for rows in forwarded:
            leaf = by_query[rows.query_id].chain.steps[rows.depth].leaf
            self._rows_by_leaf[leaf] = select_all_rows(rows.table, resize_bitmaps(rows.sets, width))

    def get_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        """Return the rows of a leaf; None if there are none."""
        return self._rows_by_leaf.get(leaf)
