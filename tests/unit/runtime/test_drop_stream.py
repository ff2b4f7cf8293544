"""Dropping a stream: refused while queries read it, atomic with their removal, final after a crash; its name is free again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lives import SCHEMA, Killed, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.errors import NameTakenError, NotFoundError, SessionError, SqlError
from headrace.storage.fault_points import install_fault_hook
from headrace.storage.store import Store
from support.forgetful_disk import ForgetfulDisk

STEPS = ["log", "logged", "planned", "commit", "committed"]
JOIN = "SELECT a.n FROM TUMBLE(s, '5 seconds') a JOIN TUMBLE(t, '5 seconds') b ON a.k = b.k"
SLIDING = "SELECT a.n FROM SLIDING(s, '5 seconds') a JOIN SLIDING(t, '5 seconds') b ON a.k = b.k"
NESTED = "SELECT MAX(n) AS n FROM TUMBLE((SELECT window_end, SUM(n) AS n FROM TUMBLE(s, '1 second')), '5 seconds')"


@pytest.fixture
def two_streams(open_harness: Callable[..., SessionHarness]) -> SessionHarness:
    """A session with streams `s` and `t`, of which `t` has a query."""
    harness = open_harness()
    harness.other = hr.MemorySource(SCHEMA)
    harness.session.create_stream("t", harness.other, time="time")
    harness.session.add("SELECT n FROM t", name="of_t")
    return harness


def list_source_folders(harness: SessionHarness) -> list[str]:
    return sorted(path.name for path in (harness.directory / "sources").iterdir())


def test_a_stream_that_is_read_is_refused_with_the_names_of_the_queries(two_streams: SessionHarness):
    session = two_streams.session
    session.add("SELECT n FROM s", name="accepted")
    session.add(JOIN, name="joined")
    with pytest.raises(SessionError, match="stream 's' is read by 2 queries") as caught:
        session.drop_stream("s")
    assert caught.value.detail == "queries: accepted, joined"
    session.advance()
    with pytest.raises(SessionError, match="stream 't' is read by 2 queries"):
        session.drop_stream("t")
    assert set(session.streams()) == {"s", "t"}


def test_an_unknown_stream_is_refused(two_streams: SessionHarness):
    with pytest.raises(NotFoundError, match="stream 'u' does not exist") as caught:
        two_streams.session.drop_stream("u")
    assert caught.value.detail == "streams: s, t"
    two_streams.session.drop_stream("s")
    with pytest.raises(NotFoundError, match="stream 's' does not exist"):
        two_streams.session.drop_stream("s")


@pytest.mark.parametrize("sql", ["SELECT n FROM s", JOIN, SLIDING, NESTED, "SELECT SUM(n) AS n FROM SESSION(s, '2 seconds')"])
def test_cascade_removes_the_queries_in_the_same_batch_and_deletes_the_state(two_streams: SessionHarness, sql: str):
    session = two_streams.session
    query = session.add(sql, name="q")
    two_streams.other.append(make_rows(1, 2, n=5))
    two_streams.tick(1, 2)
    session.drop_stream("s", cascade=True)
    assert set(session.streams()) == {"t"}
    with pytest.raises(SqlError):
        session.add("SELECT n FROM s")
    session.advance()
    assert query.status == "removed"
    state = session._coordinator.state
    assert set(state.streams) == {"t"}
    assert (state.aggregation_refs, state.session_refs, state.join_buffer_refs, state.store_refs) == ((), (), (), ())
    assert list_source_folders(two_streams) == ["t"]
    two_streams.other.append(make_rows(3, n=6))
    session.drain()
    assert read_columns(session.query("of_t"), "n") == [5, 5, 6]
    two_streams.kill()
    with hr.Session(two_streams.directory, backend="local") as recovered:
        assert set(recovered.streams()) == {"t"}
        if query.emitted:  # its stream is gone, and its rows are still readable
            assert recovered.find("q").results().num_rows == query.emitted


@pytest.mark.parametrize("ending", ["removed", "failed"])
@pytest.mark.parametrize("declared_again", [False, True])
def test_results_of_an_ended_query_keep_their_columns_after_a_restart(
    two_streams: SessionHarness, ending: str, declared_again: bool
):
    """The query has emitted no row, so that its columns are in no result; a later stream of the name has other columns."""
    session = two_streams.session
    failing = ", CAST(9223372036854775807 AS BIGINT) + n AS k" if ending == "failed" else ", k"
    query = session.add(f"SELECT n{failing} FROM s WHERE n > 100", name="q")
    session.advance()
    if ending == "failed":
        two_streams.tick(1, n=101)
    columns = query.schema
    session.drop_stream("s", cascade=True)
    session.advance()
    two_streams.kill()
    with hr.Session(two_streams.directory, backend="local") as recovered:
        if declared_again:
            recovered.create_stream("s", hr.MemorySource("n STRING, k DATE, time TIMESTAMP"), time="time")
        found = recovered.find("q")
        assert found.status == ending
        assert found.results() == columns.empty_table()


def test_an_ended_query_of_an_older_checkpoint_says_why_its_columns_are_unknown(two_streams: SessionHarness):
    session = two_streams.session
    session.add("SELECT n FROM s WHERE n > 100", name="q")
    session.advance()
    session.drop_stream("s", cascade=True)
    session.advance()
    two_streams.kill()
    with hr.Session(two_streams.directory, backend="local") as recovered:
        recovered.find("q")._record.schema = None  # as the checkpoints of earlier versions
        with pytest.raises(SessionError, match="columns of query 'q' are unknown") as caught:
            recovered.find("q").results()
        assert "stream 's'" in caught.value.detail


def test_the_name_can_be_declared_again_at_once_as_a_new_stream(two_streams: SessionHarness):
    session = two_streams.session
    two_streams.tick(1, 2)
    session.drop_stream("s")
    source = hr.MemorySource("word STRING, time TIMESTAMP")
    session.create_stream("s", source, time="time", watermark="1 second")
    query = session.add("SELECT word FROM s")
    source.append([{"word": "new", "time": "2024-01-01T00:00:00Z"}])
    two_streams.append_rows(5)  # the old source buffers rows for a stream that it may get
    session.drain()
    assert read_columns(query, "word") == ["new"]
    assert (session.streams()["s"]["rows"], session.streams()["s"]["delay"]) == (1, 1_000_000)
    session.create_stream("again", two_streams.source, time="time")
    of_again = session.add("SELECT n FROM again")
    session.advance()
    assert read_columns(of_again, "n") == [1]


@pytest.mark.parametrize("step", STEPS)
def test_a_logged_drop_survives_a_crash_and_revives_nothing(two_streams: SessionHarness, step: str):
    session = two_streams.session
    two_streams.tick(1)
    two_streams.other.append(make_rows(1, n=9))
    two_streams.kill_during(lambda: (session.drop_stream("s"), session.advance()), step)
    install_fault_hook(two_streams.directory, None)
    with hr.Session(two_streams.directory, backend="local") as recovered:
        assert set(recovered.streams()) == ({"s", "t"} if step == "log" else {"t"})
        recovered.create_stream("t", hr.MemorySource(SCHEMA), time="time")
        if step == "log":
            assert recovered.streams()["s"]["status"] == "detached"
            recovered.drop_stream("s")
        recovered.advance()
        assert set(recovered.streams()) == {"t"}
        assert list_source_folders(two_streams) == ["t"]
        assert read_columns(recovered.query("of_t"), "n") == [9]
        source = hr.MemorySource(SCHEMA)
        recovered.create_stream("s", source, time="time")
        query = recovered.add("SELECT n FROM s")
        source.append(make_rows(1, n=3))
        recovered.advance()
        assert read_columns(query, "n") == [3]


@pytest.mark.parametrize("was_logged", [False, True])
def test_a_drop_that_was_acknowledged_survives_a_crash_before_any_batch(two_streams: SessionHarness, was_logged: bool):
    """Rows ─ [a batch, further rows] ─ s is dropped with its query, and that returns ─ crash ─ s is declared as a new stream."""
    session = two_streams.session
    session.add("SELECT n FROM s", name="of_s")
    two_streams.append_rows(1)
    if was_logged:
        session.advance()
        two_streams.append_rows(2)
    session.drop_stream("s", cascade=True)
    two_streams.kill()
    with hr.Session(two_streams.directory, backend="local") as recovered:
        assert "s" not in recovered.streams()
        assert [query.name for query in recovered.queries()] == ["of_t"]
        recovered.create_stream("s", hr.MemorySource("word STRING, time TIMESTAMP"), time="time")
        query = recovered.add("SELECT word FROM s")
        recovered.advance()
        assert recovered.streams()["s"]["rows"] == 0
        assert read_columns(query, "word") == []


def test_a_drop_waits_for_the_running_batch_and_for_no_other(two_streams: SessionHarness):
    session, entered, released = two_streams.session, threading.Event(), threading.Event()

    def block(step: str) -> None:
        if step == "planned":
            entered.set()
            assert released.wait(20)

    install_fault_hook(two_streams.directory, block)
    two_streams.other.append(make_rows(1, n=9))
    batch = threading.Thread(target=session.advance)
    batch.start()
    assert entered.wait(10)
    dropping = threading.Thread(target=session.drop_stream, args=("s",))
    dropping.start()
    with session._state_changed:
        assert session._state_changed.wait_for(lambda: set(session.streams()) == {"t"}, 10)
    session.add("SELECT n FROM t", name="accepted_meanwhile")
    dropping.join(0.05)
    assert dropping.is_alive()
    released.set()
    for thread in (batch, dropping):
        thread.join(10)
        assert not thread.is_alive()
    session.advance()
    assert list_source_folders(two_streams) == ["t"]


@pytest.mark.parametrize("is_final", [False, True])
def test_a_stream_is_dropped_while_a_batch_that_reads_it_is_unfinished(two_streams: SessionHarness, is_final: bool):
    """Rows of s and t are in the log entry ─ crash ─ s and its query are dropped ─ the batch runs again, with t alone."""
    two_streams.session.add("SELECT n FROM s", name="of_s")
    two_streams.session.advance()
    two_streams.append_rows(1)
    two_streams.other.append(make_rows(1, n=9))
    two_streams.kill_during(two_streams.session.drain if is_final else two_streams.session.advance, "planned")
    install_fault_hook(two_streams.directory, None)
    with hr.Session(two_streams.directory, backend="local") as recovered:
        recovered.create_stream("t", hr.MemorySource(SCHEMA), time="time")
        recovered.drop_stream("s", cascade=True)
        recovered.advance()
        assert set(recovered.streams()) == {"t"}
        assert list_source_folders(two_streams) == ["t"]
        assert [query.name for query in recovered.queries()] == ["of_t"]
        assert read_columns(recovered.query("of_t"), "n") == [9]


def test_a_stream_is_declared_again_while_a_logged_drop_is_unfinished(two_streams: SessionHarness):
    two_streams.tick(1)
    two_streams.session.drop_stream("s")
    two_streams.kill_during(two_streams.session.advance, "commit")
    install_fault_hook(two_streams.directory, None)
    with hr.Session(two_streams.directory, backend="local") as recovered:
        recovered.create_stream("s", hr.MemorySource("word STRING, time TIMESTAMP"), time="time")
        assert "word" in recovered.streams()["s"]["schema"]


def test_a_query_joins_an_unfinished_batch_that_declares_a_stream_without_a_source(two_streams: SessionHarness):
    """The first batch, which has s and t, is logged ─ crash ─ only s gets its source, and a query ─ the batch runs again."""
    two_streams.other.append(make_rows(1, n=9))
    two_streams.kill_during(two_streams.session.advance, "planned")
    install_fault_hook(two_streams.directory, None)
    with hr.Session(two_streams.directory, backend="local") as recovered:
        recovered.create_stream("s", hr.MemorySource(SCHEMA), time="time")
        recovered.add("SELECT n FROM s", name="of_s")
        recovered.advance()
        assert {name: stream["status"] for name, stream in recovered.streams().items()} == {"s": "ok", "t": "detached"}
        assert read_columns(recovered.query("of_t"), "n") == [9]


def test_a_loss_of_power_does_not_bring_the_rows_of_a_dropped_stream_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = ForgetfulDisk(tmp_path / "disk", monkeypatch)
    directory, source = disk.root / "checkpoint", hr.MemorySource(SCHEMA)
    disk.root.mkdir()
    session = hr.Session(directory, backend="local")
    session.create_stream("s", source, time="time")
    source.append(make_rows(1, n=7))
    session.drop_stream("s")
    session.advance()
    session._checkpoint.close()
    disk.cut_power()
    with hr.Session(directory, backend="local") as recovered:
        recovered.create_stream("s", hr.MemorySource(SCHEMA), time="time")
        query = recovered.add("SELECT n FROM s")
        recovered.advance()
        assert recovered.streams()["s"]["rows"] == 0
        assert read_columns(query, "n") == []


def test_a_dropped_stream_may_share_its_source_with_others(tmp_path: Path):
    source = hr.MemorySource(SCHEMA)
    with hr.Session(tmp_path, backend="local") as session:
        for name in ("x", "y"):
            session.create_stream(name, source, time="time")
        query = session.add("SELECT n FROM y")
        source.append(make_rows(1, n=1))
        session.advance()
        session.drop_stream("x")
        source.append(make_rows(2, n=2))
        session.advance()
        assert read_columns(query, "n") == [1, 2]
        session.drop_stream("y", cascade=True)
        session.advance()
        assert list((tmp_path / "sources").iterdir()) == []
        session.create_stream("x", hr.MemorySource(SCHEMA), time="time")


def test_a_degraded_stream_can_be_dropped_and_a_drain_finishes(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("k,n,time\nx,1,2024-01-01T00:00:01Z\n")
    with hr.Session(tmp_path / "c", backend="local") as session:
        session.create_stream("f", hr.FileSource(tmp_path / "in", schema=SCHEMA), time="time")
        session.add("SELECT n, k FROM f", name="q")
        session.advance()
        assert session.streams()["f"]["status"] == "degraded"
        session.drop_stream("f", cascade=True)
        session.drain()
        assert session.streams() == {}


# Attaching a source takes long: nothing waits for it


class SlowSource(hr.MemorySource):
    """A source whose attachment blocks until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(SCHEMA)
        self.entered, self.released = threading.Event(), threading.Event()

    def attach(self, stream: str, store: Store) -> None:
        self.entered.set()
        assert self.released.wait(20)
        super().attach(stream, store)


