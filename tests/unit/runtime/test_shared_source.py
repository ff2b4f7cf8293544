"""Several streams over one source object: each stream reads every row once, also after a crash and in any declaration order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.connectors import Source
from headrace.errors import CheckpointError, HeadraceError
from headrace.storage.fault_points import install_fault_hook
from support.in_process_driver import InProcessDriver, small_stream

DAY = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "n BIGINT, time TIMESTAMP"
STEPS = ["log", "logged", "planned", "stage one", "stage two", "commit", "committed"]
ORDERS = [("x", "y"), ("y", "x")]


class CrashError(BaseException):
    """Raised by the fault hook; the engine must not catch it."""


class Crash:
    """A fault hook that raises once, at the step `at`."""

    at = ""

    def __call__(self, step: str) -> None:
        if step == self.at:
            self.at = ""
            raise CrashError(step)


class Feed:
    """A kind of source: `open` creates the source object of a session, and `advance` makes 10 more rows available to it."""

    column = "n"

    def __init__(self, directory: Path) -> None:
        self.directory, self.count, self.source = directory, 0, None

    def open(self) -> Source:
        raise NotImplementedError

    def rows(self) -> pa.Table:
        self.count += 10
        numbers = range(self.count - 10, self.count)
        return pa.table({"n": list(numbers), "time": [DAY + timedelta(seconds=number) for number in numbers]})

    def advance(self) -> None:
        raise NotImplementedError

    def expected(self) -> list[Any]:
        return list(range(self.count))

    def close(self) -> None:
        pass


class MemoryFeed(Feed):
    def open(self) -> Source:
        self.source = hr.MemorySource(COLUMNS)
        return self.source

    def advance(self) -> None:
        self.source.append(self.rows())


class FileFeed(Feed):
    def open(self) -> Source:
        self.directory.mkdir(exist_ok=True)
        return hr.FileSource(self.directory, schema=COLUMNS)

    def advance(self) -> None:
        table = self.rows()
        pa.parquet.write_table(table, self.directory / ".new")
        (self.directory / ".new").rename(self.directory / f"{self.count:03d}.parquet")


class RateFeed(Feed):
    column = "time"

    def open(self) -> Source:
        return hr.RateSource(1, start_time=DAY, clock=lambda: 1_000.0 + self.count)

    def advance(self) -> None:
        self.count += 10

    def expected(self) -> list[Any]:
        return [DAY + timedelta(seconds=number) for number in range(self.count)]


class TcpFeed(Feed):
    column = "time"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.driver = InProcessDriver(small_stream("fields"))
        self.driver.request("status", stream="fields", group="judge")
        self.driver.start(10)

    def open(self) -> Source:
        return hr.TcpSource(self.driver.address, "fields")

    def advance(self) -> None:
        self.count += 10
        self.driver.advance(1)

    def expected(self) -> list[Any]:
        produced = self.driver.request("status", stream="fields", group="judge")["produced"]
        tables = [self.driver.connection.read("fields", p, "judge", 0, stop) for p, stop in enumerate(produced)]
        return sorted(pa.concat_tables(tables)["time"].to_pylist())

    def close(self) -> None:
        self.driver.__exit__(None, None, None)


@pytest.fixture(params=[MemoryFeed, FileFeed, RateFeed, TcpFeed], ids=["memory", "files", "rate", "tcp"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Feed]:
    feed = request.param(tmp_path / "input")
    yield feed
    feed.close()


Open = Callable[..., hr.Session]


@pytest.fixture
def crash() -> Crash:
    return Crash()


@pytest.fixture
def session_over(tmp_path: Path, crash: Crash) -> Iterator[Open]:
    """Open a session on the test's checkpoint, with streams over one source; the fixture closes all sessions after the test."""
    opened: list[hr.Session] = []

    def open_session(source: Source, streams: Sequence[str], **options: Any) -> hr.Session:
        if opened:
            opened[-1]._checkpoint.close()  # as a killed process does
        install_fault_hook(tmp_path / "checkpoint", crash)
        opened.append(hr.Session(tmp_path / "checkpoint", backend="local", **options))
        for name in streams:
            opened[-1].create_stream(name, source, time="time")
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def add_query(session: hr.Session, stream: str, column: str = "n") -> None:
    if session.find(stream) is None:
        session.add(f"SELECT {column} FROM {stream}", name=stream)


