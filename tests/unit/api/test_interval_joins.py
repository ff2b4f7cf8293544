"""Interval joins emit what DuckDB computes from the same text over the finite input, and what the reference emits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from support.compare import assert_same_rows
from support.examples import scale_examples

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "k INT, v INT, time TIMESTAMP"
TEXTS = (
    "SELECT a.v, b.v w FROM a JOIN b ON a.k = b.k AND a.time BETWEEN b.time - INTERVAL 3 SECOND AND b.time + INTERVAL 1 SECOND",
    "SELECT a.v, b.v w FROM b JOIN a ON a.k = b.k AND b.time > a.time AND b.time < a.time + INTERVAL 4 SECONDS",
    "SELECT a.v, b.v w FROM a JOIN b ON a.time BETWEEN b.time - INTERVAL 2 SECONDS AND b.time WHERE a.v < b.v",
    "SELECT a.v, b.v w FROM a JOIN b ON a.k = b.k AND a.time BETWEEN b.time + INTERVAL 1 SECOND AND b.time + INTERVAL 5 SECOND",
    "SELECT x.v, y.v AS w FROM a x JOIN a y ON x.k = y.k AND y.time BETWEEN x.time AND x.time + INTERVAL 2 SECONDS",
    "SELECT a.v, b.v AS w, c.v AS z FROM a JOIN b ON a.k = b.k AND b.time BETWEEN a.time AND a.time + INTERVAL 3 SECONDS \
     JOIN c ON c.k = b.k AND c.time BETWEEN b.time - INTERVAL 1 SECONDS AND b.time + INTERVAL 4 SECONDS",
)


def draw_rows(random: Random, count: int) -> list[dict[str, Any]]:
    def draw(number: int) -> dict[str, Any]:
        time = BEGIN + timedelta(milliseconds=500 * random.randrange(40))  # ties, and bounds that are hit exactly
        return {"k": random.choice((0, 1, 1, 2, None)), "v": number, "time": time}

    return [draw(number) for number in range(count)]


def judge(text: str, tables: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("time", pa.timestamp("us", "UTC"))])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            connection.register(name, pa.Table.from_pylist(rows, schema))
        return connection.sql(text).to_arrow_table().to_pylist()


@pytest.mark.parametrize("seed", range(scale_examples(20)))
@pytest.mark.parametrize("backend", ["local", "reference"])
def test_interval_joins_equal_those_of_duckdb(backend: str, seed: int):
    random = Random(seed)
    tables = {name: draw_rows(random, 30) for name in "abc"}
    with hr.Session(backend=backend, partitions=2) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in tables}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", watermark="1 minute")  # no row is late, in any order
        queries = [session.add(text) for text in TEXTS]
        for start in range(0, 30, 10):
            for name, source in sources.items():
                source.append(tables[name][start : start + 10])
            session.advance()
        found = [query.results().to_pylist() for query in queries]
    assert all(found)
    for text, rows in zip(TEXTS, found, strict=True):
        assert_same_rows(rows, judge(text, tables))
