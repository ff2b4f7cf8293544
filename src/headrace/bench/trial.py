"""One trial: a rate is offered for a while, queries come and go as scripted, and everything is watched from outside.

offered   |······warm-up······|————————— measured —————————|
driver    stamps rows by the script, whatever the system does            ↓ stamping stops, the rest is drained
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

_TICK = 0.1
_LAST_RESULTS = 3.0  # seconds that results of windows which ended in time may take after the last row
_DRAIN = 15.0
_GLIMPSE = 4.0
_LEAD_IN, _LEAD_IN_LONGEST = 5.0, 60.0  # seconds
_LEAD_IN_RATE, _LEAD_IN_STEP = 50_000.0, 4.0  # rows/s to begin with, and times that with every step
_HOPELESS = 2.0  # times the tolerated queue: if it grew by more, that is not waited for


class Subject(Protocol):
    """The system under test, as far as a trial is concerned."""

    @property
    def system(self) -> str:
        """Its name."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def tail(self) -> str:
        """Return the last it wrote to standard error."""

    @property
    def state(self) -> Path | None:
        """Where it keeps its state, if in files."""

    def pids(self) -> Sequence[int]:
        """Return its processes now."""

    def add(self, query: BenchQuery) -> None:
        """Ask for a query."""

    def remove(self, name: str) -> None:
        """Take a query back."""

    def events(self) -> Sequence[SutEvent]:
        """Return what it said since the last time."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a trial offers: a script of rows/s, its base rate, for how long, and which queries come and go.

    A doubtful trial is prolonged up to `longest` times its length.
    """

    rate: float
    script: RateScript
    seconds: float
    limits: Limits
    steps: tuple[Step, ...] = ()
    longest: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What was seen. `drained` says that the system worked off the queue afterwards, so that it can be tried again.

    `failure` says why the system is lost, whatever the figures are: a crash, a dropped connection, a refused query.
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
        """Rows/s that were stamped over the whole trial."""
        first, last = self.statuses[0], self.statuses[-1]
        span = last.now - first.now
        return (last.produced - first.produced) * 1e6 / span if span > 0 else 0.0


Tell = Callable[[DriverStatus, float, float, Latencies | None], None]  # second, of so many; latencies now and then


def _silent(_status: DriverStatus, _second: float, _total: float, _latencies: Latencies | None) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class _Requests:
    """Queries asked for and taken back during a trial, and what was answered."""

    subject: Subject
    clock: Callable[[], float]
    waiting: list[Step]
    open: dict[tuple[str, str], int] = field(default_factory=dict)
    done: list[Request] = field(default_factory=list)
    added: dict[str, BenchQuery] = field(default_factory=dict)
    removing: bool = False

    def send(self, second: float) -> None:
        """Make the requests that are due."""
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
        """Take in what the system said; return why it gave up, if it did."""
        alive = self.subject.alive  # asked first, so that its last words are heard
        for event in self.subject.events():
            if event.event == "failed":
                return f"{self.subject.system} failed: {event.reason}"
            if event.event == "refused":
                return f"query '{event.query}' was refused: {event.reason}"
            asked = self.open.pop((event.event, event.query), None)
            if asked is not None:
                self.done.append(Request(event.query, asked, event.at, self._now()))
        last = self.subject.tail().splitlines()[-1:]
        return "" if alive else f"{self.subject.system} ended in the middle of the trial{': ' if last else ''}{''.join(last)}"

    def all(self) -> tuple[Request, ...]:
        """Return all requests; those without an answer too."""
        return (*self.done, *(Request(name, asked) for (_, name), asked in self.open.items()))

    def _now(self) -> int:
        return int(self.clock() * 1e6)


@dataclass(slots=True)
class _Seen:
    """What was seen so far of a trial that runs."""

    requests: _Requests
    begun: int
    statuses: list[DriverStatus] = field(default_factory=list)
    parts: list[Emissions] = field(default_factory=list)
    failure: str = ""
    shown: float = 0.0

    @property
    def overflowed(self) -> bool:
        """Whether rows found no room in the queue."""
        return bool(self.statuses) and self.statuses[-1].overflowed

    @property
    def served(self) -> int:
        """The bytes that the driver served until the last look."""
        return self.statuses[-1].served_bytes if self.statuses else 0