def read_values(session: hr.Session, name: str) -> list[Any]:
    return sorted(session.query(name).results().column(0).to_pylist())


@pytest.mark.parametrize("order", ORDERS)
def test_both_streams_read_every_row_once(feed: Feed, session_over: Open, order: Sequence[str]):
    session = session_over(feed.open(), order)
    for stream in ("x", "y"):
        add_query(session, stream, feed.column)
    for _ in range(3):
        feed.advance()
        session.advance()
    assert (read_values(session, "x"), read_values(session, "y")) == (feed.expected(), feed.expected())
    assert [session.streams()[stream]["rows"] for stream in ("x", "y")] == [30, 30]


# Rows 0–9 | 10–19 | 20–29      crash in batch 1 or 2; after it, the streams are declared in the other order


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_both_streams_read_every_row_once_after_a_crash(feed: Feed, session_over: Open, crash: Crash, step: str, batch: int):
    session = session_over(feed.open(), ["x", "y"], rows_per_batch=7)
    for number in (1, 2):
        for stream in ("x", "y"):
            add_query(session, stream, feed.column)
        feed.advance()
        if number == batch:
            crash.at = step
            with pytest.raises(CrashError):
                session.advance()
            session = session_over(feed.open(), ["y", "x"], rows_per_batch=7)
    for stream in ("x", "y"):
        add_query(session, stream, feed.column)
    feed.advance()
    session.drain()
    assert (read_values(session, "x"), read_values(session, "y")) == (feed.expected(), feed.expected())
    session = session_over(feed.open(), ["x", "y"])
    feed.advance()
    session.drain()
    assert (read_values(session, "x"), read_values(session, "y")) == (feed.expected(), feed.expected())


def test_a_join_of_two_streams_over_one_source(session_over: Open):
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ("x", "y"))
    joined = session.add("SELECT a.n FROM TUMBLE(x, '5 seconds') a JOIN TUMBLE(y, '5 seconds') b ON a.n = b.n")
    session.advance()
    source.append([{"n": n, "time": DAY + timedelta(seconds=n)} for n in range(10)])
    session.drain()
    assert sorted(joined.results()["n"].to_pylist()) == list(range(10))


def test_rows_appended_before_and_between_the_declarations_reach_both_streams(session_over: Open):
    source = hr.MemorySource(COLUMNS)
    source.append([{"n": 0, "time": DAY}])
    session = session_over(source, ["x"])
    source.append([{"n": 1, "time": DAY}])
    session.create_stream("y", source, time="time")
    for stream in ("x", "y"):
        add_query(session, stream)
    session.advance()
    assert (read_values(session, "x"), read_values(session, "y")) == ([0, 1], [0, 1])


@pytest.mark.parametrize("feed", [FileFeed, RateFeed], indirect=True, ids=["files", "rate"])
def test_a_later_stream_starts_with_the_oldest_row_that_the_source_retains(feed: Feed, session_over: Open):
    source = feed.open()
    session = session_over(source, ["x"])
    add_query(session, "x", feed.column)
    feed.advance()
    session.advance()
    session.create_stream("y", source, time="time")
    add_query(session, "y", feed.column)
    feed.advance()
    session.drain()
    assert (read_values(session, "x"), read_values(session, "y")) == (feed.expected(), feed.expected())


