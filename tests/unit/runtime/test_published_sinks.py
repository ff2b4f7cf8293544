"""Published sinks: each batch is published once, whatever is interrupted; a destination that is down affects its sink alone.

workers write deliveries/… ─ commit ─ connect, read mark ─ publish rows and mark ─ record
                                    └─ crash anywhere ─ the next session reads the mark first
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from lives import SCHEMA, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.connectors.sinks import kafka_destination
from headrace.connectors.sinks.kafka import KafkaSink
from headrace.errors import NotFoundError, OwnershipLostError, SchemaError, SessionError, SinkError, SqlError
from headrace.runtime.sink_queue import SinkStatus
from headrace.storage.documents import get_document
from headrace.storage.fault_points import install_fault_hook

SELECT = "SELECT n FROM s"
STEPS = ("sink-connect", "sink-publish", "sink-published", "sink-recorded", "log", "logged", "commit", "committed", "published")


@dataclass
class FakeServer:
    """What a destination keeps: rows by topic and batch, and marks; `answer` raises in the place of an answer."""

    rows: dict[str, list[tuple[int, list[int]]]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    answer: Callable[[str, str], None] = lambda _step, _topic: None

    def read(self, topic: str) -> list[int]:
        return [value for _, values in self.rows.get(topic, []) for value in values]

    def list_batches(self, topic: str) -> list[int]:
        return [batch for batch, _ in self.rows.get(topic, [])]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer()

    class FakeDestination:
        def __init__(self, sink: KafkaSink, writer: str) -> None:
            self.topic, self.writer = sink.topic, writer

        def check_columns(self, schema: pa.Schema) -> None:
            pass

        def read_mark(self) -> int | None:
            server.answer("connect", self.topic)
            server.owners[self.writer] = self
            return server.marks.get(self.writer)

        def publish(self, batch: int, rows: pa.Table) -> None:
            server.answer("publish", self.topic)
            if server.owners[self.writer] is not self:
                raise ConnectionError("fenced by a newer connection")
            server.rows.setdefault(self.topic, []).append((batch, rows["n"].to_pylist()))
            server.marks[self.writer] = batch
            server.answer("published", self.topic)

        def close(self) -> None:
            pass

    monkeypatch.setattr(kafka_destination, "KafkaDestination", FakeDestination)
    monkeypatch.setattr("headrace.runtime.delivery._FIRST_RETRY_SECONDS", 0.01)
    return server


def to_sink(topic: str) -> KafkaSink:
    return hr.KafkaSink("127.0.0.1:1", topic)


def find_sink(query: hr.Query, number: int = 0) -> SinkStatus:
    return next(status for status in query.sinks if status.number == number)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


# --- once, whatever is interrupted -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(harness: SessionHarness, server: FakeServer, step: str):
    harness.session.add(SELECT, name="q", sinks=["memory", to_sink("one"), to_sink("two")])
    harness.tick(1, n=1)
    harness.append_rows(2, n=2)
    if step == "sink-connect":
        harness.restart()
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    harness.tick(3, n=3)
    query = harness.session.query("q")
    assert read_columns(query, "n") == server.read("one") == server.read("two") == [1, 2, 3]
    assert len(set(server.list_batches("one"))) == len(server.list_batches("one"))
    assert [status.state for status in query.sinks] == ["ok"] * 3


def test_a_request_whose_answer_is_lost_is_not_repeated(harness: SessionHarness, server: FakeServer):
    harness.session.add(SELECT, name="q", sink=to_sink("t"))
    lost = iter([True])

    def lose_answer(step: str, _topic: str) -> None:
        if step == "published" and next(lost, False):
            raise ConnectionError("the connection broke")

    server.answer = lose_answer
    harness.tick(1, n=1)
    harness.tick(2, n=2)
    wait_until(lambda: find_sink(harness.session.query("q")).waiting_batches == 0)
    assert server.read("t") == [1, 2]


def test_a_session_that_was_replaced_publishes_nothing_more(harness: SessionHarness, server: FakeServer, gate: threading.Event):
    """Its request hangs while another session takes over, publishes the same batch, and goes on; it does not connect again."""
    harness.session.add(SELECT, name="q", sink=to_sink("t"))
    entered = threading.Event()
    connections: list[threading.Thread] = []

    def hang(step: str, _topic: str) -> None:
        if step == "connect":
            connections.append(threading.current_thread())
        if step == "publish" and not entered.is_set():
            entered.set()
            gate.wait(20)

    server.answer = hang
    harness.append_rows(1, n=1)
    losses: list[OwnershipLostError] = []

    def run_replaced() -> None:
        try:
            harness.session.advance()
        except OwnershipLostError as loss:
            losses.append(loss)

    runner = threading.Thread(target=run_replaced)
    runner.start()
    assert entered.wait(20)
    replaced = harness.session
    harness.restart()
    harness.tick(2, n=2)
    gate.set()
    connections[0].join(20)
    runner.join(20)
    assert not connections[0].is_alive()
    harness.tick(3, n=3)
    assert (server.read("t"), len(connections)) == ([1, 2, 3], 2)
    if not losses:
        with pytest.raises(OwnershipLostError, match="was closed"):
            replaced._delivery.wait()


def test_rows_of_all_partitions_are_published_together(open_harness, server: FakeServer):
    harness: SessionHarness = open_harness(partitions=4)
    harness.session.add("SELECT k, SUM(n) AS n FROM TUMBLE(s, '5 seconds') GROUP BY k", name="q", sink=to_sink("t"))
    for k in range(40):
        harness.append_rows(1, k=k, n=k)
    harness.session.advance()
    harness.tick(6)
    assert sorted(server.read("t")) == list(range(40))
    assert len(server.list_batches("t")) == 1


# --- a destination that is not available -----------------------------------------------------------------------------


def test_a_destination_that_is_down_degrades_its_sink_alone(harness: SessionHarness, server: FakeServer):
    def refuse(_step: str, topic: str) -> None:
        if topic == "down":
            raise ConnectionError("no route")

    server.answer = refuse
    query = harness.session.add(SELECT, name="q", sinks=[to_sink("down"), to_sink("up")])
    received: list[int] = []
    harness.session.add(SELECT, name="other", sink=lambda table: received.extend(table["n"].to_pylist()))
    for n in (1, 2, 3):
        harness.tick(n, n=n)
    assert (query.status, server.read("down"), server.read("up"), received) == ("live", [], [1, 2, 3], [1, 2, 3])
    status = find_sink(query)
    assert (status.state, status.problem, status.waiting_batches) == ("degraded", "ConnectionError: no route", 3)
    assert status.waiting_bytes > 0
    assert get_document(harness.session.checkpoint.store, "delivered.json")["behind"] == {"0.0": -1}
    harness.session._delivery.close()
    harness.restart()
    server.answer = lambda *_: None
    harness.session.advance()
    wait_until(lambda: find_sink(harness.session.query("q")).waiting_batches == 0)
    harness.tick(4, n=4)
    harness.session.close()
    assert (server.read("down"), server.read("up")) == ([1, 2, 3, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("place", ["folder", "memory"])
def test_waiting_rows_survive_whatever_else_their_files_are_for(server: FakeServer, tmp_path: Path, place: str, monkeypatch):
    """In an object store a file has state, results and deliveries: state moves on, results are past their retention."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    location = str(tmp_path / "checkpoint") if place == "folder" else f"memory://{uuid.uuid4().hex}/checkpoint"
    is_down = True

    def answer(_step: str, topic: str) -> None:
        if is_down and topic == "down":
            raise ConnectionError("no route")

    server.answer = answer

    def open_session() -> tuple[hr.Session, hr.MemorySource]:
        session, source = hr.Session(location, backend="local", partitions=2), hr.MemorySource(SCHEMA)
        session.create_stream("s", source, time="time")
        session.retain_results(None, 2)
        return session, source

    def run(session: hr.Session, source: hr.MemorySource, seconds: range) -> None:
        for second in seconds:
            source.append([row for k in range(6) for row in make_rows(second, k=k, n=second * 10 + k)])
            session.advance()

    session, source = open_session()
    hop = "SELECT k, SUM(n) AS n FROM HOP(s, '3 seconds', '1 second') GROUP BY k"
    session.add(hop, name="q", sinks=["memory", to_sink("down"), to_sink("up")])
    run(session, source, range(8))
    session.close()
    session, source = open_session()
    run(session, source, range(8, 16))
    state, store = session._coordinator.state, session.checkpoint.store
    waiting = {file.key for file in state.deliveries}
    superseded = waiting - {ref.file for ref in state.aggregation_refs} - {file.key for file in state.results.files}
    assert len(superseded) > 20
    assert any(key.startswith("state/") for key in superseded) == (place == "memory")
    assert all(store.find_size(key) for key in waiting)
    session.close()
    is_down = False
    session, source = open_session()
    wait_until(lambda: find_sink(session.query("q"), 1).waiting_batches == 0)
    run(session, source, range(16, 18))
    session.close()
    assert server.rows["down"] == server.rows["up"]
    assert len(server.rows["down"]) == 17
    with hr.Session(location, backend="local") as last:
        assert not any(last.checkpoint.store.find_size(key) for key in superseded)


