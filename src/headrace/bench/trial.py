"""One trial: offer a rate for a while, add and remove queries as scripted, and observe the system from outside.

offered   |······warm-up······|————————— measured —————————|
driver    stamps rows by the script, independent of the system           ↓ stamping stops, the backlog drains
queries        add    add   remove …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.bench.collector import Collector
from headrace.bench.deployment import Request
from headrace.bench.driver_client import DriverProcess, DriverStatus
from headrace.bench.emissions import Emissions
from headrace.bench.latency import Latencies, Period, measure
from headrace.bench.query import BenchQuery
from headrace.bench.rate import RateScript
from headrace.bench.resources import ResourceSampler, Sample
from headrace.bench.scenario import Step
from headrace.bench.sustainable import Limits, Observed, Verdict, judge_long_enough
from headrace.bench.sut.process import SutEvent

_TICK = 0.1  # seconds between polls
_LAST_RESULTS = 3.0  # seconds to wait after the last row for results of closed windows
_DRAIN = 15.0  # seconds
_GLIMPSE = 4.0  # seconds between latencies for the progress display
_LEAD_IN, _LEAD_IN_LONGEST = 5.0, 60.0  # seconds
_LEAD_IN_RATE, _LEAD_IN_STEP = 50_000.0, 4.0  # first rate in rows/s, and the factor of every step
_HOPELESS = 2.0  # a trial ends early when the backlog grew by this many times the tolerated one


class Subject(Protocol):
    """The system under test, as a trial uses it."""

    @property
    def system(self) -> str:
        """Its name."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""

    def tail(self) -> str:
        """Return the end of its standard error."""

    @property
    def state(self) -> Path | None:
        """The folder of its state files, if any."""

    def pids(self) -> Sequence[int]:
        """Return its current processes."""

    def add(self, query: BenchQuery) -> None:
        """Request a query."""

    def remove(self, name: str) -> None:
        """Request the removal of a query."""

    def events(self) -> Sequence[SutEvent]:
        """Return its events since the last call."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The load of a trial: a script in rows/s with its base rate, the duration, the limits, and the query changes.

    A doubtful trial is prolonged up to `max_prolongation` times its length.
    """

    rate: float
    script: RateScript
    seconds: float
    limits: Limits
    steps: tuple[Step, ...] = ()
    longest: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The outcome of a trial. `drained` means that the system emptied the queue afterwards and can run another trial.

    `failure` says why the system is unusable regardless of the figures: a crash, a dropped connection, a refused query.
    """

    verdict: Verdict
    failure: str
    latencies: Latencies
    requests: tuple[Request, ...]
    samples: tuple[Sample, ...]
    statuses: tuple[DriverStatus, ...]
    begun_us: int
    result_rows: int
    drained: bool

    @property
    def offered(self) -> float:
        """Rows/s stamped over the whole trial."""
        first, last = self.statuses[0], self.statuses[-1]
        span = last.now - first.now
        return (last.produced - first.produced) * 1e6 / span if span > 0 else 0.0


# called with the status, the second, the total seconds and, every few seconds, the latencies so far
Tell = Callable[[DriverStatus, float, float, Latencies | None], None]


def _silent(_status: DriverStatus, _second: float, _total: float, _latencies: Latencies | None) -> None:
    """Ignore progress."""


@dataclass(slots=True)
class _Requests:
    """The requests to add and remove queries during a trial, and their answers."""

    subject: Subject
    clock: Callable[[], float]
    waiting: list[Step]
    open: dict[tuple[str, str], int] = field(default_factory=dict)
    done: list[Request] = field(default_factory=list)
    added: dict[str, BenchQuery] = field(default_factory=dict)
    removing: bool = False

    def send(self, second: float) -> None:
        """Send the requests that are due."""
        while self.waiting and self.waiting[0].at <= second:
            step = self.waiting.pop(0)
            for query in step.add:
                self.added[query.name] = query
                self.open["live", query.name] = self._now()
                self.subject.add(query)
            for name in step.remove:
                self.removing = True
                self.open["removed", name] = self._now()
                self.subject.remove(name)

    def hear(self) -> str:
        """Process the events of the system; return why it failed, or an empty string."""
        alive = self.subject.alive  # read first, so that its last events are processed
        for event in self.subject.events():
            if event.event == "failed":
                return f"{self.subject.system} failed: {event.reason}"
            if event.event == "refused":
                return f"query '{event.query}' was refused: {event.reason}"
            requested_us = self.open.pop((event.event, event.query), None)
            if requested_us is not None:
                self.done.append(Request(event.query, requested_us, event.at, self._now()))
        last_line = self.subject.tail().splitlines()[-1:]
        return "" if alive else f"{self.subject.system} ended during the trial{': ' if last_line else ''}{''.join(last_line)}"

    def all(self) -> tuple[Request, ...]:
        """Return all requests, also those without an answer."""
        return (*self.done, *(Request(name, requested_us) for (_, name), requested_us in self.open.items()))

    def _now(self) -> int:
        return int(self.clock() * 1e6)


@dataclass(slots=True)
class _Seen:
    """The observations of a running trial so far."""

    requests: _Requests
    begun: int
    statuses: list[DriverStatus] = field(default_factory=list)
    parts: list[Emissions] = field(default_factory=list)
    failure: str = ""
    shown: float = 0.0

    @property
    def overflowed(self) -> bool:
        """Whether a queue was full."""
        return bool(self.statuses) and self.statuses[-1].overflowed

    @property
    def served(self) -> int:
        """The bytes that the driver had served at the last status."""
        return self.statuses[-1].served_bytes if self.statuses else 0


@dataclass(slots=True)
class Bench:
    """Driver, collector and system of one run; runs one trial after the other."""

    driver: DriverProcess
    collector: Collector
    subject: Subject
    queries: dict[str, BenchQuery]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def lead_in(self, rate: float) -> None:
        """Offer rising rates up to `rate`, or until the system lags, so that one-time costs are not part of a trial."""
        offered = min(_LEAD_IN_RATE, rate)
        keeps_up = self._lead(offered, _LEAD_IN, _LEAD_IN_LONGEST)
        while keeps_up and offered < rate:
            offered = min(offered * _LEAD_IN_STEP, rate)
            keeps_up = self._lead(offered, _LEAD_IN / 2, _LEAD_IN / 2)
        self._await_reading(_DRAIN)

    def _lead(self, rate: float, seconds: float, patience: float) -> bool:
        """Offer a rate for a while; return whether the system read all of it within `patience` seconds afterwards."""
        self.driver.start(RateScript.constant(rate))
        self.sleep(seconds)
        self.driver.start(None)
        return self._await_reading(patience)

    def _await_reading(self, patience: float) -> bool:
        """Wait until the queue is empty; return False after `patience` seconds or if the system ended."""
        start = self.clock()
        while self.driver.status().backlog > 0:
            if self.clock() - start > patience or not self.subject.alive:
                return False
            self.sleep(_TICK)
        return True

    def trial(self, offer: Offer, report: Tell = _silent) -> Trial:
        """Offer the load, observe and judge; leave the system with an empty queue if it drains in time."""
        self.collector.take()  # drop results of earlier trials
        state = _Seen(_Requests(self.subject, self.clock, list(offer.steps)), self.driver.start(offer.script))
        with ResourceSampler(self.subject.pids, lambda: state.served, state=self.subject.state) as sampler:
            verdict = judge_long_enough(
                lambda until: self._observe(offer, state, until, report), offer.seconds, offer.limits, offer.longest
            )
            samples = sampler.samples()
        stopped = self.driver.start(None)
        drained = not state.failure and not state.overflowed and self._drain(state.requests)
        latencies = self._latencies(offer, state, stopped)
        removed = {name for step in offer.steps for name in step.remove}
        self.queries = {name: query for name, query in self._known(state).items() if name not in removed}
        rows = sum(int(part.rows.sum()) for part in state.parts)
        return Trial(
            verdict, state.failure, latencies, state.requests.all(), samples, tuple(state.statuses), state.begun, rows, drained
        )

    def _observe(self, offer: Offer, state: _Seen, until: float, report: Tell) -> Observed:
        """Sample until a second of the trial, or until it fails; return the observation so far."""
        while not state.failure and not state.overflowed:
            status = self.driver.status()
            state.statuses.append(status)
            second = (status.now - state.begun) / 1e6
            state.failure = state.requests.hear() or _lost(status, state)
            exceeded = status.backlog - state.statuses[0].backlog > _HOPELESS * offer.limits.tolerated_s * offer.rate
            if state.failure or second >= until or exceeded or status.overflowed:
                break
            state.requests.send(second)
            report(status, second, until, self._glimpse(offer, state, second))
            self.sleep(_TICK)
        latencies = self._latencies(offer, state, state.statuses[-1].now)
        report(state.statuses[-1], second, until, latencies)
        return _observed(offer, state, latencies)

    def _glimpse(self, offer: Offer, state: _Seen, second: float) -> Latencies | None:
        """Return the latencies so far, every few seconds, for the progress display; else None."""
        if second < state.shown + _GLIMPSE:
            return None
        state.shown = second
        return self._latencies(offer, state, state.statuses[-1].now)

    def _latencies(self, offer: Offer, state: _Seen, stop: int) -> Latencies:
        state.parts.append(self.collector.take())
        period = Period(state.begun, state.begun + int(offer.limits.warm_up * (stop - state.begun)), stop)
        return measure(Emissions.concat(state.parts), self._known(state), self.driver.log(), period)

    def _known(self, state: _Seen) -> dict[str, BenchQuery]:
        return {**self.queries, **state.requests.added}

    def _drain(self, requests: _Requests) -> bool:
        """Wait for the last results and an empty queue; return False if that takes too long."""
        start = self.clock()
        while True:
            waited = self.clock() - start
            if requests.hear() or waited > _DRAIN:
                return False
            if waited >= _LAST_RESULTS and self.driver.status().backlog == 0:
                return True
            self.sleep(_TICK)


def _lost(status: DriverStatus, state: _Seen) -> str:
    """Return why the trial failed, or an empty string; the removal of a query may drop connections."""
    if status.dropped > state.statuses[0].dropped and not state.requests.removing:
        return "a connection to the driver was dropped"
    return ""


def _observed(offer: Offer, state: _Seen, latencies: Latencies) -> Observed:
    """Return the observation to judge: counters from the start of the trial, latency by second of emission."""
    first, series = state.statuses[0], latencies.event_time_series
    return Observed(
        offer.rate,
        [(status.now - state.begun) / 1e6 for status in state.statuses],
        [status.produced - first.produced for status in state.statuses],
        [status.read - first.read for status in state.statuses],
        series.second,
        series.p50,
        state.failure or ("the queue overflowed: the system read far too slowly" if state.overflowed else ""),
    )
