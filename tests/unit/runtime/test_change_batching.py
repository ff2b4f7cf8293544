"""Batching of query changes and back-pressure in a session: changes wait for more of them, and callers for room."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from lives import SessionHarness

from headrace.errors import QueueFullError, SessionError

COUNT = "SELECT COUNT(*) AS n FROM TUMBLE(s, '1 second') WHERE n > {}"
LONG = 1e6  # seconds; no test takes so long


def list_live(harness: SessionHarness) -> list[str]:
    return [query.name for query in harness.session.queries() if query.status == "live"]


def add_queries(harness: SessionHarness, count: int) -> None:
    for number in range(count):
        harness.session.add(COUNT.format(number), name=f"q{number}", sink="noop")


def test_micro_batches_take_a_bounded_number_of_changes(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=2)
    add_queries(harness, 5)
    live = []
    for _ in range(4):
        harness.session.advance()
        live.append(len(list_live(harness)))
    assert live == [2, 4, 5, 5]
    assert harness.session.last_batch == 2


def test_changes_wait_for_the_delay_while_rows_flow(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(change_delay=LONG)
    add_queries(harness, 2)
    assert harness.session.advance().batch == -1
    harness.tick(1)
    assert list_live(harness) == []
    with pytest.raises(SessionError, match="is not live after 0 s"):
        harness.session.query("q0").wait_live(timeout=0)
    assert harness.session.waiting_changes.waiting == 2
    harness.session._command_queue.hasten()
    harness.session.advance()
    assert list_live(harness) == ["q0", "q1"]
    assert harness.session.waiting_changes.waiting == 0


def test_a_full_changelog_does_not_wait(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=3, change_delay=LONG)
    add_queries(harness, 4)
    harness.session.advance()
    assert list_live(harness) == ["q0", "q1", "q2"]
    harness.session.advance()
    assert list_live(harness) == ["q0", "q1", "q2"]


def test_a_replaced_query_ends_and_starts_in_one_batch(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=1)
    harness.session.add(COUNT.format(0), name="q")
    harness.session.advance()
    harness.session.replace("q", COUNT.format(1))
    report = harness.session.advance()
    assert (len(report.added), len(report.removed)) == (1, 1)


def test_a_drain_takes_all_changes(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=1, change_delay=LONG)
    query = harness.session.add(COUNT.format(0))
    other = harness.session.add(COUNT.format(1))
    harness.append_rows(1, n=2)
    harness.session.drain()
    assert [query.results()["n"].to_pylist(), other.results()["n"].to_pylist()] == [[1], [1]]


def test_the_drop_of_a_stream_is_logged_with_all_changes_before_it(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=1, change_delay=LONG)
    add_queries(harness, 3)
    harness.session.drop_stream("s", cascade=True)
    assert harness.session.waiting_changes.waiting == 0
    harness.session.advance()
    assert harness.session.streams() == {}


@pytest.mark.parametrize("step", ["logged", "planned", "commit"])
def test_a_batch_that_runs_again_takes_the_changes_that_it_had(open_harness: Callable[..., SessionHarness], step: str):
    harness = open_harness(changes_per_batch=2)
    add_queries(harness, 3)
    harness.append_rows(1, n=9)
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    report = harness.session.advance()
    assert [harness.session.name_of(number) for number in report.added] == ["q0", "q1"]


def test_wait_live_returns_while_a_background_thread_runs(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(changes_per_batch=1, change_delay=0.05)
    add_queries(harness, 3)
    harness.session.start()
    for number in range(3):
        assert harness.session.query(f"q{number}").wait_live(timeout=60).status == "live"
    harness.session.stop()


def test_a_full_queue_refuses_queries_of_a_session_that_does_not_run(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(max_waiting_changes=2, change_timeout=LONG)
    add_queries(harness, 2)
    with pytest.raises(QueueFullError, match="2 query changes wait already"):
        harness.session.add(COUNT.format(7), name="refused")
    assert harness.session.find("refused") is None
    assert harness.session.waiting_changes.refused == 1
    harness.session.remove("q0")  # makes room
    replaced = harness.session.add(COUNT.format(7), name="q2")
    harness.session.advance()
    assert list_live(harness) == ["q1", "q2"]
    add_queries(harness, 1)
    harness.session.add(COUNT.format(3), name="q3")
    with pytest.raises(QueueFullError):
        harness.session.replace("q2", COUNT.format(8))
    with pytest.raises(QueueFullError):
        replaced.add_sink("noop")
    harness.session.remove("q1")
    harness.session.advance()
    assert list_live(harness) == ["q2", "q0", "q3"]
    assert replaced.sql == COUNT.format(7)


def test_add_waits_for_room_while_a_background_thread_runs(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(max_waiting_changes=1, change_timeout=60.0)
    harness.session.start()
    threads = [threading.Thread(target=add_queries, args=(_Named(harness, n), 5)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    harness.session.query("3-q4").wait_live(60)
    harness.session.stop()
    assert len(harness.session.queries()) == 20
    assert harness.session.waiting_changes.refused == 0


class _Named:
    """A view of a session whose queries have names of their own."""

    def __init__(self, harness: SessionHarness, number: int) -> None:
        self._harness, self._number, self.session = harness, number, self

    def add(self, sql: str, *, name: str, sink: str) -> None:
        self._harness.session.add(sql, name=f"{self._number}-{name}", sink=sink)


def test_add_is_refused_when_no_batch_makes_room_in_time(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(max_waiting_changes=1, change_delay=LONG, change_timeout=0.01)
    harness.session.start()
    add_queries(harness, 1)
    with pytest.raises(QueueFullError, match=r"no room for 0.01 s"):
        harness.session.add(COUNT.format(7))
    harness.session.stop()


def test_close_ends_a_call_that_waits_for_room(open_harness: Callable[..., SessionHarness]):
    harness = open_harness(max_waiting_changes=1, change_delay=LONG, change_timeout=LONG)
    harness.session.start()
    add_queries(harness, 1)
    errors = []

    def add() -> None:
        try:
            harness.session.add(COUNT.format(7))
        except SessionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=add)
    thread.start()
    harness.session.close()
    thread.join(60)
    assert errors == ["the session is closed"]


def test_invalid_options_are_refused(open_harness: Callable[..., SessionHarness]):
    with pytest.raises(SessionError, match="invalid changes_per_batch"):
        open_harness(changes_per_batch=0)
