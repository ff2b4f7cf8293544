"""Calls in any order and from any thread: drain, remove, wait, stream, start and stop; names and their case."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from lives import DAY, Life, columns, rows

import headrace as hr
from headrace.errors import HeadraceError, NameTakenError, NotFoundError, SessionError, SourceError
from headrace.storage import result_files

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"
BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])


# Drain


@BACKENDS
def test_rows_after_a_drain_are_late(begin, backend: str):
    #   rows  1 | drain | 2  12 | drain | drain       no window is emitted twice
    life = begin(backend=backend)
    query = life.session.add(TOTAL)
    life.tick(1)
    life.session.drain()
    assert columns(query, "total") == [1]
    life.tick(2, 12)
    assert query.late == {"s": 2}
    life.session.drain()
    life.session.drain()
    assert columns(query, "total") == [1]


@BACKENDS
def test_a_drained_stream_still_gives_rows_to_stateless_queries(begin, backend: str):
    life = begin(backend=backend)
    query = life.session.add("SELECT n FROM s")
    life.tick(1)
    life.session.drain()
    life.tick(2, n=2)
    assert columns(query, "n") == [1, 2]


def test_a_drain_holds_after_a_restart(life: Life):
    life.session.add(TOTAL, name="total")
    life.tick(1)
    life.session.drain()
    life.again()
    life.tick(2)
    life.session.drain()
    assert columns(life.session.query("total"), "total") == [1]


def test_a_drain_of_nothing(life: Life):
    life.session.drain()
    query = life.session.add(TOTAL)
    life.session.drain()
    assert query.status == "live"


# Removal


def test_a_query_removed_while_its_adding_batch_runs_is_removed(begin):
    """The other thread removes it between log and commit of the batch that adds it."""
    life = begin("threads")
    reached, go_on = threading.Event(), threading.Event()

    def pause(step: str) -> None:
        if step == "planned":
            reached.set()
            assert go_on.wait(10)

    life.session._checkpoint.fault = pause
    query = life.session.add("SELECT n FROM s", name="q")
    life.give(1)
    worker = threading.Thread(target=life.session.advance)
    worker.start()
    assert reached.wait(10)
    life.session.remove("q")
    go_on.set()
    worker.join(10)
    life.session._checkpoint.fault = lambda _: None
    life.tick(2, n=2)
    life.tick(3, n=3)
    assert query.status == "removed"
    assert set(columns(query, "n")) <= {1}
    assert life.session.queries() == []
    assert "0 live" in life.session.explain()
    with pytest.raises(NotFoundError):
        life.session.remove("q")


def test_a_name_removed_while_its_adding_batch_runs_is_free(begin):
    life = begin("threads")
    steps: list[str] = []

    def change(step: str) -> None:
        if step == "planned" and not steps:
            steps.append(step)
            life.session.remove("q")
            life.session.add("SELECT n + 1 AS m FROM s", name="q")

    life.session._checkpoint.fault = change
    old = life.session.add("SELECT n FROM s", name="q")
    life.tick(1)
    life.tick(2)
    assert columns(life.session.query("q"), "m") == [2]
    assert old.status == "removed"


def test_wait_live_on_a_removed_query_raises(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    life.session.remove("q")
    with pytest.raises(SessionError, match="'q' was removed"):
        query.wait_live(5)


def test_wait_live_wakes_up_when_the_query_is_removed(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    timer = threading.Timer(0.1, life.session.remove, ["q"])
    timer.start()
    begun = time.monotonic()
    with pytest.raises(SessionError, match="'q' was removed"):
        query.wait_live(20)
    assert time.monotonic() - begun < 10
    timer.join()


def test_wait_live_says_when_nothing_runs(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    with pytest.raises(SessionError, match="not live after") as caught:
        query.wait_live(0.05)
    assert "advance()" in caught.value.hint
    life.session.advance()
    assert query.wait_live(0.05) is query
    assert query.deployment_seconds > 0


# Streams of results


def test_a_stream_of_results_yields_each_batch_and_ends_with_the_query(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    found: list[list[int]] = []
    reader = threading.Thread(target=lambda: found.extend(table["n"].to_pylist() for table in query.stream(timeout=20)))
    reader.start()
    for second in (1, 2, 3):
        life.tick(second, n=second)
    life.session.remove("q")
    life.tick(4)
    reader.join(10)
    assert not reader.is_alive()
    assert found == [[1], [2], [3]]


def test_a_stream_of_results_begins_at_the_beginning_and_may_time_out(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    life.tick(1, n=1)
    life.tick(2, n=2)
    assert [table["n"].to_pylist() for table in query.stream(timeout=0.05)] == [[1], [2]]


def test_a_stream_of_results_has_a_batch_that_ends_while_it_reads(life: Life, monkeypatch):
    query = life.session.add("SELECT n FROM s", name="q")
    life.tick(1, n=1)
    before, late = query._read_rows, [2]

    def slowly(after: int):
        yield from before(after)
        if late:
            life.tick(late.pop(), n=2)

    monkeypatch.setattr(query, "_read_rows", slowly)
    assert [table["n"].to_pylist() for table in query.stream(timeout=0.05)] == [[1], [2]]


def test_results_are_looked_for_from_the_first_batch_of_a_query_on(life: Life, monkeypatch):
    life.session.add("SELECT n FROM s", name="early")
    for second in range(5):
        life.tick(second)
    query = life.session.add("SELECT n FROM s", name="late")
    assert query.first_batch == 5
    life.tick(6, n=6)
    loaded = []
    load = result_files.open_result_file
    monkeypatch.setattr(result_files, "open_result_file", lambda path: loaded.append(path.name) or load(path))
    assert columns(query, "n") == [6]
    assert {int(name.partition("-")[0]) for name in loaded} == {5}
    life.again()
    assert life.session.query("late").first_batch == 5


def test_a_stream_of_results_ends_when_the_session_is_closed(life: Life):
    query = life.session.add("SELECT n FROM s", name="q")
    life.tick(1)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(table.num_rows for table in query.stream(timeout=20)))
    reader.start()
    time.sleep(0.05)
    life.session.close()
    reader.join(10)
    assert not reader.is_alive()
    assert found == [1]


# In the background


def until(condition, timeout: float = 10) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def test_a_session_runs_in_the_background(life: Life):
    life.session.start()
    with pytest.raises(SessionError, match="already running"):
        life.session.start()
    query = life.session.add("SELECT n FROM s", name="q").wait_live(10)
    life.give(1, n=7)
    until(lambda: columns(query, "n") == [7])
    life.session.stop()
    life.give(2, n=8)
    time.sleep(0.05)
    assert columns(query, "n") == [7]
    life.session.start()
    until(lambda: columns(query, "n") == [7, 8])
    life.session.stop()


def test_an_error_in_the_background_surfaces_and_can_be_overcome(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    with hr.Session(tmp_path / "c", backend="local") as session:
        session.create_stream("f", hr.FileSource(folder, schema="n INT, time TIMESTAMP"), time="time")
        query = session.add("SELECT n FROM f")
        session.start()
        query.wait_live(10)
        (folder / "1.arrow.tmp").write_bytes(b"rubbish")
        (folder / "1.arrow.tmp").rename(folder / "1.arrow")
        with pytest.raises(SessionError, match="stopped because of an error") as caught:
            list(query.stream(timeout=10))
        assert "1.arrow" in caught.value.detail
        with pytest.raises(SessionError, match="stopped because of an error"):
            session.advance()
        with pytest.raises(SourceError, match=r"1\.arrow"):
            session.stop()
        (folder / "1.arrow").unlink()
        (folder / "2.json").write_text('{"n": 5, "time": "2024-01-01T00:00:01Z"}\n')
        session.start()
        until(lambda: columns(query, "n") == [5])
        session.stop()


def test_closing_raises_what_went_wrong_and_still_closes(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    session = hr.Session(tmp_path / "c", backend="local")
    session.create_stream("f", hr.FileSource(folder, schema="n INT, time TIMESTAMP"), time="time")
    (folder / "1.arrow").write_bytes(b"rubbish")
    session.start()
    until(lambda: session._error is not None)
    with pytest.raises(SourceError):
        session.close()
    assert session.is_closed
    hr.Session(tmp_path / "c", backend="local").close()


def test_queries_come_and_go_from_many_threads(life: Life):
    life.session.start()
    steady = life.session.add("SELECT n FROM s", name="steady").wait_live(10)
    problems: list[Exception] = []

    def churn(thread: int) -> None:
        try:
            for number in range(8):
                query = life.session.add(f"SELECT n FROM s WHERE n > {number}", name=f"q{thread}-{number}")
                if number % 2:
                    query.wait_live(20)
                query.remove()
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=churn, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for second in range(10):
        life.give(second, n=second)
        time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    until(lambda: len(columns(steady, "n")) == 10)
    life.session.stop()
    life.session.advance()
    assert problems == []
    assert columns(steady, "n") == list(range(10))
    assert [query.name for query in life.session.queries()] == ["steady"]


# Names


@BACKENDS
def test_the_event_time_column_may_be_named_in_another_case(tmp_path: Path, backend: str):
    with hr.Session(tmp_path / "c", backend=backend) as session:
        source = hr.MemorySource("N INT, EventTime TIMESTAMP")
        session.create_stream("s", source, time="eventtime")
        total = session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '5 seconds')")
        spark = session.add("SELECT SUM(n) AS total FROM s GROUP BY window(EVENTTIME, '5 seconds')")
        every = session.add("SELECT n, EVENTTIME AS t FROM s")
        source.append([{"n": 3, "EventTime": DAY}, {"n": 4, "eventtime": None}])
        session.advance()
        session.drain()
        assert columns(total, "total") == columns(spark, "total") == [3]
        assert columns(every, "n") == [3]
        assert session.streams()["s"]["untimed"] == 1


def test_the_event_time_column_may_be_named_in_another_case_after_a_restart(tmp_path: Path):
    for time_column in ("eventtime", "EVENTTIME", "EventTime"):
        with hr.Session(tmp_path / "c", backend="local") as session:
            session.create_stream("s", hr.MemorySource("n INT, EventTime TIMESTAMP"), time=time_column)
            session.add("SELECT n FROM s", name="q")
            session.advance()


def test_streams_that_differ_in_case_only_are_refused(life: Life):
    with pytest.raises(NameTakenError, match="stream 's' already exists"):
        life.session.create_stream("S", hr.MemorySource("n INT, time TIMESTAMP"), time="time")
    assert list(life.session.streams()) == ["s"]


def test_a_stream_refused_leaves_its_source_free(life: Life):
    source = hr.MemorySource("n INT, time TIMESTAMP")
    source.append([{"n": 1, "time": DAY}])
    for bad in ({"name": "s", "time": "time"}, {"name": "t", "time": "nope"}, {"name": "t", "time": "time", "watermark": "soon"}):
        name = bad.pop("name")
        with pytest.raises(HeadraceError):
            life.session.create_stream(name, source, **bad)
    life.session.create_stream("t", source, time="time")
    query = life.session.add("SELECT n FROM t")
    life.session.advance()
    assert columns(query, "n") == [1]


def test_a_refused_stream_does_not_cost_rows_of_a_stream_of_that_name(life: Life):
    """`s` refused twice over must not touch what `s` has."""
    query = life.session.add("SELECT n FROM s")
    other = hr.MemorySource("k INT, n BIGINT, time TIMESTAMP")
    other.append(rows(1, n=100))
    with pytest.raises(NameTakenError):
        life.session.create_stream("s", other, time="time")
    life.tick(2, n=2)
    assert columns(query, "n") == [2]


def test_queries_get_names_of_their_own(life: Life):
    names = [life.session.add("SELECT n FROM s").name for _ in range(3)]
    taken = life.session.add("SELECT n FROM s", name=f"q{len(names) + 2}")
    names.append(life.session.add("SELECT n FROM s").name)
    assert len({*names, taken.name}) == 5


@pytest.mark.parametrize("name", ["", "  ", 7])
def test_a_query_needs_a_name_one_can_use(life: Life, name: object):
    with pytest.raises(HeadraceError):
        life.session.add("SELECT n FROM s", name=name)


def test_what_is_not_a_source_is_refused(life: Life):
    with pytest.raises(HeadraceError, match="'list' is not a source"):
        life.session.create_stream("t", [], time="time")


def test_an_unknown_back_end_is_refused(tmp_path: Path):
    with pytest.raises(SessionError, match="unknown back-end 'flink'"):
        hr.Session(tmp_path / "c", backend="flink")
    hr.Session(tmp_path / "c", backend="local").close()


def test_what_batches_did_is_remembered_but_not_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.session.DETAILED_BATCHES", 2)
    with hr.Session(backend="local") as session:
        source = hr.MemorySource("x INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT x FROM s")
        session.advance()
        for second in range(5):
            source.append([{"x": second, "time": f"2026-01-01T00:00:0{second}Z"}])
            session.advance()
        done = session.done()
        assert [one.report.rows for one in done] == [0, 1, 1, 1, 1, 1]
        assert [dict(one.report.emitted_by) for one in done[-3:]] == [{}, {query.id: 1}, {query.id: 1}]
        assert done[0].at <= done[-1].at
        assert all(one.seconds > 0 for one in done)