@pytest.mark.parametrize("restart", [False, True])
def test_a_later_stream_over_a_memory_source_starts_with_the_rows_that_no_stream_has_read(session_over: Open, restart: bool):
    """A memory source deletes rows that every stream has read."""
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x"])
    add_query(session, "x")
    for n in range(3):
        source.append([{"n": n, "time": DAY}])
        session.advance()
    if restart:
        source = hr.MemorySource(COLUMNS)
        session = session_over(source, ["x"])
    source.append([{"n": 3, "time": DAY}])
    session.create_stream("y", source, time="time")
    add_query(session, "y")
    source.append([{"n": 4, "time": DAY}])
    session.drain()
    assert (read_values(session, "x"), read_values(session, "y")) == ([0, 1, 2, 3, 4], [3, 4])


def test_rows_are_kept_for_a_stream_that_is_not_declared_after_a_restart(session_over: Open):
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x", "y"])
    for stream in ("x", "y"):
        add_query(session, stream)
    source.append([{"n": 0, "time": DAY}])
    session.advance()
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x"])
    for n in (1, 2, 3):
        source.append([{"n": n, "time": DAY}])
        session.advance()
    assert (read_values(session, "x"), read_values(session, "y")) == ([0, 1, 2, 3], [0])
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["y", "x"])
    source.append([{"n": 4, "time": DAY}])
    session.drain()
    assert (read_values(session, "x"), read_values(session, "y")) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_rows_that_both_streams_have_read_are_deleted(session_over: Open, tmp_path: Path):
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x", "y"])
    for n in range(5):
        source.append([{"n": n, "time": DAY}])
        session.advance()
    assert [path.name.partition("-")[0] for path in (tmp_path / "checkpoint" / "sources").glob("*/*.arrow")] == ["00000004"]


# Refusals: the checkpoint has other declarations of the streams


def test_streams_that_shared_a_source_must_share_it_after_a_restart(session_over: Open):
    session = session_over(hr.MemorySource(COLUMNS), ["x", "y"])
    add_query(session, "x")
    session.advance()
    for first, second in ORDERS:
        session = session_over(hr.MemorySource(COLUMNS), [first])
        with pytest.raises(CheckpointError) as caught:
            session.create_stream(second, hr.MemorySource(COLUMNS), time="time")
        assert f"streams '{second}' and '{first}' share one source in this checkpoint" in str(caught.value)
        assert "hint: pass the same source object to both" in str(caught.value)


def test_streams_with_separate_sources_need_separate_sources_after_a_restart(session_over: Open):
    session = session_over(hr.MemorySource(COLUMNS), ["x"])
    session.create_stream("y", hr.MemorySource(COLUMNS), time="time")
    add_query(session, "x")
    session.advance()
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x"])
    with pytest.raises(CheckpointError) as caught:
        session.create_stream("y", source, time="time")
    assert "stream 'y' has a source of its own in this checkpoint" in str(caught.value)
    assert "hint: make a second source object for it" in str(caught.value)
    session.create_stream("y", hr.MemorySource(COLUMNS), time="time")


def test_a_new_stream_cannot_use_the_source_of_a_recovered_stream_that_is_declared_later(session_over: Open):
    session = session_over(hr.MemorySource(COLUMNS), ["x"])
    add_query(session, "x")
    session.advance()
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["y"])
    with pytest.raises(CheckpointError, match="or declare stream 'x' before stream 'y'"):
        session.create_stream("x", source, time="time")
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x", "z"])
    assert list(session.streams()) == ["x", "z"]


def test_a_refused_declaration_does_not_bind_the_source(session_over: Open):
    source = hr.MemorySource(COLUMNS)
    session = session_over(source, ["x"])
    with pytest.raises(HeadraceError, match="nope"):
        session.create_stream("y", source, time="nope")
    other_source = hr.MemorySource(COLUMNS)
    session.create_stream("y", other_source, time="time")
    for stream in ("x", "y"):
        add_query(session, stream)
    source.append([{"n": 1, "time": DAY}])
    other_source.append([{"n": 2, "time": DAY}])
    session.advance()
    assert (read_values(session, "x"), read_values(session, "y")) == ([1], [2])
