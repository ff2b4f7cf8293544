"""Buffer the rows of a stream that open windows can still need, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class _RowBlock:
    earliest: int
    latest: int
    rows: pa.Table


class OpenWindowRows:
    """Blocks of rows with their event-time ranges; only blocks on a window boundary are filtered.

    `nbytes` is the memory of all rows.
    """

    def __init__(self, schema: pa.Schema, time: str) -> None:
        """Create an empty buffer; `time` is the event-time column."""
        self._schema, self._time_column = schema, time
        self._blocks: list[_RowBlock] = []
        self.nbytes = 0

    def add(self, rows: pa.Table) -> int:
        """Add rows (at least one); return their latest event time."""
        bounds = pc.min_max(self._event_times(rows)).as_py()
        self._blocks.append(_RowBlock(bounds["min"], bounds["max"], rows))
        self.nbytes += rows.nbytes
        latest: int = bounds["max"]
        return latest

    def select_between(self, start: int, end: int) -> pa.Table:
        """Return the rows with event times in [start, end)."""
        parts = [
            self._select_from_block(block, start, end) for block in self._blocks if block.latest >= start and block.earliest < end
        ]
        return pa.concat_tables([self._schema.empty_table(), *parts])

    def _select_from_block(self, block: _RowBlock, start: int, end: int) -> pa.Table:
        if start <= block.earliest and block.latest < end:
            return block.rows
        times = self._event_times(block.rows)
        return block.rows.filter(pc.and_(pc.greater_equal(times, start), pc.less(times, end)))

    def evict_before(self, before: int) -> None:
        """Evict the blocks whose rows are all older than `before`."""
        self.nbytes -= sum(block.rows.nbytes for block in self._blocks if block.latest < before)
        self._blocks = [block for block in self._blocks if block.latest >= before]

    def _event_times(self, rows: pa.Table) -> pa.ChunkedArray:
        return rows.column(self._time_column).cast(pa.int64())
