"""Late rows, counted for each query: rows that it selects and whose windows have all closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from headrace.engine.operators.query_sets import QuerySetAssigner, mask_bit
from headrace.engine.operators.selection import CellAssignment
from headrace.engine.row_batch import RowBatch
from headrace.model.window import HopWindow, SessionWindow
from headrace.planner.shared_plan import JoinBuffer, SharedAggregation, Subscriber


def count_late_in_aggregation(
    operator: SharedAggregation, assignment: CellAssignment, batch: RowBatch, watermarks: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield (query, late rows) for subscribers with late rows, over rows behind the stream's watermark."""
    times = batch.times if assignment.rows is None else batch.times[assignment.rows]
    late_masks: dict[tuple[HopWindow, int, int], npt.NDArray[np.bool_]] = {}
    cell_matches = np.zeros(assignment.cell_count, np.bool_)
    for subscriber, predicate in zip(operator.subscribers, operator.predicate_numbers, strict=True):
        assert isinstance(subscriber.window, HopWindow)
        window_key = (subscriber.window, subscriber.since, watermarks[subscriber.query_id])
        if window_key not in late_masks:
            late_masks[window_key] = _mask_late_rows(times, *window_key)
        cell_matches[:] = False
        for low, high in assignment.spans.get_spans(predicate):
            cell_matches[low:high] = True
        late_rows = int((late_masks[window_key] & cell_matches[assignment.cells]).sum())
        if late_rows:
            yield subscriber.query_id, late_rows


def mask_open_rows(subscriber: Subscriber, times: npt.NDArray[np.int64], watermark: int) -> npt.NDArray[np.bool_]:
    """Return the mask of times that count for a subscriber: not before it was added, and in a window that is still open."""
    window = subscriber.window
    if isinstance(window, HopWindow):
        starts = times // window.slide * window.slide
        return (starts >= subscriber.since) & (times < starts + window.size) & (starts + window.size > watermark)
    is_open = times + window.gap > watermark if isinstance(window, SessionWindow) else True
    return (times >= subscriber.since) & is_open


def _mask_late_rows(times: npt.NDArray[np.int64], window: HopWindow, since: int, watermark: int) -> npt.NDArray[np.bool_]:
    """Return the mask of times that lie in a window starting at `since` or later, the last of which has closed."""
    starts = times // window.slide * window.slide
    return (starts >= since) & (times < starts + window.size) & (starts + window.size <= watermark)


def count_late_in_buffer(
    operator: JoinBuffer, set_assigner: QuerySetAssigner, batch: RowBatch, watermarks: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Yield (query, late rows) for subscribers with late rows, over rows behind the stream's watermark."""
    query_sets = set_assigner.assign_sets(batch)
    for subscriber, bit in zip(operator.subscribers, operator.query_bits, strict=True):
        if subscriber.is_counted_elsewhere:
            continue
        assert isinstance(subscriber.window, HopWindow)
        assert subscriber.window_ends is not None
        offset, step = subscriber.window_ends.offset, subscriber.window_ends.step
        last_end = (batch.times + subscriber.window.size - offset) // step * step + offset
        in_window = (last_end > batch.times) & (last_end - subscriber.longest_window >= subscriber.since)
        late_rows = int((mask_bit(query_sets, bit) & in_window & (last_end <= watermarks[subscriber.query_id])).sum())
        if late_rows:
            yield subscriber.query_id, late_rows
