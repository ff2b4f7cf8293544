"""Event-time latency of results by query: from the end of a window, or the time of a row, until the results can be read.

Nothing is measured per row. The watermarks before and after a micro-batch determine which windows closed in it; the oldest of
those windows has the greatest latency.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.model.window import SessionWindow, WindowEnds, ends_of_window
from headrace.plan.join import WindowJoinQuery
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.runtime.report import BatchReport, EventTimeMarks
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.slicing import MAX_TIME, MIN_TIME


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Percentiles of latency in seconds: of the greatest latency of each recent micro-batch in which a query emitted rows."""

    p50: float
    p95: float


def measure_latencies(
    batches: Iterable[tuple[BatchReport, float]], live: Mapping[int, LiveQuery]
) -> dict[int, LatencyPercentiles]:
    """Return the latency of each live query that emitted rows, by id.

    `batches` are consecutive micro-batches, each with its commit time in seconds since 1970.
    """
    waits: dict[int, list[float]] = defaultdict(list)
    for (before, _), (after, at) in pairwise(batches):
        for number in after.emitted_by:
            query = live.get(number)
            oldest = None if query is None else _oldest_result_time(query.plan, before, after)
            if oldest is not None:
                waits[number].append(at - oldest / 1e6)
    return {number: compute_percentiles(seconds) for number, seconds in waits.items()}


def compute_percentiles(values: Sequence[float]) -> LatencyPercentiles:
    """Return the 50th and 95th percentile of at least one value."""
    ordered = sorted(values)
    return LatencyPercentiles(*(ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.95)))


def _oldest_result_time(plan: LogicalQuery, before: BatchReport, after: BatchReport) -> int | None:
    """Return the event time of the oldest results of a micro-batch; None if it is unknown."""
    unknown = EventTimeMarks(MIN_TIME, MIN_TIME)
    begin, end = (report.marks.get(plan.streams, unknown) for report in (before, after))
    if begin.watermark == MIN_TIME or end.watermark in {MIN_TIME, MAX_TIME}:
        return None
    ends = _window_ends(plan)
    if ends is not None:
        return next(iter(ends.ends_between(begin.watermark, end.watermark)), None)
    return begin.watermark if isinstance(plan, AggregateQuery) else begin.newest  # sessions may end at any time


def _window_ends(plan: LogicalQuery) -> WindowEnds | None:
    if isinstance(plan, WindowJoinQuery):
        return plan.ends
    if isinstance(plan, AggregateQuery) and not isinstance(plan.window, SessionWindow):
        return ends_of_window(plan.window)
    return None
