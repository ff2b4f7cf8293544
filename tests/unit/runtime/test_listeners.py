"""Listeners: they are told of everything in order, and delay or fail nothing."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SourceError
from headrace.runtime.listeners import ListenerHub

ROWS = [{"k": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}]
WAIT_SECONDS = 20.0


class RecordingListener(hr.SessionListener):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_query_added(self, name: str, sql: str) -> None:
        self.events.append(("added", name, sql))

    def on_query_ended(self, name: str, error: str | None) -> None:
        self.events.append(("ended", name, error))

    def on_batch(self, progress: dict[str, Any]) -> None:
        self.events.append(("batch", progress["batch"], progress["input_rows"]))

    def on_stream_degraded(self, stream: str, error: str) -> None:
        self.events.append(("degraded", stream, error))

    def on_stream_recovered(self, stream: str) -> None:
        self.events.append(("recovered", stream))


class BlockingListener(hr.SessionListener):
    def __init__(self) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def on_batch(self, progress: dict[str, Any]) -> None:
        self.entered.set()
        assert self.released.wait(WAIT_SECONDS)
        self.batches.append(progress["batch"])


class RaisingListener(hr.SessionListener):
    def on_batch(self, progress: dict[str, Any]) -> None:
        raise ValueError(f"cannot take batch {progress['batch']}")


@pytest.fixture
def session():
    with hr.Session(backend="local", partitions=1) as opened:
        source = hr.MemorySource("k INT, time TIMESTAMP")
        opened.create_stream("a", source, time="time")
        opened.append = source.append
        yield opened


def run_batch(session: Any) -> None:
    session.append(ROWS)
    session.advance()


def wait_for_listeners(session: Any) -> None:
    assert session._observer.listeners.wait(WAIT_SECONDS)


def test_a_listener_hears_of_queries_and_batches_in_order(session) -> None:
    listener = RecordingListener()
    run_batch(session)
    session.add_listener(listener)
    session.add_listener(listener)
    session.add("SELECT k FROM a", name="q")
    run_batch(session)
    session.remove("q")
    run_batch(session)
    wait_for_listeners(session)
    assert listener.events == [
        ("added", "q", "SELECT k FROM a"),
        ("batch", 1, 1),
        ("ended", "q", None),
        ("batch", 2, 1),
    ]
    session.remove_listener(listener)
    run_batch(session)
    wait_for_listeners(session)
    assert len(listener.events) == 4


def test_a_listener_hears_why_a_query_failed(session) -> None:
    listener = RecordingListener()
    session.add_listener(listener)

    def refuse(_: Any) -> None:
        raise RuntimeError("full")

    session.add("SELECT k FROM a", name="q", sink=refuse)
    run_batch(session)
    run_batch(session)
    wait_for_listeners(session)
    ended = [event for event in listener.events if event[0] == "ended"]
    assert ended == [("ended", "q", "sink of query 'q' failed: RuntimeError: full")]


def test_a_listener_hears_of_degraded_streams_without_a_batch(session, monkeypatch) -> None:
    listener = RecordingListener()
    session.add_listener(listener)
    source = session.get_source("a")

    def fail(*_: Any) -> None:
        raise SourceError("no disk")

    session.append(ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(source, "plan", fail)
        session.advance()
    session.advance()
    wait_for_listeners(session)
    assert [event[:2] for event in listener.events] == [("degraded", "a"), ("recovered", "a"), ("batch", 0)]
    assert "no disk" in listener.events[0][2]


def test_a_listener_that_blocks_delays_neither_batches_nor_other_listeners(session) -> None:
    blocking, recording = BlockingListener(), RecordingListener()
    session.add_listener(blocking)
    session.add_listener(recording)
    for _ in range(3):
        run_batch(session)
    assert blocking.entered.wait(WAIT_SECONDS)
    assert session.last_batch == 2
    assert recording is session._observer.listeners._queues[1].listener
    assert session._observer.listeners._queues[1].wait(WAIT_SECONDS)
    assert [event[1] for event in recording.events] == [0, 1, 2]
    assert blocking.batches == []
    blocking.released.set()
    wait_for_listeners(session)
    assert blocking.batches == [0, 1, 2]


def test_an_error_of_a_listener_is_logged_and_fails_nothing(session, caplog) -> None:
    recording = RecordingListener()
    session.add_listener(RaisingListener())
    session.add_listener(recording)
    run_batch(session)
    run_batch(session)
    wait_for_listeners(session)
    assert [event[1] for event in recording.events] == [0, 1]
    assert session.last_batch == 1
    assert "listener RaisingListener failed" in caplog.text
    assert "cannot take batch 1" in caplog.text


def test_the_queue_of_a_listener_is_bounded(caplog) -> None:
    hub, blocking = ListenerHub(most=3), BlockingListener()
    hub.add(blocking)
    hub.notify("on_batch", {"batch": 0})
    assert blocking.entered.wait(WAIT_SECONDS)
    for batch in range(1, 7):
        hub.notify("on_batch", {"batch": batch})
    assert hub.count_dropped() == [3]
    assert caplog.text.count("listener BlockingListener is too slow") == 1
    assert not hub.wait(0.0)
    blocking.released.set()
    assert hub.wait(WAIT_SECONDS)
    assert blocking.batches == [0, 4, 5, 6]


def test_a_listener_may_close_the_session() -> None:
    session = hr.Session(backend="local")

    class Closing(hr.SessionListener):
        def on_batch(self, progress: dict[str, Any]) -> None:
            session.close()
            closed.set()

    closed = threading.Event()
    source = hr.MemorySource("k INT, time TIMESTAMP")
    session.create_stream("a", source, time="time")
    session.add_listener(Closing())
    source.append(ROWS)
    session.advance()
    assert closed.wait(WAIT_SECONDS)
    assert session.is_closed
