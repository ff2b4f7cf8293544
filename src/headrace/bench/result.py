"""The result of a run: all its figures, or the reason why there are none – never both.

A run carries its full scenario, the machine, the versions, the settings and the commit. A failed run has no figures: of its
search it keeps the trials that were not sustained, not those that were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.bench.deployment import DataThroughput, DeploymentRequest, summarize_deployment
from headrace.bench.histogram import DistributionSummary, Histogram
from headrace.bench.latency import LatencySeries
from headrace.bench.resources import ResourceSample, summarize_samples
from headrace.bench.sustainable import TrialVerdict

RESULT_FORMAT = 1
FIGURE_NAMES = ("count", "mean", "min", "max", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """A latency: the distribution over all result rows of the measured part, and the series by second over the whole run."""

    histogram: Histogram
    series: LatencySeries = field(default_factory=LatencySeries)

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds (None without emissions), the histogram in microseconds, the series in seconds."""
        return {
            **name_figures(self.histogram.summarize()),
            "histogram": self.histogram.to_json(),
            "series": self.series.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LatencyFigures:
        """Read the JSON form of `to_json`; the figures follow from the histogram."""
        series = LatencySeries(**{name: tuple(column) for name, column in value["series"].items()})
        return cls(Histogram.from_json(value["histogram"]), series)


def name_figures(summary: DistributionSummary | None) -> dict[str, float | None]:
    """Return the figures of a distribution under the names of the result document."""
    if summary is None:
        return {**dict.fromkeys(FIGURE_NAMES), "count": 0}
    figures = summary.to_json()
    return {name: figures[{"min": "lowest", "max": "highest"}.get(name, name)] for name in FIGURE_NAMES}


@dataclass(frozen=True, slots=True)
class ThroughputSeries:
    """Cumulative rows produced and read over all streams; seconds count from the start of the run."""

    second: tuple[float, ...] = ()
    produced: tuple[int, ...] = ()
    read: tuple[int, ...] = ()

    def to_json(self) -> dict[str, list[float]]:
        """Return the columns by name."""
        return {name: list(column) for name, column in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[float]]) -> ThroughputSeries:
        """Read the JSON form of `to_json`."""
        produced, read = (tuple(map(int, value[name])) for name in ("produced", "read"))
        return cls(tuple(value["second"]), produced, read)


@dataclass(frozen=True, slots=True)
class DeploymentLog:
    """All requests to add and to remove queries, and the start time of the run."""

    start_us: int = 0
    requests: tuple[DeploymentRequest, ...] = ()

    def to_json(self) -> dict[str, Any] | None:
        """Return the figures and every request; None without requests."""
        if not self.requests:
            return None
        figures = summarize_deployment(self.requests)
        return {
            **name_figures(figures.live_s),
            "acknowledged": name_figures(figures.acknowledged_s),
            "requests": figures.requests,
            "unanswered": figures.unanswered,
            "start_us": self.start_us,
            "series": [asdict(request) for request in self.requests],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> DeploymentLog:
        """Read the JSON form of `to_json`; the figures follow from the requests."""
        return (
            cls() if value is None else cls(value["start_us"], tuple(DeploymentRequest(**request) for request in value["series"]))
        )


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The figures of a completed run.

    `offered_rate` is the mean over the run in rows/s, `read_rate` the rate read in the measured part, `sustained` whether the
    system kept up. `sustainable_rate` is the result of the search, None without a search.
    """

    offered_rate: float
    read_rate: float
    sustained: bool
    sustainable_rate: float | None
    event_time_latency: LatencyFigures
    processing_time_latency: LatencyFigures
    throughput: ThroughputSeries = ThroughputSeries()
    resources: tuple[ResourceSample, ...] = ()
    deployments: DeploymentLog = DeploymentLog()
    data_throughput: DataThroughput | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the names of the result document."""
        data = self.data_throughput
        return {
            "offered_rows_per_second": self.offered_rate,
            "read_rows_per_second": self.read_rate,
            "sustained": self.sustained,
            "sustainable_rows_per_second": self.sustainable_rate,
            "event_time_latency_s": self.event_time_latency.to_json(),
            "processing_time_latency_s": self.processing_time_latency.to_json(),
            "deployment_latency_s": self.deployments.to_json(),
            "query_throughput": summarize_deployment(self.deployments.requests).requests_per_second,
            "slowest_data_throughput": data and data.slowest,
            "slowest_query": data and data.slowest_query,
            "overall_data_throughput": data and data.overall,
            "throughput": self.throughput.to_json(),
            "resources": {
                "summary": summarize_samples(self.resources),
                "series": [sample.to_json() for sample in self.resources],
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MeasuredRun:
        """Read the JSON form of `to_json`."""
        slowest = value["slowest_data_throughput"]
        return cls(
            value["offered_rows_per_second"],
            value["read_rows_per_second"],
            value["sustained"],
            value["sustainable_rows_per_second"],
            LatencyFigures.from_json(value["event_time_latency_s"]),
            LatencyFigures.from_json(value["processing_time_latency_s"]),
            ThroughputSeries.from_json(value["throughput"]),
            tuple(ResourceSample(**sample) for sample in value["resources"]["series"]),
            DeploymentLog.from_json(value["deployment_latency_s"]),
            None if slowest is None else DataThroughput(slowest, value["slowest_query"], value["overall_data_throughput"]),
        )


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The reason why a run has no figures."""

    reason: str

    def __post_init__(self) -> None:
        """Reject an empty reason."""
        if not self.reason.strip():
            raise ValueError("a failed run needs a reason")

    def to_json(self) -> dict[str, str]:
        """Return the reason alone."""
        return {"failed": self.reason}


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The origin of a run: start time, commit, and the machine, versions and settings of the system at that time."""

    started_at: str
    commit: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of one system under one scenario; `repeat` counts from 1. `trials` are the verdicts of the search, in order."""

    sut: str
    scenario: Mapping[str, Any]
    query_count: int
    repeat: int
    outcome: MeasuredRun | FailedRun
    origin: RunOrigin
    trials: tuple[TrialVerdict, ...] = ()

    def __post_init__(self) -> None:
        """Drop the sustained trials and the figures of a failed run."""
        if isinstance(self.outcome, FailedRun):
            refused = tuple(
                TrialVerdict(verdict.rate, verdict.sustainable, verdict.reason)
                for verdict in self.trials
                if not verdict.sustainable
            )
            object.__setattr__(self, "trials", refused)

    @property
    def figures(self) -> MeasuredRun | None:
        """The figures, or None for a failed run."""
        return self.outcome if isinstance(self.outcome, MeasuredRun) else None

    @property
    def failure(self) -> str | None:
        """The reason of a failed run, or None."""
        return self.outcome.reason if isinstance(self.outcome, FailedRun) else None

    def to_json(self) -> dict[str, Any]:
        """Return the run in the form of the result document."""
        return {
            "sut": self.sut,
            "scenario": dict(self.scenario),
            "queries": self.query_count,
            "repeat": self.repeat,
            **self.outcome.to_json(),
            "search": [verdict.to_json() for verdict in self.trials],
            **asdict(self.origin),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BenchRun:
        """Read the JSON form of `to_json`."""
        origin = RunOrigin(*(value[name] for name in ("started_at", "commit", "machine", "versions", "settings")))
        outcome = FailedRun(value["failed"]) if "failed" in value else MeasuredRun.from_json(value)
        trials = tuple(TrialVerdict(**verdict) for verdict in value["search"])
        return cls(value["sut"], value["scenario"], value["queries"], value["repeat"], outcome, origin, trials)
