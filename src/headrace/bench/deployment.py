"""Deployment figures: how fast queries become live, how many changes a second, and the data throughput of live queries.

Times are microseconds since 1970. A request without an answer has no latency and counts as unanswered; read that number before
the latencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.histogram import DistributionSummary, Histogram


@dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """A request to add or remove a query; `live_at_us` is the first batch that runs with the change, None if there was none."""

    query: str
    requested_at_us: int
    live_at_us: int | None = None
    acknowledged_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class DeploymentFigures:
    """The figures of all requests; a latency is None if no request got that far."""

    requests: int
    unanswered: int
    live_s: DistributionSummary | None
    acknowledged_s: DistributionSummary | None
    requests_per_second: float | None


@dataclass(frozen=True, slots=True)
class DataThroughput:
    """Rows/s over the live queries: the slowest rate, its query, and the sum of all rates."""

    slowest: float
    slowest_query: str
    overall: float


def summarize_deployment(requests: Sequence[DeploymentRequest]) -> DeploymentFigures:
    """Summarize requests to add and to remove queries."""
    live_latencies = [r.live_at_us - r.requested_at_us for r in requests if r.live_at_us is not None]
    acknowledge_latencies = [r.acknowledged_at_us - r.requested_at_us for r in requests if r.acknowledged_at_us is not None]
    return DeploymentFigures(
        len(requests),
        len(requests) - len(acknowledge_latencies),
        Histogram.from_values(live_latencies).summarize(),
        Histogram.from_values(acknowledge_latencies).summarize(),
        compute_query_throughput(requests),
    )


def compute_query_throughput(requests: Sequence[DeploymentRequest]) -> float | None:
    """Return acknowledged requests per second, from the first request to the last acknowledgement; None without any."""
    acknowledged = [request.acknowledged_at_us for request in requests if request.acknowledged_at_us is not None]
    span = max(acknowledged) - min(request.requested_at_us for request in requests) if acknowledged else 0
    return len(acknowledged) * 1e6 / span if span > 0 else None


def compute_data_throughput(rates: Mapping[str, float]) -> DataThroughput | None:
    """Return the slowest and the overall rate of the live queries, given rows/s by query; None without queries."""
    if not rates:
        return None
    slowest = min(rates, key=lambda query: rates[query])
    return DataThroughput(rates[slowest], slowest, sum(rates.values()))
