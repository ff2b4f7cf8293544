"""`repr` and HTML of sessions and queries: short, escaped, bounded, and safe after the end."""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import headrace as hr
from headrace.display import (
    PREVIEW_ROWS,
    QueryDisplay,
    SessionDisplay,
    StreamDisplay,
    format_session,
    render_query,
    render_session,
)

DAY = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "<script>alert('x')</script>"


class Tables(html.parser.HTMLParser):
    """The cells of all table rows of a document; checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data


@pytest.fixture
def source() -> hr.MemorySource:
    return hr.MemorySource("n INT, name STRING, time TIMESTAMP")


@pytest.fixture
def session(source: hr.MemorySource) -> Iterator[hr.Session]:
    with hr.Session(backend="local", partitions=2) as session:
        session.create_stream("s", source, time="time")
        yield session


def append(source: hr.MemorySource, *numbers: int, name: str = "a") -> None:
    source.append([{"n": n, "name": name, "time": DAY + timedelta(seconds=n)} for n in numbers])


# Sessions


def test_a_session_shows_its_state_streams_and_queries(session: hr.Session, source: hr.MemorySource):
    assert repr(session) == "<Session (open): 1 stream (s), 0 queries>"
    session.add("SELECT n\nFROM s", name="numbers")
    assert repr(session) == "<Session (open): 1 stream (s), 1 query (1 accepted)>"
    append(source, *range(1_200))
    session.advance()
    session.add("SELECT CAST(name AS INT) AS x FROM s", name="fails")
    assert repr(session) == "<Session (open, batch 0): 1 stream (s), 2 queries (1 live, 1 accepted)>"
    page = session._repr_html_()
    assert "<b>headrace session</b> (open, batch 0)" in page
    assert Tables(page).rows == [
        ["stream", "source", "rows", "latest event time"],
        ["s", "memory", "1,200", "2026-01-01T00:19:59Z"],
        ["query", "status", "rows", "SQL"],
        ["numbers", "live", "1,200", "SELECT n FROM s"],
        ["fails", "accepted", "0", "SELECT CAST(name AS INT) AS x FROM s"],
    ]
    session.start()
    assert repr(session).startswith("<Session (running, batch ")
    session.stop()
    session.drain()
    assert ", drained)" in repr(session)


def test_a_closed_session_is_shown(session: hr.Session, source: hr.MemorySource):
    query = session.add("SELECT n FROM s", name="numbers")
    append(source, 1)
    session.advance()
    session.close()
    assert repr(session) == "<Session (closed, batch 0): 1 stream (s), 1 query (1 live, session closed)>"
    assert "closed" in session._repr_html_()
    assert repr(query) == "<Query numbers (live, session closed, 1 row): SELECT n FROM s>"
    assert "the session has deleted the rows" in query._repr_html_()


def test_a_session_that_an_error_stopped_is_shown(session: hr.Session, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session._loop, "error", ValueError("broken"))
    assert repr(session).startswith("<Session (stopped by an error): ")
    monkeypatch.undo()


def test_many_streams_and_queries_are_bounded():
    streams = [StreamDisplay(f"s{n}", n, "", "memory") for n in range(500)]
    queries = [QueryDisplay(f"q{n}", "live", n, "SELECT " + "x, " * 500) for n in range(500)]
    shown = SessionDisplay("open", streams, queries)
    assert len(format_session("Session", shown)) < 300
    assert format_session("Session", shown).endswith("s19, …), 500 queries (500 live)>")
    page = render_session("session", shown)
    rows = Tables(page).rows
    assert [row[0] for row in rows if row[0].startswith("q")] == ["query", *(f"q{n}" for n in range(480, 500))]
    assert [row[0] for row in rows if row[0].startswith("s")] == ["stream", *(f"s{n}" for n in range(20))]
    assert "and 480 streams more" in page
    assert "and 480 older queries more" in page
    assert len(page) < 20_000


def test_a_session_without_anything():
    with hr.Session(backend="local") as session:
        assert repr(session) == "<Session (open): 0 streams, 0 queries>"
        assert Tables(session._repr_html_()).rows == []


# Queries


def test_a_query_shows_its_state_and_last_rows(session: hr.Session, source: hr.MemorySource):
    query = session.add("SELECT n, name\nFROM s", name="numbers")
    assert repr(query) == "<Query numbers (accepted, 0 rows): SELECT n, name FROM s>"
    assert Tables(query._repr_html_()).rows == []
    for batch in range(5):
        append(source, *range(batch * 10, batch * 10 + 10))
        session.advance()
    source.append([{"n": 50, "time": DAY + timedelta(seconds=50)}])
    session.advance()
    assert repr(query) == "<Query numbers (live, 51 rows): SELECT n, name FROM s>"
    page = query._repr_html_()
    assert "<b>numbers</b> (live, 51 rows)" in page
    assert "<pre" in page
    assert "the last 20 of 51 rows" in page
    header, *rows = Tables(page).rows
    assert header == ["n", "name"]
    assert len(rows) == PREVIEW_ROWS
    assert rows[-1] == ["50", "NULL"]
    assert sorted(int(row[0]) for row in rows[-11:]) == list(range(40, 51))
    query.remove()
    session.advance()
    assert repr(query).startswith("<Query numbers (removed, 51 rows)")
    assert len(Tables(query._repr_html_()).rows) == 1 + PREVIEW_ROWS


def test_a_failed_query_shows_why(session: hr.Session, source: hr.MemorySource):
    def refuse(_: pa.Table) -> None:
        raise ValueError("<none> of these")

    query = session.add("SELECT n FROM s", name="fails", sink=refuse)
    append(source, 1)
    session.advance()
    assert repr(query) == "<Query fails (failed, 1 row): SELECT n FROM s>"
    page = query._repr_html_()
    assert "&lt;none&gt; of these" in page
    assert "<none>" not in page


def test_everything_is_escaped(session: hr.Session, source: hr.MemorySource):
    query = session.add(f'SELECT name AS `{EVIL}` FROM s WHERE name <> "{EVIL.replace("x", "y")}"', name=EVIL)
    append(source, 1, name=EVIL)
    session.advance()
    for page in (query._repr_html_(), session._repr_html_()):
        assert "script" not in Tables(page).tags
        assert "&lt;script&gt;" in page
    assert [EVIL] in Tables(query._repr_html_()).rows


def test_long_texts_are_shortened():
    shown = QueryDisplay("q", "failed", 3, "SELECT " + "x" * 10_000, "e" * 10_000)
    page = render_query(shown, pa.table({"x": ["y" * 10_000] * 3}))
    assert len(page) < 6_000
    assert page.count("…") == 5


def test_rows_of_other_sinks_are_not_read(session: hr.Session, source: hr.MemorySource, tmp_path):
    query = session.add("SELECT n FROM s", name="files", sink=f"parquet:{tmp_path / 'out'}")
    append(source, 1)
    session.advance()
    assert "the rows go to parquet:" in query._repr_html_()
    assert Tables(query._repr_html_()).rows == []


def test_unreadable_rows_are_a_note(session: hr.Session, source: hr.MemorySource):
    query = session.add("SELECT n FROM s")
    append(source, 1)
    session.advance()
    for path in (session.checkpoint_path / "results").iterdir():
        path.write_bytes(b"damaged")
    assert "the rows cannot be read" in query._repr_html_()
