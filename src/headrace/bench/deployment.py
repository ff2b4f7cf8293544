"""Queries that come and go: how long until they are live, how many a second, what each and all of them get.

Times are microseconds since 1970. A request that was never answered has no latency; it is counted as unanswered, and
whoever reads the figures must look at that number first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.histogram import Histogram, Summary


@dataclass(frozen=True, slots=True)
class Request:
    """A query asked for or taken back; `live_at_us` is the first batch that runs under the change, None if none did."""

    query: str
    requested_at_us: int
    live_at_us: int | None = None
    acknowledged_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The figures of all requests; latencies are None when no request got so far."""

    requests: int
    unanswered: int
    live_s: Summary | None
    acknowledged_s: Summary | None
    requests_per_second: float | None


@dataclass(frozen=True, slots=True)
class DataThroughput:
    """Rows a second over the queries that are live: the slowest, which one it is, and the sum of all."""

    slowest: float
    slowest_query: str
    overall: float


def deployment(requests: Sequence[Request]) -> Deployment:
    """Return the figures of requests to add and to remove."""
    live = [r.live_at_us - r.requested_at_us for r in requests if r.live_at_us is not None]
    done = [r.acknowledged_at_us - r.requested_at_us for r in requests if r.acknowledged_at_us is not None]
    return Deployment(
        len(requests),
        len(requests) - len(done),
        Histogram.of(live).summary(),
        Histogram.of(done).summary(),
        query_throughput(requests),
    )


def query_throughput(requests: Sequence[Request]) -> float | None:
    """Return requests acknowledged a second, from the first request to the last acknowledgement; None if there is none."""
    done = [request.acknowledged_at_us for request in requests if request.acknowledged_at_us is not None]
    span = max(done) - min(request.requested_at_us for request in requests) if done else 0
    return len(done) * 1e6 / span if span > 0 else None


def data_throughput(rates: Mapping[str, float]) -> DataThroughput | None:
    """Return slowest and overall of the rows a second that each live query gets; None without queries."""
    if not rates:
        return None
    slowest = min(rates, key=lambda query: rates[query])
    return DataThroughput(rates[slowest], slowest, sum(rates.values()))
