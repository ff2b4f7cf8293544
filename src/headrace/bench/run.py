"""A run of one system under one scenario: search for the sustainable rate unless it is given, then run the scenario below it.

The rig starts the driver, the collector and the system under test, and ends them together. The search offers constant rates to
the peak number of live queries, one trial after the other; a system that crashed or did not drain its queue is restarted before
the next trial. The run itself, with its rate script and its query changes, uses a fresh system at `load` times the rate found:
its latencies are those of the result.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.measure.collector import ResultCollector
from headrace.bench.measure.latency import Latencies
from headrace.bench.measure.request_queue import observe_requests
from headrace.bench.measure.sustainable import RateSearchResult, TrialVerdict, failed_verdict, judge_trial, search_rate
from headrace.bench.queries.query import BenchQuery
from headrace.bench.result import (
    BenchRun,
    DeploymentLog,
    FailedRun,
    LatencyFigures,
    MeasuredRun,
    RunOrigin,
    ThroughputSeries,
    current_commit,
    describe_machine,
    list_versions,
)
from headrace.bench.scenarios.scenario import CLUSTER_SYSTEMS, RequestSearchSettings, Scenario
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.process import SutProcess
from headrace.bench.topic_run import ReadProgress, StoredTopic, run_over_topic
from headrace.bench.trial import OfferedLoad, ProgressCallback, TrialResult, TrialRunner
from headrace.errors import HeadraceError

QUEUE_CAPACITY_ROWS = 60_000_000  # per partition, eight bytes a row; more than any tolerated backlog
READY_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class BenchRig:
    """A running rig, with the versions and settings that the system reported."""

    trial_runner: TrialRunner
    versions: Mapping[str, str]
    settings: Mapping[str, Any]


@contextlib.contextmanager
def start_rig(
    sut: str,
    streams: Sequence[StreamSpec],
    queries: Sequence[BenchQuery],
    options: Mapping[str, Any],
    *,
    cluster: BenchCluster | None = None,
    host: str = LOOPBACK,
) -> Iterator[BenchRig]:
    """Start all parts; raise HeadraceError with the reason if the system cannot run, or rejects one of the queries.

    Driver and collector listen on `host`, which the nodes of a cluster must reach.
    """
    with contextlib.ExitStack() as stack:
        scratch = tempfile.mkdtemp(prefix="headrace-bench-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        driver = stack.enter_context(DriverProcess(streams, QUEUE_CAPACITY_ROWS, host=host))
        collector = stack.enter_context(ResultCollector(host))
        sut_streams = tuple(SutStream(stream, tuple(driver.line_ports[stream.name])) for stream in streams)
        config = SutConfig(driver.address, collector.address, Path(scratch), sut_streams, tuple(queries), options, cluster)
        system = stack.enter_context(SutProcess(sut, config))
        ready = system.wait_ready(READY_TIMEOUT_SECONDS)
        for event in system.events():
            if event.event == "refused":
                raise HeadraceError(f"{sut} cannot run query '{event.query}'", detail=event.reason)
        yield BenchRig(
            TrialRunner(driver, collector, system, {query.name: query for query in queries}), ready.versions, ready.settings
        )


_MAX_PROLONGATION = 3.0  # a doubtful trial of a search takes up to this many times its length
_REQUESTS_DELIVERED = 0.8  # of the rate of requests: of few requests a second, a trial has one less at its end
_MAX_RETRIES, _RETRY_FACTOR = 3, 0.92  # retries with a lower rate when the run does not confirm the search, and its factor


@dataclass(frozen=True, slots=True)
class RunWatcher:
    """Callbacks for progress: the start of a phase (text, rate), each status sample, the verdict on a trial, and rows read."""

    on_phase: Callable[[str, float | None], None]
    on_sample: ProgressCallback
    on_verdict: Callable[[TrialVerdict], None]
    on_read: ReadProgress = lambda _read, _rows, _second: None


class UnsustainedRun(FailedRun):
    """The run completed, but the offered rate was not sustained."""


@dataclass(slots=True)
class ScenarioRunner:
    """Runs one system under one scenario; with `rate`, in rows/s, there is no search. Driver and collector listen on `host`.

    A scenario with a topic needs the `topic` that is written. One that searches a rate of requests searches it at `rate`, and
    does not search with `requests` a second.
    """

    sut: str
    scenario: Scenario
    watcher: RunWatcher
    rate: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    host: str = LOOPBACK
    topic: StoredTopic | None = None
    requests: float | None = None
    _versions: Mapping[str, str] = field(default_factory=dict)
    _settings: Mapping[str, Any] = field(default_factory=dict)
    _verdicts: tuple[TrialVerdict, ...] = ()

    def run(self, repeat: int = 1) -> BenchRun:
        """Return the run with its figures, or with the reason why there are none."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            outcome: MeasuredRun | FailedRun = self._search_and_measure()
        except HeadraceError as error:
            outcome = FailedRun(str(error))
        origin = RunOrigin(started, current_commit(), describe_machine(), {**list_versions(), **self._versions}, self._settings)
        scenario = self.scenario
        return BenchRun(self.sut, scenario.to_json(), scenario.peak_query_count, repeat, outcome, origin, self._verdicts)

    def _search_and_measure(self) -> MeasuredRun | FailedRun:
        if self.sut not in self.scenario.systems:
            return FailedRun(f"scenario '{self.scenario.name}' does not list system '{self.sut}'")
        if self.scenario.cluster is not None and self.sut not in CLUSTER_SYSTEMS:
            return FailedRun(f"{self.sut} runs in one process and cannot use a cluster")
        if self.scenario.topic is not None:
            return self._read_topic()
        if self.scenario.request_search is not None:
            return self._search_requests(self.scenario.request_search)
        if self.rate is not None:
            return self._measure(self.rate, None)
        search_result = self._search_rate()
        self._verdicts = search_result.trials
        if search_result.rate is None:
            return FailedRun(search_result.reason)
        return self._confirm_rate(search_result.rate)

    def _read_topic(self) -> MeasuredRun | FailedRun:
        if self.rate is not None or self.topic is None:
            return FailedRun("a topic is stored input, to which no rate can be offered")
        self.watcher.on_phase(f"{self.sut}: reading a topic with {self.scenario.peak_query_count} queries", None)
        run = run_over_topic(self.sut, self.scenario, self.topic, self.options, self.watcher.on_read)
        self._versions, self._settings = run.versions, run.settings
        return run.outcome

    def _search_rate(self) -> RateSearchResult:
        scenario, bounds = self.scenario, self.scenario.search.bounds
        with _SearchTrials(self, scenario.peak_queries()) as trials:
            return search_rate(trials.run_trial, scenario.search.start, bounds)

    def _search_requests(self, search: RequestSearchSettings) -> MeasuredRun | FailedRun:
        """Search the sustainable rate of requests at a fixed rate of rows, or run the scenario's if `requests` is set."""
        rows = self.rate or search.rows_per_second
        if self.requests is not None:
            return self._measure_requests(rows, self.requests, None)
        result = search_rate(partial(self._try_requests, rows, search.seconds), search.start, search.bounds)
        self._verdicts = result.trials
        if result.rate is None:
            return FailedRun(result.reason)
        return self._confirm(partial(self._measure_requests, rows), result.rate)

    def _try_requests(self, rows: float, seconds: float, requests: float) -> TrialVerdict:
        """Return the verdict on one rate of requests; every trial has a new system, because queries have the same names."""
        scenario = self.scenario.with_traffic(requests, min(seconds, self.scenario.seconds))
        try:
            with self.start_system(scenario.initial_queries(), rows) as running:
                self.watcher.on_phase(f"{self.sut}: trial, {requests:,.1f} requests/s", rows)
                verdict = self._run_requests(running, scenario, rows, requests)[1]
        except HeadraceError as error:  # starting fails for every other rate too
            return failed_verdict(requests, str(error), final=True, unit="requests/s")
        self.watcher.on_verdict(verdict)
        return verdict

    def _run_requests(
        self, running: BenchRig, scenario: Scenario, rows: float, requests: float
    ) -> tuple[TrialResult, TrialVerdict]:
        """Return a trial and the verdict on its requests; they are not sustained if the rows are not."""
        limits = scenario.make_limits()
        offer = OfferedLoad(rows, scenario.scale_rate(rows), scenario.seconds, limits, scenario.build_steps())
        trial = running.trial_runner.run_trial(offer, self.watcher.on_sample)
        rows_failure = "" if trial.verdict.sustainable else f"{rows:,.0f} rows/s were not sustained: {trial.verdict.reason}"
        observed = observe_requests(trial.requests, requests, trial.start_us, scenario.seconds, trial.failure or rows_failure)
        return trial, judge_trial(observed, replace(limits, delivered=_REQUESTS_DELIVERED))

    def _measure_requests(self, rows: float, requests: float, sustainable: float | None) -> MeasuredRun | FailedRun:
        """Run the scenario with a rate of requests, on a fresh system."""
        scenario = self.scenario.with_traffic(requests)
        with self.start_system(scenario.initial_queries(), rows) as running:
            self.watcher.on_phase(f"{self.sut}: {scenario.name}, {requests:,.1f} requests/s", rows)
            trial, verdict = self._run_requests(running, scenario, rows, requests)
        self.watcher.on_verdict(verdict)
        if trial.failure:
            return FailedRun(trial.failure)
        if not verdict.sustainable:
            self._verdicts = (*self._verdicts, verdict) if sustainable else self._verdicts
            return UnsustainedRun(f"{requests:,.1f} requests/s were not sustained: {verdict.reason}")
        figures = _collect_figures(trial, self.rate)
        return replace(figures, sustainable_request_rate=requests if sustainable is None else sustainable)

    def _confirm_rate(self, rate: float) -> MeasuredRun | FailedRun:
        return self._confirm(self._measure, rate)

    def _confirm(self, measure: Callable[[float, float], MeasuredRun | FailedRun], rate: float) -> MeasuredRun | FailedRun:
        """Run the scenario at `load` times the rate found; while the run is not sustained, lower the rate and run again."""
        outcome = measure(rate * self.scenario.load, rate)
        for _ in range(_MAX_RETRIES):
            if not isinstance(outcome, UnsustainedRun):
                break
            rate *= _RETRY_FACTOR
            outcome = measure(rate * self.scenario.load, rate)
        return outcome

    def _measure(self, base: float, sustainable: float | None) -> MeasuredRun | FailedRun:
        """Run the scenario itself at a base rate, on a fresh system."""
        scenario = self.scenario
        with self.start_system(scenario.initial_queries(), base) as running:
            self.watcher.on_phase(f"{self.sut}: {scenario.name}", base)
            offer = OfferedLoad(base, scenario.scale_rate(base), scenario.seconds, scenario.make_limits(), scenario.build_steps())
            trial = running.trial_runner.run_trial(offer, self.watcher.on_sample)
        self.watcher.on_verdict(trial.verdict)
        if trial.failure:
            return FailedRun(trial.failure)
        if not trial.verdict.sustainable and (self.rate is not None or scenario.load <= 1):
            contrast = ""
            if sustainable is not None:
                self._verdicts = (*self._verdicts, trial.verdict)
                contrast = f", though {sustainable:,.0f} was in the shorter trials of the search"
            return UnsustainedRun(f"{base:,.0f} rows/s was not sustained{contrast}: {trial.verdict.reason}")
        return _collect_figures(trial, sustainable if self.rate is None else self.rate)

    @contextlib.contextmanager
    def start_system(self, queries: tuple[BenchQuery, ...], rate: float) -> Iterator[BenchRig]:
        """Start driver, collector and system with these queries, and lead in to a rate."""
        self.watcher.on_phase(f"{self.sut}: starting with {len(queries)} queries", None)
        # removed queries may overlap with added ones
        query_limit = {"max_queries": 2 * self.scenario.peak_query_count} if self.scenario.ad_hoc else {}
        options, cluster = {**query_limit, **self.options}, self.scenario.cluster
        with start_rig(self.sut, self.scenario.used_streams(), queries, options, cluster=cluster, host=self.host) as running:
            self._versions, self._settings = running.versions, running.settings
            running.trial_runner.run_lead_in(rate, limit_nodes=cluster is not None and cluster.nodes > 0)
            yield running


