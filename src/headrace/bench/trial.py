"""One trial: offer a rate for a while, add and remove queries as scripted, and observe the system from outside.

offered   |······warm-up······|————————— measured —————————|
driver    stamps rows by the script, independent of the system           ↓ stamping stops, the backlog drains
queries        add    add   remove …
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.bench.driver.client import DriverProcess, DriverStatus
from headrace.bench.driver.rates import RateScript
from headrace.bench.measure.collector import Emissions, ResultCollector
from headrace.bench.measure.data_throughput import DataThroughput, measure_data_throughput
from headrace.bench.measure.latency import DeploymentRequest, Latencies, MeasurementPeriod, measure_latencies
from headrace.bench.measure.resources import ResourceSample, ResourceSampler
from headrace.bench.measure.sustainable import SustainabilityLimits, TrialObservation, TrialVerdict, judge_until_certain
from headrace.bench.queries.query import BenchQuery
from headrace.bench.query_requests import ChangeableSystem, QueryRequests
from headrace.bench.scenarios.scenario import ScenarioStep
from headrace.errors import HeadraceError

_POLL_SECONDS = 0.1  # seconds between polls of the driver
_REQUEST_POLLS = 10  # polls of answers to requests meanwhile
_LAST_RESULTS_SECONDS = 3.0  # seconds to wait after the last row for results of closed windows
_DRAIN_SECONDS = 15.0
_LATENCY_INTERVAL_SECONDS = 4.0  # seconds between latencies for the progress display
_LEAD_IN_SECONDS, _LEAD_IN_MAX_SECONDS = 5.0, 60.0
_LEAD_IN_RATE, _LEAD_IN_FACTOR = 50_000.0, 4.0  # first rate in rows/s, and the factor of every step
_GIVE_UP_FACTOR = 2.0  # a trial ends early when the backlog grew by this many times the tolerated one


class SystemUnderTest(ChangeableSystem, Protocol):
    """The system under test, as a trial uses it."""

    @property
    def state(self) -> Path | None:
        """The folder of its state files, if any."""

    def pids(self) -> Sequence[int]:
        """Return its current processes."""

    def limit_nodes(self) -> None:
        """Limit the processors of the nodes of its cluster."""

    def read_component_seconds(self) -> Mapping[str, float]:
        """Return the seconds of its work so far by component; empty if it does not measure them."""


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load of a trial: a script in rows/s with its base rate, the duration, the limits, and the query changes.

    A doubtful trial is prolonged up to `max_prolongation` times its length.
    """

    rate: float
    script: RateScript
    seconds: float
    limits: SustainabilityLimits
    steps: tuple[ScenarioStep, ...] = ()
    max_prolongation: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """The outcome of a trial. `drained` means that the system emptied the queue afterwards and can run another trial.

    `failure` says why the system is unusable regardless of the figures: a crash, a dropped connection, a refused query.
    """

    verdict: TrialVerdict
    failure: str
    latencies: Latencies
    requests: tuple[DeploymentRequest, ...]
    samples: tuple[ResourceSample, ...]
    statuses: tuple[DriverStatus, ...]
    start_us: int
    result_rows: int
    drained: bool
    data_throughput: DataThroughput | None
    component_seconds: Mapping[str, float]

    @property
    def offered_rate(self) -> float:
        """Rows/s stamped over the whole trial."""
        first, last = self.statuses[0], self.statuses[-1]
        span = last.now - first.now
        return (last.produced - first.produced) * 1e6 / span if span > 0 else 0.0


# called with the status, the second, the total seconds and, every few seconds, the latencies so far
ProgressCallback = Callable[[DriverStatus, float, float, Latencies | None], None]


def _ignore_progress(_status: DriverStatus, _second: float, _total: float, _latencies: Latencies | None) -> None:
    """Ignore progress."""


@dataclass(slots=True)
class _TrialState:
    """The observations of a running trial so far."""

    requests: QueryRequests
    start_us: int
    statuses: list[DriverStatus] = field(default_factory=list)
    emissions: list[Emissions] = field(default_factory=list)
    failure: str = ""
    last_latency_second: float = 0.0

    @property
    def overflowed(self) -> bool:
        """Whether a queue was full."""
        return bool(self.statuses) and self.statuses[-1].overflowed

    @property
    def served_bytes(self) -> int:
        """The bytes that the driver had served at the last status."""
        return self.statuses[-1].served_bytes if self.statuses else 0


