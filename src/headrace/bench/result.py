"""The result of a run: all its figures, or the reason why there are none – never both.

A run carries its full scenario, the machine, the versions, the settings and the commit. A failed run has no figures: of its
search it keeps the trials that were not sustained, not those that were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.bench.deployment import DataThroughput, Request, deployment
from headrace.bench.histogram import Histogram, Summary
from headrace.bench.latency import Series
from headrace.bench.resources import Sample, summarise
from headrace.bench.sustainable import Verdict

FORMAT = 1
MARKS = ("count", "mean", "min", "max", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency: the distribution over all result rows of the measured part, and the series by second over the whole run."""

    histogram: Histogram
    series: Series = field(default_factory=Series)

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds (None without emissions), the histogram in microseconds, the series in seconds."""
        return {**marks(self.histogram.summary()), "histogram": self.histogram.to_json(), "series": self.series.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Latency:
        """Read the JSON form of `to_json`; the figures follow from the histogram."""
        series = Series(**{name: tuple(column) for name, column in value["series"].items()})
        return cls(Histogram.from_json(value["histogram"]), series)


def marks(summary: Summary | None) -> dict[str, float | None]:
    """Return the figures of a distribution under the names of the result document."""
    if summary is None:
        return {**dict.fromkeys(MARKS), "count": 0}
    figures = summary.to_json()
    return {name: figures[{"min": "lowest", "max": "highest"}.get(name, name)] for name in MARKS}


@dataclass(frozen=True, slots=True)
class Throughput:
    """Cumulative rows produced and read over all streams; seconds count from the start of the run."""

    second: tuple[float, ...] = ()
    produced: tuple[int, ...] = ()
    read: tuple[int, ...] = ()

    def to_json(self) -> dict[str, list[float]]:
        """Return the columns by name."""
        return {name: list(column) for name, column in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[float]]) -> Throughput:
        """Read the JSON form of `to_json`."""
        produced, read = (tuple(map(int, value[name])) for name in ("produced", "read"))
        return cls(tuple(value["second"]), produced, read)


@dataclass(frozen=True, slots=True)
class Deployments:
    """All requests to add and to remove queries, and the start time of the run."""

    start_us: int = 0
    requests: tuple[Request, ...] = ()

    def to_json(self) -> dict[str, Any] | None:
        """Return the figures and every request; None without requests."""
        if not self.requests:
            return None
        figures = deployment(self.requests)
        return {
            **marks(figures.live_s),
            "acknowledged": marks(figures.acknowledged_s),
            "requests": figures.requests,
            "unanswered": figures.unanswered,
            "start_us": self.start_us,
            "series": [asdict(request) for request in self.requests],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Deployments:
        """Read the JSON form of `to_json`; the figures follow from the requests."""
        return cls() if value is None else cls(value["start_us"], tuple(Request(**request) for request in value["series"]))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a completed run.

    `offered_rate` is the mean over the run in rows/s, `read_rate` the rate read in the measured part, `sustained` whether the
    system kept up. `sustainable_rate` is the result of the search, None without a search.
    """

    offered: float
    read: float
    sustained: bool
    sustainable: float | None
    event_time: Latency
    processing_time: Latency
    throughput: Throughput = Throughput()
    resources: tuple[Sample, ...] = ()
    deployments: Deployments = Deployments()
    data_throughput: DataThroughput | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the names of the result document."""
        data = self.data_throughput
        return {
            "offered_rows_per_second": self.offered,
            "read_rows_per_second": self.read,
            "sustained": self.sustained,
            "sustainable_rows_per_second": self.sustainable,
            "event_time_latency_s": self.event_time.to_json(),
            "processing_time_latency_s": self.processing_time.to_json(),
            "deployment_latency_s": self.deployments.to_json(),
            "query_throughput": deployment(self.deployments.requests).requests_per_second,
            "slowest_data_throughput": data and data.slowest,
            "slowest_query": data and data.slowest_query,
            "overall_data_throughput": data and data.overall,
            "throughput": self.throughput.to_json(),
            "resources": {"summary": summarise(self.resources), "series": [sample.to_json() for sample in self.resources]},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Measured:
        """Read the JSON form of `to_json`."""
        slowest = value["slowest_data_throughput"]
        return cls(
            value["offered_rows_per_second"],
            value["read_rows_per_second"],
            value["sustained"],
            value["sustainable_rows_per_second"],
            Latency.from_json(value["event_time_latency_s"]),
            Latency.from_json(value["processing_time_latency_s"]),
            Throughput.from_json(value["throughput"]),
            tuple(Sample(**sample) for sample in value["resources"]["series"]),
            Deployments.from_json(value["deployment_latency_s"]),
            None if slowest is None else DataThroughput(slowest, value["slowest_query"], value["overall_data_throughput"]),
        )


@dataclass(frozen=True, slots=True)
class Failed:
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
class Origin:
    """The origin of a run: start time, commit, and the machine, versions and settings of the system at that time."""

    started_at: str
    commit: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one system under one scenario; `repeat` counts from 1. `trials` are the verdicts of the search, in order."""

    sut: str
    scenario: Mapping[str, Any]
    queries: int
    repeat: int
    outcome: Measured | Failed
    origin: Origin
    trials: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        """Drop the sustained trials and the figures of a failed run."""
        if isinstance(self.outcome, Failed):
            refused = tuple(
                Verdict(verdict.rate, verdict.sustainable, verdict.reason) for verdict in self.trials if not verdict.sustainable
            )
            object.__setattr__(self, "trials", refused)

    @property
    def measured(self) -> Measured | None:
        """The figures, or None for a failed run."""
        return self.outcome if isinstance(self.outcome, Measured) else None

    @property
    def failed(self) -> str | None:
        """The reason of a failed run, or None."""
        return self.outcome.reason if isinstance(self.outcome, Failed) else None

    def to_json(self) -> dict[str, Any]:
        """Return the run in the form of the result document."""
        return {
            "sut": self.sut,
            "scenario": dict(self.scenario),
            "queries": self.queries,
            "repeat": self.repeat,
            **self.outcome.to_json(),
            "search": [verdict.to_json() for verdict in self.trials],
            **asdict(self.origin),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Read the JSON form of `to_json`."""
        origin = Origin(*(value[name] for name in ("started_at", "commit", "machine", "versions", "settings")))
        outcome = Failed(value["failed"]) if "failed" in value else Measured.from_json(value)
        trials = tuple(Verdict(**verdict) for verdict in value["search"])
        return cls(value["sut"], value["scenario"], value["queries"], value["repeat"], outcome, origin, trials)
