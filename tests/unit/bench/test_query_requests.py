"""The client of query requests: a batch is sent after the acknowledgement of the one before; the others wait in a queue."""

from __future__ import annotations

from collections import deque

import numpy as np

from headrace.bench.measure.latency import DeploymentRequest
from headrace.bench.measure.request_queue import observe_requests
from headrace.bench.measure.sustainable import judge_trial
from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.sets import make_query_generator
from headrace.bench.query_requests import MAX_BATCH, QueryRequests
from headrace.bench.scenarios.scenario import ScenarioStep
from headrace.bench.systems.process import SutEvent

QUERIES = make_query_generator("fields", {}).queries(2 * MAX_BATCH + 10)
S = 1_000_000


class RecordingSystem:
    """Records requests, and answers them when told to."""

    system, alive = "recording", True

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.answers: list[SutEvent] = []
        self.now = 0.0

    def tail(self) -> str:
        return ""

    def add(self, query: BenchQuery) -> None:
        self.sent.append(("live", query.name))

    def remove(self, name: str) -> None:
        self.sent.append(("removed", name))

    def answer(self, *requests: tuple[str, str]) -> None:
        self.answers += [SutEvent(event, name, int(self.now * S)) for event, name in requests]

    def events(self) -> list[SutEvent]:
        taken, self.answers = self.answers, []
        return taken


def make_requests(*steps: ScenarioStep) -> tuple[RecordingSystem, QueryRequests]:
    system = RecordingSystem()
    return system, QueryRequests(system, lambda: system.now, deque(steps))


def test_the_next_batch_waits_until_every_request_of_the_last_is_acknowledged():
    names = [query.name for query in QUERIES[:3]]
    system, requests = make_requests(ScenarioStep(0.0, QUERIES[:2], ()), ScenarioStep(1.0, QUERIES[2:3], ()))
    requests.send_due(0.0)
    assert system.sent == [("live", names[0]), ("live", names[1])]
    system.now = 1.0
    system.answer(("live", names[0]))
    requests.receive_events()
    requests.send_due(1.0)
    assert len(system.sent) == 2
    assert [request.name for request in requests.queue] == [names[2]]
    system.now = 4.0
    system.answer(("live", names[1]))
    requests.receive_events()
    requests.send_due(4.0)
    assert system.sent[2:] == [("live", names[2])]
    system.answer(("live", names[2]))
    requests.receive_events()
    assert not requests.is_busy
    waits = {request.query: request.live_at_us - request.requested_at_us for request in requests.list_requests()}
    assert waits == {names[0]: 1 * S, names[1]: 4 * S, names[2]: 3 * S}  # the last one waited in the queue


def test_a_batch_is_bounded():
    system, requests = make_requests(ScenarioStep(0.0, QUERIES, ()))
    for expected in (MAX_BATCH, 2 * MAX_BATCH, len(QUERIES)):
        requests.send_due(0.0)
        assert len(system.sent) == expected
        system.answer(*system.sent[-MAX_BATCH:])
        requests.receive_events()


def test_a_query_is_not_removed_in_the_batch_that_adds_it():
    first, second = (query.name for query in QUERIES[:2])
    system, requests = make_requests(ScenarioStep(0.0, QUERIES[:1], ()), ScenarioStep(0.0, QUERIES[1:2], (first,)))
    requests.send_due(0.0)
    assert system.sent == [("live", first), ("live", second)]
    system.answer(*system.sent)
    requests.receive_events()
    requests.send_due(0.1)
    assert system.sent[2:] == [("removed", first)]


def test_requests_in_the_queue_are_unanswered():
    _, requests = make_requests(ScenarioStep(0.0, QUERIES[: MAX_BATCH + 5], ()))
    requests.send_due(0.0)
    listed = requests.list_requests()
    assert len(listed) == MAX_BATCH + 5
    assert {request.acknowledged_at_us for request in listed} == {None}


def answer_after(rate: float, wait: float, seconds: int = 40, slower: float = 0.0) -> list[DeploymentRequest]:
    """Return requests at a rate, each acknowledged after a wait that grows by `slower` seconds a second."""
    made = np.arange(0.0, seconds, 1 / rate)
    return [DeploymentRequest("q", int(at * S), None, int((at + wait + slower * at) * S)) for at in made]


def test_a_queue_that_keeps_its_length_is_sustained():
    assert judge_trial(observe_requests(answer_after(10.0, 0.8), 10.0, 0, 40.0)).sustainable


def test_a_queue_that_grows_is_not_sustained():
    verdict = judge_trial(observe_requests(answer_after(10.0, 0.8, slower=0.3), 10.0, 0, 40.0))
    assert not verdict.sustainable
    assert "queue" in verdict.reason
    assert verdict.unit == "requests/s"


def test_requests_without_an_answer_stay_in_the_queue():
    requests = [DeploymentRequest("q", at * S) for at in range(40)]
    observed = observe_requests(requests, 1.0, 0, 40.0)
    assert (np.asarray(observed.produced)[-1], np.asarray(observed.read)[-1]) == (40, 0)
    assert judge_trial(observed).reason == "nothing was read after the warm-up"
