"""Admission control: reject a query that would push the latency of all results over the configured bound.

The current length of micro-batches is measured; the growth of the work is estimated by the planner's cost model. The fixed
cost of a micro-batch, taken as the shortest recent batch, does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.service.insight import estimate_growth
from headrace.service.refusals import HttpRequestError
from headrace.session import CommittedBatch, Session

_RECENT_BATCHES = 30  # batches


@dataclass(frozen=True, slots=True)
class LatencyForecast:
    """How long micro-batches take now, and would take with one more query; `growth` is the factor of the work of all."""

    current_s: float
    expected_s: float
    growth: float
    standalone: float


def forecast_latency(session: Session, sql: str) -> LatencyForecast | None:
    """Return the expected length of micro-batches with a query; None while there are too few measurements."""
    batches = [batch for batch in session.done() if batch.report.rows][-_RECENT_BATCHES:]
    if len(batches) < 3:
        return None
    growth_of_work = estimate_growth(session, sql)
    if growth_of_work.before <= 0:
        return None
    floor, now = min(batch.seconds for batch in batches), _p95_seconds(batches)
    growth = growth_of_work.after / growth_of_work.before
    return LatencyForecast(now, floor + (now - floor) * growth, growth, growth_of_work.standalone)


def check_latency_bound(session: Session, sql: str, bound_s: float) -> None:
    """Reject a query that would push the length of micro-batches over a bound."""
    expected = forecast_latency(session, sql)
    if expected is not None and expected.expected_s > bound_s and expected.growth > 1:
        raise HttpRequestError(
            429,
            f"with this query the latency of results would be {expected.expected_s:.2f} s, above the bound of {bound_s:.2f} s",
            detail=f"the latency is {expected.current_s:.2f} s now; the work of all queries would grow by {expected.growth - 1:.1%}",
            hint="remove a query, select fewer rows, group by fewer keys, or start the service with a higher --latency",
            retry_s=60,
        )


def _p95_seconds(batches: Sequence[CommittedBatch]) -> float:
    lengths = sorted(batch.seconds for batch in batches)
    return lengths[int(0.95 * (len(lengths) - 1))]