def test_files_of_published_batches_are_deleted(harness: SessionHarness, server: FakeServer):
    harness.session.add(SELECT, sink=to_sink("t"))
    for n in range(5):
        harness.tick(n, n=n)
    assert len(harness.list_files("deliveries")) <= 2 * 4


def test_a_query_fails_when_too_much_waits_and_what_waits_is_published_later(open_harness, server: FakeServer):
    harness: SessionHarness = open_harness(max_waiting_bytes=5_000)
    is_down = [True]

    def answer(_step: str, _topic: str) -> None:
        if is_down[0]:
            raise ConnectionError("no route")

    server.answer = answer
    query, other = harness.session.add(SELECT, name="q", sink=to_sink("t")), harness.session.add(SELECT, name="other")
    emitted = 0
    while query.status == "live" or not emitted:
        harness.tick(emitted, n=emitted)
        emitted += 1
        assert emitted < 50
    assert "sink kafka:t of query 'q' is not available, and too much waits for it" in str(query.error)
    assert "more than 5,000 (max_waiting_bytes); ConnectionError: no route" in str(query.error)
    harness.tick(90, n=90)
    is_down[0] = False
    harness.restart()
    wait_until(lambda: len(server.read("t")) == emitted)
    assert server.read("t") == list(range(emitted))
    assert other.status == "live"


