"""Sessions: drain, remove, wait_live, stream, start and stop, from several threads; names of streams, queries and columns."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from lives import DAY, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.errors import CheckpointError, HeadraceError, NameTakenError, NotFoundError, SessionError
from headrace.storage.fault_points import install_fault_hook

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"
BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])


# Drain


@BACKENDS
def test_rows_after_a_drain_are_late(open_harness, backend: str):
    #   rows  1 | drain | 2  12 | drain | drain       no window is emitted twice
    harness = open_harness(backend=backend)
    query = harness.session.add(TOTAL)
    harness.tick(1)
    harness.session.drain()
    assert read_columns(query, "total") == [1]
    harness.tick(2, 12)
    assert query.late == {"s": 2}
    harness.session.drain()
    harness.session.drain()
    assert read_columns(query, "total") == [1]


@BACKENDS
def test_stateless_queries_still_get_rows_after_a_drain(open_harness, backend: str):
    harness = open_harness(backend=backend)
    query = harness.session.add("SELECT n FROM s")
    harness.tick(1)
    harness.session.drain()
    harness.tick(2, n=2)
    assert read_columns(query, "n") == [1, 2]


def test_rows_after_a_drain_and_a_restart_are_late(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.tick(1)
    harness.session.drain()
    harness.restart()
    harness.tick(2)
    harness.session.drain()
    assert read_columns(harness.session.query("total"), "total") == [1]


def test_a_drain_without_rows_makes_queries_live(harness: SessionHarness):
    harness.session.drain()
    query = harness.session.add(TOTAL)
    harness.session.drain()
    assert query.status == "live"


# Removal


def test_a_query_can_be_removed_while_the_batch_that_adds_it_runs(open_harness):
    """Another thread removes the query between the log and the commit of the batch that adds it."""
    harness = open_harness("threads")
    is_planned, may_continue = threading.Event(), threading.Event()

    def pause(step: str) -> None:
        if step == "planned":
            is_planned.set()
            assert may_continue.wait(10)

    install_fault_hook(harness.directory, pause)
    query = harness.session.add("SELECT n FROM s", name="q")
    harness.append_rows(1)
    worker = threading.Thread(target=harness.session.advance)
    worker.start()
    assert is_planned.wait(10)
    harness.session.remove("q")
    may_continue.set()
    worker.join(10)
    install_fault_hook(harness.directory, None)
    harness.tick(2, n=2)
    harness.tick(3, n=3)
    assert query.status == "removed"
    assert set(read_columns(query, "n")) <= {1}
    assert harness.session.queries() == []
    assert "0 live" in harness.session.explain()
    with pytest.raises(NotFoundError):
        harness.session.remove("q")


def test_the_name_of_a_query_removed_while_its_first_batch_runs_is_free(open_harness):
    harness = open_harness("threads")
    steps: list[str] = []

    def change(step: str) -> None:
        if step == "planned" and not steps:
            steps.append(step)
            harness.session.remove("q")
            harness.session.add("SELECT n + 1 AS m FROM s", name="q")

    install_fault_hook(harness.directory, change)
    old = harness.session.add("SELECT n FROM s", name="q")
    harness.tick(1)
    harness.tick(2)
    assert read_columns(harness.session.query("q"), "m") == [2]
    assert old.status == "removed"


def test_wait_live_on_a_removed_query_raises(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    harness.session.remove("q")
    with pytest.raises(SessionError, match="'q' was removed"):
        query.wait_live(5)


def test_wait_live_raises_as_soon_as_the_query_is_removed(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    timer = threading.Timer(0.1, harness.session.remove, ["q"])
    timer.start()
    with pytest.raises(SessionError, match="'q' was removed"):  # not: "is not live after"
        query.wait_live(20)
    timer.join()


def test_wait_live_times_out_with_a_hint_if_no_batch_runs(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    with pytest.raises(SessionError, match="not live after") as caught:
        query.wait_live(0.05)
    assert "advance()" in caught.value.hint
    harness.session.advance()
    assert query.wait_live(0.05) is query
    assert query.deployment_seconds > 0


# Query.stream


def test_stream_yields_each_batch_and_ends_when_the_query_is_removed(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    tables: list[list[int]] = []
    reader = threading.Thread(target=lambda: tables.extend(table["n"].to_pylist() for table in query.stream(timeout=20)))
    reader.start()
    for second in (1, 2, 3):
        harness.tick(second, n=second)
    harness.session.remove("q")
    harness.tick(4)
    reader.join(10)
    assert not reader.is_alive()
    assert tables == [[1], [2], [3]]


def test_stream_starts_with_the_first_batch_and_ends_after_the_timeout(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    harness.tick(1, n=1)
    harness.tick(2, n=2)
    assert [table["n"].to_pylist() for table in query.stream(timeout=0.05)] == [[1], [2]]


def test_stream_yields_a_batch_that_is_committed_during_the_read(harness: SessionHarness, monkeypatch):
    query = harness.session.add("SELECT n FROM s", name="q")
    harness.tick(1, n=1)
    read_rows, seconds = query._read_rows, [2]

    def read_slowly(after: int):
        yield from read_rows(after)
        if seconds:
            harness.tick(seconds.pop(), n=2)

    monkeypatch.setattr(query, "_read_rows", read_slowly)
    assert [table["n"].to_pylist() for table in query.stream(timeout=0.05)] == [[1], [2]]


def test_results_reads_no_files_from_before_the_first_batch_of_the_query(harness: SessionHarness, monkeypatch):
    harness.session.add("SELECT n FROM s", name="early")
    for second in range(5):
        harness.tick(second)
    query = harness.session.add("SELECT n FROM s", name="late")
    assert query.first_batch == 5
    harness.tick(6, n=6)
    loaded = []
    reader = harness.session.result_reader
    load = reader._open_file
    monkeypatch.setattr(reader, "_open_file", lambda file: loaded.append(file.first_batch) or load(file))
    assert read_columns(query, "n") == [6]
    assert set(loaded) == {5}
    harness.restart()
    assert harness.session.query("late").first_batch == 5


def test_stream_ends_when_the_session_is_closed(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s", name="q")
    harness.tick(1)
    row_counts: list[int] = []
    reader = threading.Thread(target=lambda: row_counts.extend(table.num_rows for table in query.stream(timeout=20)))
    reader.start()
    time.sleep(0.05)
    harness.session.close()
    reader.join(10)
    assert not reader.is_alive()
    assert row_counts == [1]


# start and stop


def wait_until(condition, timeout: float = 10) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def test_a_session_runs_in_the_background(harness: SessionHarness):
    harness.session.start()
    with pytest.raises(SessionError, match="already running"):
        harness.session.start()
    query = harness.session.add("SELECT n FROM s", name="q").wait_live(10)
    harness.append_rows(1, n=7)
    wait_until(lambda: read_columns(query, "n") == [7])
    harness.session.stop()
    harness.append_rows(2, n=8)
    time.sleep(0.05)
    assert read_columns(query, "n") == [7]
    harness.session.start()
    wait_until(lambda: read_columns(query, "n") == [7, 8])
    harness.session.stop()


def test_a_degraded_stream_is_read_again_in_the_background_after_a_repair(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    with hr.Session(tmp_path / "c", backend="local") as session:
        session.create_stream("f", hr.FileSource(folder, schema="n INT, time TIMESTAMP"), time="time")
        query = session.add("SELECT n FROM f")
        session.start()
        query.wait_live(10)
        (folder / "1.arrow.tmp").write_bytes(b"rubbish")
        (folder / "1.arrow.tmp").rename(folder / "1.arrow")
        wait_until(lambda: session.streams()["f"]["status"] == "degraded")
        assert "1.arrow" in session.streams()["f"]["error"]
        (folder / "1.arrow").unlink()
        (folder / "2.json").write_text('{"n": 5, "time": "2024-01-01T00:00:01Z"}\n')
        wait_until(lambda: read_columns(query, "n") == [5])
        wait_until(lambda: session.streams()["f"]["status"] == "ok")
        session.stop()


def test_close_raises_the_error_of_the_background_thread_and_closes(tmp_path: Path):
    def crash(step: str) -> None:
        raise CheckpointError(step)

    session = hr.Session(tmp_path / "c", backend="local")
    session.create_stream("m", hr.MemorySource("n INT, time TIMESTAMP"), time="time")
    session.add("SELECT n FROM m")
    install_fault_hook(tmp_path / "c", crash)
    session.start()
    wait_until(lambda: session._loop.error is not None)
    install_fault_hook(tmp_path / "c", None)
    with pytest.raises(CheckpointError):
        session.close()
    assert session.is_closed
    hr.Session(tmp_path / "c", backend="local").close()


def test_several_threads_add_and_remove_queries_at_the_same_time(harness: SessionHarness):
    harness.session.start()
    steady = harness.session.add("SELECT n FROM s", name="steady").wait_live(10)
    errors: list[Exception] = []

    def churn(thread: int) -> None:
        try:
            for number in range(8):
                query = harness.session.add(f"SELECT n FROM s WHERE n > {number}", name=f"q{thread}-{number}")
                if number % 2:
                    query.wait_live(20)
                query.remove()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for second in range(10):
        harness.append_rows(second, n=second)
        time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    wait_until(lambda: len(read_columns(steady, "n")) == 10)
    harness.session.stop()
    harness.session.advance()
    assert errors == []
    assert read_columns(steady, "n") == list(range(10))
    assert [query.name for query in harness.session.queries()] == ["steady"]


# Names


@BACKENDS
def test_the_event_time_column_may_be_named_in_another_case(tmp_path: Path, backend: str):
    with hr.Session(tmp_path / "c", backend=backend) as session:
        source = hr.MemorySource("N INT, EventTime TIMESTAMP")
        session.create_stream("s", source, time="eventtime")
        total = session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '5 seconds')")
        spark = session.add("SELECT SUM(n) AS total FROM s GROUP BY window(EVENTTIME, '5 seconds')")
        all_rows = session.add("SELECT n, EVENTTIME AS t FROM s")
        source.append([{"n": 3, "EventTime": DAY}, {"n": 4, "eventtime": None}])
        session.advance()
        session.drain()
        assert read_columns(total, "total") == read_columns(spark, "total") == [3]
        assert read_columns(all_rows, "n") == [3]
        assert session.streams()["s"]["untimed"] == 1


def test_the_event_time_column_may_be_named_in_another_case_after_a_restart(tmp_path: Path):
    for time_column in ("eventtime", "EVENTTIME", "EventTime"):
        with hr.Session(tmp_path / "c", backend="local") as session:
            session.create_stream("s", hr.MemorySource("n INT, EventTime TIMESTAMP"), time=time_column)
            session.add("SELECT n FROM s", name="q")
            session.advance()


def test_streams_that_differ_in_case_only_are_refused(harness: SessionHarness):
    with pytest.raises(NameTakenError, match="stream 's' already exists"):
        harness.session.create_stream("S", hr.MemorySource("n INT, time TIMESTAMP"), time="time")
    assert list(harness.session.streams()) == ["s"]


def test_the_source_of_a_refused_stream_can_be_used_again(harness: SessionHarness):
    source = hr.MemorySource("n INT, time TIMESTAMP")
    source.append([{"n": 1, "time": DAY}])
    for bad in ({"name": "s", "time": "time"}, {"name": "t", "time": "nope"}, {"name": "t", "time": "time", "watermark": "soon"}):
        name = bad.pop("name")
        with pytest.raises(HeadraceError):
            harness.session.create_stream(name, source, **bad)
    harness.session.create_stream("t", source, time="time")
    query = harness.session.add("SELECT n FROM t")
    harness.session.advance()
    assert read_columns(query, "n") == [1]


def test_a_refused_duplicate_stream_adds_no_rows_to_the_existing_stream(harness: SessionHarness):
    """The rows of the refused source must not reach stream `s`."""
    query = harness.session.add("SELECT n FROM s")
    other = hr.MemorySource("k INT, n BIGINT, time TIMESTAMP")
    other.append(make_rows(1, n=100))
    with pytest.raises(NameTakenError):
        harness.session.create_stream("s", other, time="time")
    harness.tick(2, n=2)
    assert read_columns(query, "n") == [2]


def test_generated_query_names_are_unique(harness: SessionHarness):
    names = [harness.session.add("SELECT n FROM s").name for _ in range(3)]
    taken = harness.session.add("SELECT n FROM s", name=f"q{len(names) + 2}")
    names.append(harness.session.add("SELECT n FROM s").name)
    assert len({*names, taken.name}) == 5


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_an_invalid_query_name_is_refused(harness: SessionHarness, name: object):
    with pytest.raises(HeadraceError):
        harness.session.add("SELECT n FROM s", name=name)


def test_create_stream_refuses_objects_that_are_not_sources(harness: SessionHarness):
    with pytest.raises(HeadraceError, match="'list' is not a source"):
        harness.session.create_stream("t", [], time="time")


def test_an_unknown_back_end_is_refused(tmp_path: Path):
    with pytest.raises(SessionError, match="unknown back-end 'flink'"):
        hr.Session(tmp_path / "c", backend="flink")
    hr.Session(tmp_path / "c", backend="local").close()


def test_done_keeps_per_query_counts_of_the_latest_batches_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.runtime.metrics.DETAILED_BATCHES", 2)
    with hr.Session(backend="local") as session:
        source = hr.MemorySource("x INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT x FROM s")
        session.advance()
        for second in range(5):
            source.append([{"x": second, "time": f"2026-01-01T00:00:0{second}Z"}])
            session.advance()
        batches = session.done()
        assert [batch.report.rows for batch in batches] == [0, 1, 1, 1, 1, 1]
        assert [dict(batch.report.emitted_by) for batch in batches[-3:]] == [{}, {query.id: 1}, {query.id: 1}]
        assert batches[0].at <= batches[-1].at
        assert all(batch.seconds > 0 for batch in batches)