@dataclass(slots=True)
class TrialRunner:
    """Driver, collector and system of one run; runs one trial after the other."""

    driver: DriverProcess
    collector: ResultCollector
    sut: SystemUnderTest
    queries: dict[str, BenchQuery]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run_lead_in(self, rate: float, *, limit_nodes: bool = False) -> None:
        """Offer rising rates up to `rate`, or until the system lags, so that one-time costs are not part of a trial.

        Afterwards, limit the nodes of its cluster, if it has some.
        """
        offered = min(_LEAD_IN_RATE, rate)
        keeps_up = self._offer_rate(offered, _LEAD_IN_SECONDS, _LEAD_IN_MAX_SECONDS)
        while keeps_up and offered < rate:
            offered = min(offered * _LEAD_IN_FACTOR, rate)
            keeps_up = self._offer_rate(offered, _LEAD_IN_SECONDS / 2, _LEAD_IN_SECONDS / 2)
        self._await_empty_queue(_DRAIN_SECONDS)
        if limit_nodes:
            self.sut.limit_nodes()

    def _offer_rate(self, rate: float, seconds: float, patience: float) -> bool:
        """Offer a rate for a while; return whether the system read all of it within `patience` seconds afterwards."""
        self.driver.start(RateScript.constant(rate))
        self.sleep(seconds)
        self.driver.start(None)
        return self._await_empty_queue(patience)

    def _await_empty_queue(self, patience: float) -> bool:
        """Wait until the queue is empty; return False after `patience` seconds or if the system ended."""
        start = self.clock()
        while self.driver.status().backlog > 0:
            if self.clock() - start > patience or not self.sut.alive:
                return False
            self.sleep(_POLL_SECONDS)
        return True

    def run_trial(self, offer: OfferedLoad, report: ProgressCallback = _ignore_progress) -> TrialResult:
        """Offer the load, observe and judge; leave the system with an empty queue if it drains in time."""
        self.collector.take()  # drop results of earlier trials
        work_before = self._read_component_seconds()
        state = _TrialState(QueryRequests(self.sut, self.clock, deque(offer.steps)), self.driver.start(offer.script))
        with ResourceSampler(self.sut.pids, lambda: state.served_bytes, state=self.sut.state) as sampler:
            verdict = judge_until_certain(
                lambda until: self._observe_until(offer, state, until, report),
                offer.seconds,
                offer.limits,
                offer.max_prolongation,
            )
            samples = sampler.get_samples()
        stopped = self.driver.start(None)
        work = self._read_component_seconds() if not state.failure else {}
        drained = not state.failure and not state.overflowed and self._await_drain(state.requests)
        latencies = self._measure_latencies(offer, state, stopped)
        data_throughput = self._measure_data_throughput(offer, state, stopped)
        removed = {name for step in offer.steps for name in step.remove}
        self.queries = {name: query for name, query in self._known_queries(state).items() if name not in removed}
        rows = sum(int(part.rows.sum()) for part in state.emissions)
        return TrialResult(
            verdict,
            state.failure,
            latencies,
            state.requests.list_requests(),
            samples,
            tuple(state.statuses),
            state.start_us,
            rows,
            drained,
            data_throughput,
            {name: seconds - work_before.get(name, 0.0) for name, seconds in work.items()},
        )

    def _read_component_seconds(self) -> Mapping[str, float]:
        """Return the seconds of work by component; a system that is too busy to answer has none, and is judged by the trial."""
        with contextlib.suppress(HeadraceError):
            return self.sut.read_component_seconds()
        return {}

    def _observe_until(self, offer: OfferedLoad, state: _TrialState, until: float, report: ProgressCallback) -> TrialObservation:
        """Sample until a second of the trial, or until it fails; return the observation so far."""
        while not state.failure and not state.overflowed:
            status = self.driver.status()
            state.statuses.append(status)
            second = (status.now - state.start_us) / 1e6
            state.failure = state.failure or state.requests.receive_events() or _find_failure(status, state)
            exceeded = status.backlog - state.statuses[0].backlog > _GIVE_UP_FACTOR * offer.limits.tolerated_s * offer.rate
            if state.failure or second >= until or exceeded or status.overflowed:
                break
            report(status, second, until, self._interim_latencies(offer, state, second))
            self._change_queries(state, second)
        latencies = self._measure_latencies(offer, state, state.statuses[-1].now)
        report(state.statuses[-1], second, until, latencies)
        return _make_observation(offer, state, latencies)

    def _change_queries(self, state: _TrialState, second: float) -> None:
        """Send the requests that are due, until the next poll; an answer lets the next batch go at once."""
        for number in range(_REQUEST_POLLS):
            state.requests.send_due(second + number * _POLL_SECONDS / _REQUEST_POLLS)
            if not state.requests.is_busy:
                self.sleep(_POLL_SECONDS * (_REQUEST_POLLS - number) / _REQUEST_POLLS)
                return
            self.sleep(_POLL_SECONDS / _REQUEST_POLLS)
            state.failure = state.failure or state.requests.receive_events()

    def _interim_latencies(self, offer: OfferedLoad, state: _TrialState, second: float) -> Latencies | None:
        """Return the latencies so far, every few seconds, for the progress display; else None."""
        if second < state.last_latency_second + _LATENCY_INTERVAL_SECONDS:
            return None
        state.last_latency_second = second
        return self._measure_latencies(offer, state, state.statuses[-1].now)

    def _measure_latencies(self, offer: OfferedLoad, state: _TrialState, stop: int) -> Latencies:
        state.emissions.append(self.collector.take())
        period = _make_period(offer, state, stop)
        return measure_latencies(Emissions.concat(state.emissions), self._known_queries(state), self.driver.log(), period)

    def _measure_data_throughput(self, offer: OfferedLoad, state: _TrialState, stop: int) -> DataThroughput | None:
        period = _make_period(offer, state, stop)
        lives = state.requests.find_lives(self.queries, period)
        length_us = period.stop_us - period.measured_us
        return measure_data_throughput(
            Emissions.concat(state.emissions), self._known_queries(state), lives, self.driver.log(), length_us
        )

    def _known_queries(self, state: _TrialState) -> dict[str, BenchQuery]:
        return {**self.queries, **state.requests.added_queries}

    def _await_drain(self, requests: QueryRequests) -> bool:
        """Wait for the last results and an empty queue; return False if that takes too long."""
        start = self.clock()
        while True:
            waited = self.clock() - start
            if requests.receive_events() or waited > _DRAIN_SECONDS:
                return False
            if waited >= _LAST_RESULTS_SECONDS and self.driver.status().backlog == 0:
                return True
            self.sleep(_POLL_SECONDS)


def _make_period(offer: OfferedLoad, state: _TrialState, stop: int) -> MeasurementPeriod:
    """Return the period of a trial that ends at a time in microseconds; the warm-up is a share of it."""
    return MeasurementPeriod(state.start_us, state.start_us + int(offer.limits.warm_up * (stop - state.start_us)), stop)


def _find_failure(status: DriverStatus, state: _TrialState) -> str:
    """Return why the trial failed, or an empty string; the removal of a query may drop connections."""
    if status.dropped > state.statuses[0].dropped and not state.requests.has_removals:
        return "a connection to the driver was dropped"
    return ""


def _make_observation(offer: OfferedLoad, state: _TrialState, latencies: Latencies) -> TrialObservation:
    """Return the observation to judge: counters from the start of the trial, latency by second of emission."""
    first, series = state.statuses[0], latencies.event_time_series
    return TrialObservation(
        offer.rate,
        [(status.now - state.start_us) / 1e6 for status in state.statuses],
        [status.produced - first.produced for status in state.statuses],
        [status.read - first.read for status in state.statuses],
        series.second,
        series.p50,
        state.failure or ("the queue overflowed: the system read far too slowly" if state.overflowed else ""),
    )