def test_rows_that_a_destination_refuses_fail_the_query_alone(harness: SessionHarness, server: FakeServer):
    def refuse(step: str, topic: str) -> None:
        if step == "publish" and topic == "bad":
            raise SinkError("the message is too large")

    server.answer = refuse
    bad, good = harness.session.add(SELECT, sink=to_sink("bad")), harness.session.add(SELECT, sink=to_sink("good"))
    harness.tick(1, n=1)
    harness.tick(2, n=2)
    assert (bad.status, good.status, server.read("good")) == ("failed", "live", [1, 2])
    assert "sink kafka:bad of query" in str(bad.error)
    assert "the message is too large" in str(bad.error)


def test_a_lost_mark_fails_the_query_only_if_a_batch_is_in_doubt(harness: SessionHarness, server: FakeServer):
    harness.session.add(SELECT, name="q", sink=to_sink("t"))
    harness.tick(1, n=1)
    server.marks.clear()
    harness.restart()
    harness.tick(2, n=2)  # nothing was interrupted
    assert (harness.session.query("q").status, server.read("t")) == ("live", [1, 2])
    harness.append_rows(3, n=3)
    harness.kill_during(harness.session.advance, "sink-publish")
    server.marks.clear()
    harness.open_session()
    query = harness.session.query("q")
    wait_until(lambda: query.status == "failed")
    assert (
        "the destination has lost the mark of this sink: batch 1 was published, but batch 2 may be published or not"
        in query.error
    )
    assert server.read("t") == [1, 2]


