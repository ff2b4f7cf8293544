"""The client with frames and notebooks: frames to append, frames as results, and safe displays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.client import RemoteSession
from headrace.errors import HeadraceError, NotFoundError, SchemaError, SessionError
from support.in_process_service import Service

DAY = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "n BIGINT, name STRING, paid DECIMAL(10, 2), day DATE, time TIMESTAMP"
ROWS = [
    {"n": n, "name": "a", "paid": Decimal("1.25"), "day": DAY.date(), "time": DAY + timedelta(microseconds=n)} for n in range(3)
]


@pytest.fixture
def remote(service: Service) -> Iterator[RemoteSession]:
    with hr.connect(service.url) as session:
        session.create_stream("s", hr.MemorySource(COLUMNS), time="time")
        yield session


def read_first_rows(query: hr.Query) -> list[dict]:
    return next(query.tail("beginning")).sort_by("n").to_pylist()


@pytest.mark.parametrize(
    "frame", [ROWS, pd.DataFrame(ROWS), pl.DataFrame(ROWS), pa.Table.from_pylist(ROWS)], ids=["list", "pandas", "polars", "arrow"]
)
def test_frames_are_appended(remote: RemoteSession, frame):
    query = remote.add("SELECT * FROM s", name="rows")
    remote.append("s", frame)
    assert read_first_rows(query) == ROWS


def test_invalid_frames_raise_the_errors_of_a_local_source(remote: RemoteSession):
    query = remote.add("SELECT n FROM s", name="rows")
    with pytest.raises(SchemaError, match="column 'x' is not a column of stream 's'\ndetail: columns: n, name"):
        remote.append("s", pl.DataFrame({"x": [1]}))
    with pytest.raises(SchemaError, match="column 'n' does not fit BIGINT"):
        remote.append("s", pd.DataFrame({"n": ["x"]}))
    with pytest.raises(SchemaError, match=r"'polars\.LazyFrame' is not a list of rows"):
        remote.append("s", pl.LazyFrame({"n": [1]}))
    with pytest.raises(NotFoundError, match="'nope'"):
        remote.append("nope", pl.DataFrame({"n": [1]}))
    assert query.results().num_rows == 0


def test_results_are_returned_as_frames(remote: RemoteSession, monkeypatch: pytest.MonkeyPatch):
    query = remote.add("SELECT n FROM s", name="rows")
    remote.append("s", ROWS)
    read_first_rows(query)
    assert query.to_arrow().equals(query.results())
    assert sorted(query.to_pandas()["n"]) == sorted(query.to_polars()["n"]) == [0, 1, 2]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(HeadraceError, match="polars, which is not installed\nhint: pip install polars"):
        query.to_polars()


def test_remote_sessions_and_queries_are_displayed(service: Service, remote: RemoteSession):
    query = remote.add("SELECT n\nFROM s WHERE name <> '<b>'", name="rows")
    remote.append("s", ROWS)
    read_first_rows(query)
    assert repr(remote) == f"<RemoteSession {service.url} (open)>"
    assert repr(query) == "<RemoteQuery rows (live, 0 rows): SELECT n FROM s WHERE name <> '<b>'>"
    page = query._repr_html_()
    assert "<b>rows</b> (live, 3 rows)" in page
    assert "&lt;b&gt;" in page
    assert page.count("<tr>") == 4
    assert repr(query).startswith("<RemoteQuery rows (live, 3 rows)")
    page = remote._repr_html_()
    assert ">s</td>" in page
    assert ">memory</td>" in page
    assert ">rows</td>" in page


def test_displays_are_safe_after_the_connection_or_the_service_is_gone(service: Service, remote: RemoteSession):
    query = remote.add("SELECT n FROM s", name="rows")
    with hr.connect(service.url) as other:
        same = other.query("rows")
    assert repr(other) == f"<RemoteSession {service.url} (closed)>"
    assert "is closed" in other._repr_html_()
    assert "is closed" in same._repr_html_()
    with pytest.raises(SessionError, match=r"the connection to .* is closed\nhint: connect again"):
        other.queries()
    service.close()
    assert "as of the last refresh: no service answers" in query._repr_html_()
    assert "no service answers" in remote._repr_html_()
