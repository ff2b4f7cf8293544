"""Latency of results and of query deployments, measured where results arrive.

Event-time latency is emission − event time, processing-time latency is emission − ingestion time. The event time of a window's
result is that of the newest contributing row, its ingestion time the latest pull of a contributing row. Queueing time counts
for event-time latency only. The time a window stays open counts for neither.

Deployment figures tell how fast queries become live, and how many changes a second the system takes. Times are microseconds
since 1970. A request without an answer has no latency and counts as unanswered; read that
number before the latencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from headrace.bench.measure.collector import UNKNOWN_TIME, Emissions
from headrace.bench.measure.statistics import DistributionSummary, Histogram, Integers


class DriverTimestamps(Protocol):
    """Event and ingestion times of rows, from the log of the driver. A negative answer means that there is none."""

    def event_time_before(self, stream: str, window_end_us: Integers, /) -> Integers:
        """Return the last event time stamped before each window end."""

    def pulled_at(self, stream: str, event_time_us: Integers, /) -> Integers:
        """Return when the slowest reader pulled the row of each event time."""


class MeasuredQuery(Protocol):
    """A query: its streams and its window size."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams it reads."""

    @property
    def size_us(self) -> int:
        """The length of its windows."""


@dataclass(frozen=True, slots=True)
class MeasurementPeriod:
    """The run and its measured part; a window counts if all of it lies within the measured part."""

    start_us: int
    measured_us: int
    stop_us: int

    def __post_init__(self) -> None:
        """Reject times out of order."""
        if not self.start_us <= self.measured_us <= self.stop_us:
            raise ValueError(f"{self} is not in order")


@dataclass(frozen=True, slots=True)
class LatencySeries:
    """Latency by second of emission, from the start of the run; only seconds with emissions."""

    second: tuple[int, ...] = ()
    p50: tuple[float, ...] = ()
    p95: tuple[float, ...] = ()
    highest: tuple[float, ...] = ()
    count: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the columns by name; latencies are in seconds."""
        return {name: list(column) for name, column in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Latencies:
    """Both latencies of one run.

    Histograms cover the measured part, series the whole run with its warm-up. `excluded` counts rows outside the measured part,
    `unknown` rows whose query or event time is unknown. Rows of which only the ingestion time is unknown are missing from
    processing-time latency alone.
    """

    event_time: Histogram
    processing_time: Histogram
    event_time_series: LatencySeries
    processing_time_series: LatencySeries
    excluded: int
    unknown: int


def measure_latencies(
    emissions: Emissions, queries: Mapping[str, MeasuredQuery], stamps: DriverTimestamps, period: MeasurementPeriod
) -> Latencies:
    """Compute the latencies of all emissions, weighted by their rows."""
    event_time, ingestion = find_contributor_times(emissions, queries, stamps)
    has_event_time, has_ingestion = event_time >= 0, (event_time >= 0) & (ingestion >= 0)
    size = np.array([queries[name].size_us if name in queries else 0 for name in emissions.query_names], np.int64)[
        emissions.query_code
    ]
    start = np.minimum(emissions.window_end_us - size, event_time)
    inside = (start >= period.measured_us) & (emissions.window_end_us <= period.stop_us)
    event_latency, processing_latency = emissions.arrival_us - event_time, emissions.arrival_us - ingestion
    second, rows = (emissions.arrival_us - period.start_us) // 1_000_000, emissions.rows
    return Latencies(
        Histogram.from_values(event_latency[has_event_time & inside], rows[has_event_time & inside]),
        Histogram.from_values(processing_latency[has_ingestion & inside], rows[has_ingestion & inside]),
        build_series(second[has_event_time], event_latency[has_event_time], rows[has_event_time]),
        build_series(second[has_ingestion], processing_latency[has_ingestion], rows[has_ingestion]),
        int(rows[has_event_time & ~inside].sum()),
        int(rows[~has_event_time].sum()),
    )


def find_contributor_times(
    emissions: Emissions, queries: Mapping[str, MeasuredQuery], stamps: DriverTimestamps
) -> tuple[Integers, Integers]:
    """Return the newest event time and the latest ingestion of the contributors of each emission; negative if unknown."""
    event_time = np.full(len(emissions), UNKNOWN_TIME, np.int64)
    ingestion = np.full(len(emissions), UNKNOWN_TIME, np.int64)
    streams_of_query = [queries[name].streams if name in queries else () for name in emissions.query_names]
    for stream in sorted({stream for streams in streams_of_query for stream in streams}):
        reads = np.array([stream in streams for streams in streams_of_query], np.bool_)[emissions.query_code]
        given_time = emissions.event_time_us[reads]
        last_stamped = stamps.event_time_before(stream, emissions.window_end_us[reads])
        newest = np.where(given_time == UNKNOWN_TIME, last_stamped, given_time)
        event_time[reads] = np.maximum(event_time[reads], newest)
        ingestion[reads] = np.maximum(ingestion[reads], np.where(newest < 0, UNKNOWN_TIME, stamps.pulled_at(stream, newest)))
    return event_time, ingestion


def build_series(second: Integers, latency_us: Integers, rows: Integers) -> LatencySeries:
    """Compute percentiles by second, each latency weighted by its rows."""
    second, latency_us, rows = second[rows > 0], np.maximum(latency_us[rows > 0], 0), rows[rows > 0]
    if not len(second):
        return LatencySeries()
    order = np.lexsort((latency_us, second))
    seconds, starts = np.unique(second[order], return_index=True)
    latency = latency_us[order] / 1e6
    cumulative_rows = np.cumsum(rows[order])
    stops = np.append(starts[1:], len(order))
    before = np.concatenate((np.zeros(1, np.int64), cumulative_rows[stops[:-1] - 1]))
    count = cumulative_rows[stops - 1] - before

    def percentile(share: float) -> tuple[float, ...]:
        rank = before + np.maximum(1, np.ceil(share * count).astype(np.int64))
        return tuple(latency[np.searchsorted(cumulative_rows, rank)].tolist())

    return LatencySeries(
        tuple(seconds.tolist()), percentile(0.5), percentile(0.95), tuple(latency[stops - 1].tolist()), tuple(count.tolist())
    )


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