def test_a_destination_that_is_ahead_of_the_checkpoint_fails_the_query(harness: SessionHarness, server: FakeServer):
    harness.session.add(SELECT, name="q", sink=to_sink("t"))
    harness.tick(1, n=1)
    server.marks = dict.fromkeys(server.marks, 500)
    harness.restart()
    harness.tick(2, n=2)
    assert "results of batch 500 of this checkpoint, which is at batch 1" in str(harness.session.find("q").error)


# --- several sinks, changed while the query lives --------------------------------------------------------------------


def test_sinks_are_added_and_taken_away_at_exact_batches(harness: SessionHarness, server: FakeServer, tmp_path: Path):
    query = harness.session.add(SELECT, name="q")
    harness.tick(1, n=1)
    numbers = [query.add_sink(to_sink("t")), query.add_sink(f"jsonl:{tmp_path / 'out'}")]
    assert (numbers, find_sink(query, 1).first_batch) == ([1, 2], None)
    harness.tick(2, n=2)
    harness.restart()
    query = harness.session.query("q")
    assert [(status.number, status.first_batch) for status in query.sinks] == [(0, 0), (1, 1), (2, 1)]
    query.remove_sink(1)
    harness.tick(3, n=3)
    harness.tick(4, n=4)
    assert query.add_sink(to_sink("t")) == 3  # numbers are not reused
    harness.tick(5, n=5)
    assert server.read("t") == [2, 5]
    assert read_columns(query, "n") == [1, 2, 3, 4, 5]
    assert len(list((tmp_path / "out").glob("part-*"))) == 4
    assert [status.number for status in query.sinks] == [0, 2, 3]
    with pytest.raises(SinkError, match="sink 9 does not exist"):
        query.remove_sink(9)


def test_a_logged_change_of_sinks_survives_a_crash(harness: SessionHarness, server: FakeServer):
    query = harness.session.add(SELECT, name="q")
    harness.tick(1, n=1)
    query.add_sink(to_sink("t"))
    harness.append_rows(2, n=2)
    harness.kill_during(harness.session.advance, "logged")
    harness.open_session()
    harness.session.advance()
    assert server.read("t") == [2]


def test_a_sink_that_is_taken_away_still_gets_what_was_emitted_before(harness: SessionHarness, server: FakeServer):
    is_down = [True]

    def answer(_step: str, _topic: str) -> None:
        if is_down[0]:
            raise ConnectionError("no route")

    server.answer = answer
    query = harness.session.add(SELECT, name="q", sinks=["memory", to_sink("kept"), to_sink("discarded")])
    harness.tick(1, n=1)
    query.remove_sink(1)
    query.remove_sink(2)
    harness.tick(2, n=2)
    query.remove_sink(2, discard=True)
    assert (find_sink(query, 1).end_batch, find_sink(query, 1).waiting_batches, find_sink(query, 2).waiting_batches) == (1, 1, 0)
    is_down[0] = False
    wait_until(lambda: server.read("kept") == [1])
    harness.tick(3, n=3)
    harness.tick(4, n=4)
    assert [status.number for status in query.sinks] == [0]
    assert (server.read("kept"), server.read("discarded")) == ([1], [])


def test_a_callback_among_several_sinks_is_passed_again(harness: SessionHarness, server: FakeServer):
    first: list[int] = []
    again: list[int] = []
    harness.session.add(SELECT, name="q", sinks=[to_sink("t"), lambda table: first.extend(table["n"].to_pylist())])
    harness.tick(1, n=1)
    harness.restart()
    harness.tick(2, n=2)
    assert (server.read("t"), first, again) == ([1, 2], [1], [])
    assert find_sink(harness.session.query("q"), 1).state == "waiting"
    harness.session.add(SELECT, name="q", sinks=[to_sink("t"), lambda table: again.extend(table["n"].to_pylist())])
    harness.tick(3, n=3)
    assert (server.read("t"), first, again) == ([1, 2, 3], [1], [2, 3])


def test_invalid_changes_of_sinks_are_refused(harness: SessionHarness, server: FakeServer):
    query = harness.session.add(SELECT, name="q")
    with pytest.raises(SinkError, match="one memory sink only"):
        query.add_sink("memory")
    with pytest.raises(SinkError, match="names column 'm', which the query does not have"):
        query.add_sink(hr.KafkaSink("127.0.0.1:1", "t", key="m"))
    with pytest.raises(SessionError, match="both sink and sinks"):
        harness.session.add(SELECT, sink="noop", sinks=["memory"])
    query.remove()
    with pytest.raises(SessionError, match="query 'q' has ended"):
        query.add_sink(to_sink("t"))