def test_everything_else_goes_on_while_a_source_is_attached(two_streams: SessionHarness):
    session, slow = two_streams.session, SlowSource()
    errors: list[Exception] = []

    def declare(name: str) -> None:
        try:
            session.create_stream(name, slow, time="time")
        except NameTakenError as error:
            errors.append(error)

    first = threading.Thread(target=declare, args=("slow",))
    first.start()
    assert slow.entered.wait(10)
    query = session.add("SELECT n FROM s")
    two_streams.tick(1, n=4)
    assert read_columns(query, "n") == [4]
    session.create_stream("u", hr.MemorySource(SCHEMA), time="time")
    with pytest.raises(NameTakenError, match="stream 'slow' already exists"):
        session.create_stream("slow", hr.MemorySource(SCHEMA), time="time")
    sibling = threading.Thread(target=declare, args=("sibling",))  # waits, since it has the same source
    sibling.start()
    slow.released.set()
    for thread in (first, sibling):
        thread.join(10)
    assert errors == []
    slow.append(make_rows(1, n=8))
    queries: list[Any] = [session.add(f"SELECT n FROM {name}") for name in ("slow", "sibling")]
    session.advance()
    assert [read_columns(query, "n") for query in queries] == [[8], [8]]


def test_a_source_that_cannot_be_attached_leaves_its_name_free(two_streams: SessionHarness):
    class BrokenSource(hr.MemorySource):
        def attach(self, stream: str, store: Store) -> None:
            raise Killed(stream)

    with pytest.raises(Killed):
        two_streams.session.create_stream("u", BrokenSource(SCHEMA), time="time")
    two_streams.session.create_stream("u", hr.MemorySource(SCHEMA), time="time")