class _SearchTrials:
    """The trials of a search, on one system as long as it can be reused."""

    def __init__(self, runner: ScenarioRunner, queries: tuple[BenchQuery, ...]) -> None:
        self._runner, self._queries = runner, queries
        self._stack = contextlib.ExitStack()
        self._rig: BenchRig | None = None
        self._seconds = min(runner.scenario.search.seconds, runner.scenario.seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run_trial(self, rate: float) -> TrialVerdict:
        """Offer a constant rate and return the verdict."""
        runner, scenario = self._runner, self._runner.scenario
        try:
            if self._rig is None:
                self._rig = self._stack.enter_context(runner.start_system(self._queries, rate))
        except HeadraceError as error:  # starting fails for every other rate too
            return failed_verdict(rate, str(error), final=True)
        runner.watcher.on_phase(f"{runner.sut}: trial", rate)
        offer = OfferedLoad(
            rate, RateScript.constant(rate), self._seconds, scenario.make_limits(), max_prolongation=_MAX_PROLONGATION
        )
        trial = self._rig.trial_runner.run_trial(offer, runner.watcher.on_sample)
        runner.watcher.on_verdict(trial.verdict)
        if trial.failure or not trial.drained or not trial.verdict.sustainable:  # it may still be processing rows it has read
            self._rig = None
            self._stack.close()
        return trial.verdict


def _collect_figures(trial: TrialResult, sustainable: float | None) -> MeasuredRun:
    latencies: Latencies = trial.latencies
    first = trial.statuses[0]
    return MeasuredRun(
        trial.offered_rate,
        trial.verdict.drained or 0.0,
        trial.verdict.sustainable,
        sustainable,
        LatencyFigures(latencies.event_time, latencies.event_time_series),
        LatencyFigures(latencies.processing_time, latencies.processing_time_series),
        ThroughputSeries(
            tuple((status.now - trial.start_us) / 1e6 for status in trial.statuses),
            tuple(status.produced - first.produced for status in trial.statuses),
            tuple(status.read - first.read for status in trial.statuses),
        ),
        trial.samples,
        DeploymentLog(trial.start_us, trial.requests),
        trial.data_throughput,
        component_seconds=trial.component_seconds,
    )
