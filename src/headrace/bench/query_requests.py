"""The client of query requests: a queue whose next batch is sent when the system has acknowledged the one before.

    scenario ── due requests ──> queue ── at most 100, once nothing is unanswered ──> system under test
                                                                <── live, removed ──

A request waits in the queue while the system works on earlier ones, and its waiting time is part of its deployment latency. The
queue of a system that sustains the rate of requests does not keep growing (`measure/request_queue.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.bench.measure.data_throughput import QueryLife
from headrace.bench.measure.latency import DeploymentRequest, MeasurementPeriod
from headrace.bench.queries.query import BenchQuery
from headrace.bench.scenarios.scenario import ScenarioStep
from headrace.bench.systems.process import SutEvent

MAX_BATCH = 100  # requests; the size of a changelog in AStream's experiments


class ChangeableSystem(Protocol):
    """The system under test, as the client of query requests uses it."""

    @property
    def system(self) -> str:
        """Its name."""

    @property
    def alive(self) -> bool:
        """Whether its process runs."""

    def tail(self) -> str:
        """Return the end of its standard error."""

    def add(self, query: BenchQuery) -> None:
        """Request a query."""

    def remove(self, name: str) -> None:
        """Request the removal of a query."""

    def events(self) -> Sequence[SutEvent]:
        """Return its events since the last call."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request to add `query`, or to remove the query of this name if there is none; `answer` is the event that answers it."""

    name: str
    requested_us: int
    query: BenchQuery | None = None

    @property
    def answer(self) -> tuple[str, str]:
        """The event and the query that it names."""
        return ("removed" if self.query is None else "live"), self.name


@dataclass(slots=True)
class QueryRequests:
    """The requests of a trial and their answers; `clock` returns seconds since 1970."""

    sut: ChangeableSystem
    clock: Callable[[], float]
    pending_steps: deque[ScenarioStep]
    queue: deque[QueuedRequest] = field(default_factory=deque)
    unanswered: dict[tuple[str, str], QueuedRequest] = field(default_factory=dict)
    answered: list[DeploymentRequest] = field(default_factory=list)
    added_queries: dict[str, BenchQuery] = field(default_factory=dict)
    live_since: dict[str, int] = field(default_factory=dict)  # of added queries, in microseconds since 1970
    removed_at: dict[str, int] = field(default_factory=dict)
    has_removals: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether requests wait in the queue or for an answer."""
        return bool(self.queue or self.unanswered)

    def send_due(self, second: float) -> None:
        """Queue the requests that are due at a second of the trial, and send a batch if the last one is acknowledged."""
        while self.pending_steps and self.pending_steps[0].at <= second:
            step, now = self.pending_steps.popleft(), self._now_us()
            self.queue.extend(QueuedRequest(query.name, now, query) for query in step.add)
            self.queue.extend(QueuedRequest(name, now) for name in step.remove)
        if not self.unanswered:
            self._send_batch()

    def _send_batch(self) -> None:
        """Send the first requests; the removal of a query is not in the batch that adds it."""
        added: set[str] = set()
        while self.queue and len(self.unanswered) < MAX_BATCH:
            request = self.queue[0]
            if request.query is None and request.name in added:
                return
            self.queue.popleft()
            self.unanswered[request.answer] = request
            if request.query is not None:
                added.add(request.name)
                self.added_queries[request.name] = request.query
                self.sut.add(request.query)
            else:
                self.has_removals = True
                self.sut.remove(request.name)

    def receive_events(self) -> str:
        """Process the events of the system; return why it failed, or an empty string."""
        alive = self.sut.alive  # read first, so that its last events are processed
        for event in self.sut.events():
            if event.event == "failed":
                return f"{self.sut.system} failed: {event.reason}"
            if event.event == "refused":
                return f"query '{event.query}' was refused: {event.reason}"
            request = self.unanswered.pop((event.event, event.query), None)
            if request is not None:
                (self.live_since if event.event == "live" else self.removed_at)[event.query] = event.at
                self.answered.append(DeploymentRequest(event.query, request.requested_us, event.at, self._now_us()))
        last_line = self.sut.tail().splitlines()[-1:]
        return "" if alive else f"{self.sut.system} ended during the trial{': ' if last_line else ''}{''.join(last_line)}"

    def list_requests(self) -> tuple[DeploymentRequest, ...]:
        """Return all requests, also those without an answer."""
        waiting = (*self.unanswered.values(), *self.queue)
        return (*self.answered, *(DeploymentRequest(request.name, request.requested_us) for request in waiting))

    def find_lives(self, initial: Iterable[str], period: MeasurementPeriod) -> dict[str, QueryLife]:
        """Return when each query was live in the measured part; queries that never became live have no life."""
        begins = {**dict.fromkeys(initial, period.measured_us), **self.live_since}
        return {
            name: QueryLife(max(period.measured_us, begin), min(period.stop_us, self.removed_at.get(name, period.stop_us)))
            for name, begin in begins.items()
        }

    def _now_us(self) -> int:
        return int(self.clock() * 1e6)
