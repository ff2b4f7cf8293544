"""The result of a run and the result document.

A run has all its figures, or the reason why there are none – never both. It carries its full scenario, the machine, the versions,
the settings and the commit. A failed run has no figures: of its search it keeps the trials that were not sustained, not those
that were.

The document is `DIR/result.json`: {"format": 1, "runs": […]}, one line per run. It is replaced atomically after every run, so
that a crash of the runner loses no completed run. `docs/benchmark.md` describes the fields.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from headrace.bench.measure.data_throughput import DataThroughput
from headrace.bench.measure.latency import DeploymentRequest, LatencySeries, summarize_deployment
from headrace.bench.measure.resources import ResourceSample, summarize_samples
from headrace.bench.measure.statistics import DistributionSummary, Histogram
from headrace.bench.measure.sustainable import TrialVerdict
from headrace.errors import HeadraceError
from headrace.storage.posix import replace_file

RESULT_FORMAT = 2
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
    system kept up. `sustainable_rate` is the result of the search, None without a search; `sustainable_request_rate` that of a
    search for requests to add and remove queries, in requests/s.
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
    sustainable_request_rate: float | None = None
    component_seconds: Mapping[str, float] = field(default_factory=dict)

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
            "sustainable_requests_per_second": self.sustainable_request_rate,
            "slowest_data_throughput": data and data.slowest,
            "slowest_query": data and data.slowest_query,
            "overall_data_throughput": data and data.overall,
            "data_throughput_by_query": data and {**data.rates, **dict.fromkeys(data.silent)},
            "component_seconds": dict(self.component_seconds),
            "throughput": self.throughput.to_json(),
            "resources": {
                "summary": summarize_samples(self.resources),
                "series": [sample.to_json() for sample in self.resources],
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MeasuredRun:
        """Read the JSON form of `to_json`."""
        by_query = value["data_throughput_by_query"]
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
            None
            if by_query is None
            else DataThroughput(
                {name: rate for name, rate in by_query.items() if rate is not None},
                value["overall_data_throughput"],
                tuple(name for name, rate in by_query.items() if rate is None),
            ),
            value["sustainable_requests_per_second"],
            value["component_seconds"],
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
                TrialVerdict(verdict.rate, verdict.sustainable, verdict.reason, unit=verdict.unit)
                for verdict in self.trials
                if not verdict.sustainable
            )
            object.__setattr__(self, "trials", refused)

    @property
    def system(self) -> str:
        """The system, and what was switched off in it: such runs are not repeats of others."""
        ablation = self.origin.settings.get("ablation")
        return f"{self.sut} without {ablation}" if ablation else self.sut

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


RESULT_FILE = "result.json"
_COMMON_FIELDS = ("sut", "scenario", "queries", "repeat", "search", "started_at", "commit", "machine", "versions", "settings")
_FIGURE_FIELDS = (
    "offered_rows_per_second", "read_rows_per_second", "sustained", "sustainable_rows_per_second", "event_time_latency_s",
    "processing_time_latency_s", "deployment_latency_s", "query_throughput", "sustainable_requests_per_second",
    "slowest_data_throughput", "slowest_query",
    "overall_data_throughput", "data_throughput_by_query", "component_seconds", "throughput", "resources",
)  # fmt: skip


def append_run(folder: Path, run: BenchRun) -> None:
    """Append a run to the document of a folder; create both if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULT_FILE
    runs = _read_document(path)["runs"] if path.exists() else []
    lines = ",\n".join(json.dumps(document, ensure_ascii=False, allow_nan=False) for document in [*runs, run.to_json()])
    replace_file(path, f'{{"format": {RESULT_FORMAT}, "runs": [\n{lines}\n]}}\n'.encode())


def read_runs(folder: Path) -> tuple[BenchRun, ...]:
    """Return all runs of a folder's document; raise HeadraceError for missing or unknown fields."""
    path = folder / RESULT_FILE
    return tuple(_parse_run(value, number, path) for number, value in enumerate(_read_document(path)["runs"], 1))


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "name a directory that `headrace bench run --out` wrote"
        raise HeadraceError(f"result '{path}' cannot be read", detail=error.strerror or str(error), hint=hint) from error
    except ValueError as error:
        raise HeadraceError(f"result '{path}' is not JSON", detail=str(error)) from error
    if not isinstance(document, dict) or not isinstance(document.get("runs"), list):
        raise HeadraceError(f"result '{path}' has no runs", hint=f'expected {{"format": {RESULT_FORMAT}, "runs": […]}}')
    if document.get("format") not in (1, RESULT_FORMAT):
        raise HeadraceError(f"result '{path}' has unknown format {document.get('format')!r}", detail=f"known: 1, {RESULT_FORMAT}")
    if document["format"] == 1:
        document["runs"] = [_upgrade_run(run) for run in document["runs"]]
    return document


def _upgrade_run(value: Any) -> Any:
    """Return a run of format 1 in the present format, without its data throughput, which was computed instead of measured."""
    if not isinstance(value, dict) or "failed" in value:
        return value
    computed = ("slowest_data_throughput", "slowest_query", "overall_data_throughput")
    added: dict[str, Any] = {"sustainable_requests_per_second": None, "data_throughput_by_query": None, "component_seconds": {}}
    return {**value, **{name: None for name in computed if name in value}, **added}


def _parse_run(value: Any, number: int, path: Path) -> BenchRun:
    where = f"run {number} of '{path}'"
    if not isinstance(value, dict):
        raise HeadraceError(f"{where} is not an object")
    _check_fields(value, where)
    try:
        return BenchRun.from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HeadraceError(f"{where} is damaged", detail=repr(error)) from error


def _check_fields(value: Mapping[str, Any], where: str) -> None:
    failed = "failed" in value
    needed = _COMMON_FIELDS if failed else (*_COMMON_FIELDS, *_FIGURE_FIELDS)
    missing = [name for name in needed if name not in value]
    if missing:
        raise HeadraceError(f"{where} lacks '{missing[0]}'", detail=f"missing: {', '.join(missing)}")
    unknown = [name for name in value if name not in needed and not (failed and name == "failed")]
    if unknown:
        problem = "a failed run has no figures" if failed else "a run has no such field"
        raise HeadraceError(f"{where} has '{unknown[0]}'", detail=problem)
    if not {"name", "title"} <= set(value["scenario"]):
        raise HeadraceError(f"{where} lacks the name or title of its scenario")


def describe_machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "processor": platform.machine(),
    }


def list_versions() -> dict[str, str]:
    """Return the versions of the measured packages."""
    names = ("headrace", "pyspark", "pyarrow", "numpy", "numba")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def current_commit() -> str:
    """Return the commit of this checkout, with '+' if files are modified; 'unknown' outside a checkout."""
    root = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607
        modified = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True).stdout  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if modified.strip() else "")