def test_the_fault_points_are_reached(harness: SessionHarness, server: FakeServer):
    seen: list[str] = []
    install_fault_hook(harness.directory, seen.append)
    harness.session.add(SELECT, sink=to_sink("t"))
    harness.tick(1, n=1)
    assert [step for step in seen if step.startswith("sink-")] == [
        "sink-connect",
        "sink-publish",
        "sink-published",
        "sink-recorded",
    ]


def test_a_statement_adds_a_query_with_a_sink(harness: SessionHarness, server: FakeServer):
    query = harness.session.sql(
        "CREATE QUERY q WITH (sink = 'kafka', brokers = '127.0.0.1:1', topic = 't', 'linger.ms' = '5') AS SELECT n FROM s"
    )
    assert query.sinks[0].description == "kafka:t"
    assert query.sink.options == {"linger.ms": "5"}
    harness.tick(1, n=1)
    assert server.read("t") == [1]


# --- bugs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", [TypeError("a bug"), AttributeError("a bug"), AssertionError("a bug"), KeyError("a bug")])
def test_a_bug_is_logged_and_fails_the_query_and_its_rows_wait_for_the_next_session(
    harness: SessionHarness, server: FakeServer, caplog: pytest.LogCaptureFixture, bug: Exception
):
    def fail(step: str, topic: str) -> None:
        if step == "publish" and topic == "bad":
            raise bug

    server.answer = fail
    bad, good = harness.session.add(SELECT, name="bad", sink=to_sink("bad")), harness.session.add(SELECT, sink=to_sink("good"))
    harness.tick(1, n=1)
    harness.tick(2, n=2)
    assert (bad.status, good.status, server.read("good")) == ("failed", "live", [1, 2])
    assert "internal error: sink kafka:bad of query 'bad' failed" in bad.error
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info[1] is bug
    assert record.args[0] in bad.error  # the reference
    assert find_sink(bad).waiting_batches == 1
    server.answer = lambda _step, _topic: None
    harness.restart()
    wait_until(lambda: server.read("bad") == [1])


def test_rows_that_the_format_cannot_write_fail_the_query(harness: SessionHarness, server: FakeServer):
    def refuse(step: str, _topic: str) -> None:
        if step == "publish":
            raise SchemaError("message 'm' is nested in another")

    server.answer = refuse
    query = harness.session.add(SELECT, sink=to_sink("t"))
    harness.tick(1, n=1)
    assert "message 'm' is nested in another" in query.error


def test_statements_change_the_sinks_of_a_live_query(harness: SessionHarness, server: FakeServer):
    run = harness.session.sql
    run("CREATE QUERY q WITH (sink = 'kafka', brokers = '127.0.0.1:1', topic = 'a') AS SELECT n FROM s")
    harness.tick(1, n=1)
    added = run("ALTER QUERY q ADD SINK WITH (sink = 'kafka', brokers = '127.0.0.1:1', topic = 'b')")
    assert added.to_pylist() == [{"number": 1}]
    harness.tick(2, n=2)
    run("ALTER QUERY q DROP SINK 0")
    harness.tick(3, n=3)
    assert (server.read("a"), server.read("b")) == ([1, 2], [2, 3])
    harness.tick(4, n=4)
    sink = {"query": "q", "number": 1, "sink": "kafka:b", "state": "ok", "waiting_batches": 0, "problem": ""}
    assert run("SHOW SINKS").to_pylist() == [sink]
    with pytest.raises(SinkError, match="sink 7 does not exist"):
        run("ALTER QUERY q DROP SINK 7")
    with pytest.raises(SqlError, match="ADD SINK names no sink"):
        run("ALTER QUERY q ADD SINK WITH ()")
    with pytest.raises(NotFoundError):
        run("ALTER QUERY r DROP SINK 0")