@dataclass(slots=True)
class Bench:
    """Driver, collector and system of one run; trials follow each other on it."""

    driver: DriverProcess
    collector: Collector
    subject: Subject
    queries: dict[str, BenchQuery]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def lead_in(self, rate: float) -> None:
        """Offer more and more rows, up to a rate or until the system cannot follow: what is done once is no part of a trial."""
        offered = min(_LEAD_IN_RATE, rate)
        follows = self._lead(offered, _LEAD_IN, _LEAD_IN_LONGEST)
        while follows and offered < rate:
            offered = min(offered * _LEAD_IN_STEP, rate)
            follows = self._lead(offered, _LEAD_IN / 2, _LEAD_IN / 2)
        self._await_reading(_DRAIN)

    def _lead(self, rate: float, seconds: float, patience: float) -> bool:
        """Offer a rate for a while, and say whether all of it was read soon after."""
        self.driver.start(RateScript.constant(rate))
        self.sleep(seconds)
        self.driver.start(None)
        return self._await_reading(patience)

    def _await_reading(self, patience: float) -> bool:
        """Wait until the queue is empty; False if that took too long."""
        begun = self.clock()
        while self.driver.status().backlog > 0:
            if self.clock() - begun > patience or not self.subject.alive:
                return False
            self.sleep(_TICK)
        return True

    def trial(self, offer: Offer, tell: Tell = _silent) -> Trial:
        """Offer rows, watch, and judge; the system is left with an empty queue if it can be brought there."""
        self.collector.take()  # results of what came before
        seen = _Seen(_Requests(self.subject, self.clock, list(offer.steps)), self.driver.start(offer.script))
        with ResourceSampler(self.subject.pids, lambda: seen.served, state=self.subject.state) as sampler:
            verdict = judge_long_enough(
                lambda until: self._observe(offer, seen, until, tell), offer.seconds, offer.limits, offer.longest
            )
            samples = sampler.samples()
        stopped = self.driver.start(None)
        drained = not seen.failure and not seen.overflowed and self._drain(seen.requests)
        latencies = self._latencies(offer, seen, stopped)
        removed = {name for step in offer.steps for name in step.remove}
        self.queries = {name: query for name, query in self._known(seen).items() if name not in removed}
        rows = sum(int(part.rows.sum()) for part in seen.parts)
        return Trial(
            verdict, seen.failure, latencies, seen.requests.all(), samples, tuple(seen.statuses), seen.begun, rows, drained
        )

    def _observe(self, offer: Offer, seen: _Seen, until: float, tell: Tell) -> Observed:
        """Sample until a second of the trial, or until it is lost; return all that was seen."""
        while not seen.failure and not seen.overflowed:
            status = self.driver.status()
            seen.statuses.append(status)
            second = (status.now - seen.begun) / 1e6
            seen.failure = seen.requests.hear() or _lost(status, seen)
            hopeless = status.backlog - seen.statuses[0].backlog > _HOPELESS * offer.limits.tolerated_s * offer.rate
            if seen.failure or second >= until or hopeless or status.overflowed:
                break
            seen.requests.send(second)
            tell(status, second, until, self._glimpse(offer, seen, second))
            self.sleep(_TICK)
        latencies = self._latencies(offer, seen, seen.statuses[-1].now)
        tell(seen.statuses[-1], second, until, latencies)
        return _observed(offer, seen, latencies)

    def _glimpse(self, offer: Offer, seen: _Seen, second: float) -> Latencies | None:
        """Return the latencies so far, every few seconds: whoever watches wants to see them."""
        if second < seen.shown + _GLIMPSE:
            return None
        seen.shown = second
        return self._latencies(offer, seen, seen.statuses[-1].now)

    def _latencies(self, offer: Offer, seen: _Seen, stop: int) -> Latencies:
        seen.parts.append(self.collector.take())
        period = Period(seen.begun, seen.begun + int(offer.limits.warm_up * (stop - seen.begun)), stop)
        return measure(Emissions.concat(seen.parts), self._known(seen), self.driver.log(), period)

    def _known(self, seen: _Seen) -> dict[str, BenchQuery]:
        return {**self.queries, **seen.requests.added}

    def _drain(self, requests: _Requests) -> bool:
        """Wait for the last results, and for the queue to be empty; False if that takes too long."""
        begun = self.clock()
        while True:
            waited = self.clock() - begun
            if requests.hear() or waited > _DRAIN:
                return False
            if waited >= _LAST_RESULTS and self.driver.status().backlog == 0:
                return True
            self.sleep(_TICK)


def _lost(status: DriverStatus, seen: _Seen) -> str:
    """Return why nothing can come of the trial; a query that is taken back may drop its connections."""
    if status.dropped > seen.statuses[0].dropped and not seen.requests.removing:
        return "a connection to the driver was dropped"
    return ""


def _observed(offer: Offer, seen: _Seen, latencies: Latencies) -> Observed:
    """Return what is judged: counters from the start of the trial on, latency by the second of emission."""
    first, series = seen.statuses[0], latencies.event_time_series
    return Observed(
        offer.rate,
        [(status.now - seen.begun) / 1e6 for status in seen.statuses],
        [status.produced - first.produced for status in seen.statuses],
        [status.read - first.read for status in seen.statuses],
        series.second,
        series.p50,
        seen.failure or ("the queue overflowed: the system read far too slowly" if seen.overflowed else ""),
    )
