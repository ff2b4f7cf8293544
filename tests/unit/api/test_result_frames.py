"""Results of a local query as Arrow, pandas and polars frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import HeadraceError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def query() -> Iterator[hr.Query]:
    with hr.Session(backend="local") as session:
        source = hr.MemorySource("id INT, name STRING, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        query = session.add("SELECT id, name, time FROM s", name="rows")
        source.append([{"id": 1, "name": "a", "time": NOON}, {"id": 2, "time": NOON}])
        session.advance()
        yield query


def test_results_as_frames(query: hr.Query):
    table = query.to_arrow()
    assert isinstance(table, pa.Table)
    assert table.equals(query.results())
    pandas = query.to_pandas()
    assert isinstance(pandas, pd.DataFrame)
    assert (pandas["id"].tolist(), pandas["name"].tolist(), pandas["time"][0]) == ([1, 2], ["a", None], pd.Timestamp(NOON))
    polars = query.to_polars()
    assert isinstance(polars, pl.DataFrame)
    assert polars.to_dicts() == [{"id": 1, "name": "a", "time": NOON}, {"id": 2, "name": None, "time": NOON}]


def test_frames_without_rows_have_the_columns(query: hr.Query):
    empty = query._session.add("SELECT id FROM s WHERE id > 9")
    assert (list(empty.to_pandas().columns), empty.to_polars().columns, empty.to_arrow().num_rows) == (["id"], ["id"], 0)


def test_polars_is_optional(query: hr.Query, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(HeadraceError) as caught:
        query.to_polars()
    assert caught.value.message == "to_polars() needs polars, which is not installed"
    assert "pip install polars" in caught.value.hint
    assert len(query.to_pandas()) == 2
