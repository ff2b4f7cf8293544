"""What a run gave: everything measured, or the reason why nothing was – never both.

A run carries the full scenario that produced it, the machine, the versions, the settings and the commit. A failed run has
no place for a number: of a search it keeps the rates that were refused, not those that were reached.
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
    """A latency of all output rows of the measured part, and by the second over the whole run."""

    histogram: Histogram
    series: Series = field(default_factory=Series)

    def to_json(self) -> dict[str, Any]:
        """Return the figures in seconds (None if nothing was emitted), the histogram in microseconds, the series in seconds."""
        return {**marks(self.histogram.summary()), "histogram": self.histogram.to_json(), "series": self.series.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Latency:
        """Rebuild what `to_json` described; figures follow from the histogram."""
        series = Series(**{name: tuple(column) for name, column in value["series"].items()})
        return cls(Histogram.from_json(value["histogram"]), series)


def marks(summary: Summary | None) -> dict[str, float | None]:
    """Return the figures of a distribution under the names a result has for them."""
    if summary is None:
        return {**dict.fromkeys(MARKS), "count": 0}
    figures = summary.to_json()
    return {name: figures[{"min": "lowest", "max": "highest"}.get(name, name)] for name in MARKS}


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rows stamped and rows read until each moment, over all streams; seconds count from the start of the run."""

    second: tuple[float, ...] = ()
    produced: tuple[int, ...] = ()
    read: tuple[int, ...] = ()

    def to_json(self) -> dict[str, list[float]]:
        """Return the columns by name."""
        return {name: list(column) for name, column in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[float]]) -> Throughput:
        """Rebuild what `to_json` described."""
        produced, read = (tuple(map(int, value[name])) for name in ("produced", "read"))
        return cls(tuple(value["second"]), produced, read)


@dataclass(frozen=True, slots=True)
class Deployments:
    """All requests to add and to remove queries, and when the run began."""

    start_us: int = 0
    requests: tuple[Request, ...] = ()

    def to_json(self) -> dict[str, Any] | None:
        """Return figures and every request; None if there was none."""
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
        """Rebuild what `to_json` described; figures follow from the requests."""
        return cls() if value is None else cls(value["start_us"], tuple(Request(**request) for request in value["series"]))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a run that went to its end.

    `offered` is the mean rate of the run in rows/s, `read` what was taken of it in the measured part, `sustained` whether that
    was enough. `sustainable` is what a search found, None if there was no search.
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
        """Return the figures under the names of the document."""
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
        """Rebuild what `to_json` described."""
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
    """Why a run gave no number."""

    reason: str

    def __post_init__(self) -> None:
        """Refuse a failure without a reason."""
        if not self.reason.strip():
            raise ValueError("a failed run needs a reason")

    def to_json(self) -> dict[str, str]:
        """Return the reason, and nothing else."""
        return {"failed": self.reason}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from; `machine`, `versions` and `settings` are of that moment and that system."""

    started_at: str
    commit: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One system under one scenario, once; `repeat` counts from 1. `trials` is the search, in the order it went."""

    sut: str
    scenario: Mapping[str, Any]
    queries: int
    repeat: int
    outcome: Measured | Failed
    origin: Origin
    trials: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        """Forget what a failed run reached."""
        if isinstance(self.outcome, Failed):
            refused = tuple(Verdict(each.rate, each.sustainable, each.reason) for each in self.trials if not each.sustainable)
            object.__setattr__(self, "trials", refused)

    @property
    def measured(self) -> Measured | None:
        """The figures, if there are any."""
        return self.outcome if isinstance(self.outcome, Measured) else None

    @property
    def failed(self) -> str | None:
        """The reason, if it failed."""
        return self.outcome.reason if isinstance(self.outcome, Failed) else None

    def to_json(self) -> dict[str, Any]:
        """Return the run as the document has it."""
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
        """Rebuild what `to_json` described."""
        origin = Origin(*(value[name] for name in ("started_at", "commit", "machine", "versions", "settings")))
        outcome = Failed(value["failed"]) if "failed" in value else Measured.from_json(value)
        trials = tuple(Verdict(**verdict) for verdict in value["search"])
        return cls(value["sut"], value["scenario"], value["queries"], value["repeat"], outcome, origin, trials)
