"""How long results of each query take, in event time: from the end of a window, or the time of a row, until they can be read.

Nothing is measured row by row. How far event time had come before and after a micro-batch says which windows closed in it, and
the oldest of them waited longest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.model.window import Ends, SessionGap, ends_of
from headrace.plan.join import JoinQuery
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.runtime.report import BatchReport, Marks
from headrace.sharing.shared_plan import LiveQuery
from headrace.sharing.slicing import FOREVER, NEVER


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds, of the micro-batches of late in which a query emitted something; of each the longest."""

    p50: float
    p95: float


def latencies(batches: Iterable[tuple[BatchReport, float]], live: Mapping[int, LiveQuery]) -> dict[int, Latency]:
    """Return the latency of each live query that emitted something in micro-batches one after the other, by id.

    With each goes the time, in seconds since 1970, when it was committed.
    """
    found: dict[int, list[float]] = defaultdict(list)
    for (before, _), (after, at) in pairwise(batches):
        for number in after.emitted_by:
            query = live.get(number)
            oldest = None if query is None else _oldest(query.plan, before, after)
            if oldest is not None:
                found[number].append(at - oldest / 1e6)
    return {number: spread(waited) for number, waited in found.items()}


def spread(values: Sequence[float]) -> Latency:
    """Return the median and what 95 of 100 do not exceed; there must be values."""
    ordered = sorted(values)
    return Latency(*(ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.95)))


def _oldest(plan: LogicalQuery, before: BatchReport, after: BatchReport) -> int | None:
    """Return the event time of the oldest results of a micro-batch; None where that cannot be told."""
    nothing = Marks(NEVER, NEVER)
    begin, end = (one.marks.get(plan.streams, nothing) for one in (before, after))
    if begin.watermark == NEVER or end.watermark in {NEVER, FOREVER}:
        return None
    ends = _ends(plan)
    if ends is not None:
        return next(iter(ends.between(begin.watermark, end.watermark)), None)
    return begin.watermark if isinstance(plan, AggregateQuery) else begin.newest  # sessions end anywhere


def _ends(plan: LogicalQuery) -> Ends | None:
    if isinstance(plan, JoinQuery):
        return plan.ends
    if isinstance(plan, AggregateQuery) and not isinstance(plan.window, SessionGap):
        return ends_of(plan.window)
    return None
