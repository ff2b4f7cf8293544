"""Rows joined in SLIDING windows are a stream: they are put into windows, aggregated and joined, as DuckDB does it.

a          1        4
b             2  3
joined        2  3  4      at the time of the newer row; TUMBLE [0 5) has all of them
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
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
JOINED = "SELECT a.k, a.v, b.v AS w FROM SLIDING(a, '3 seconds') a JOIN SLIDING(b, '2 seconds') b ON a.k = b.k"
IN_DUCKDB = """WITH j AS (SELECT a.k, a.v, b.v AS w, greatest(a.time, b.time) AS t FROM a JOIN b
               ON a.k = b.k AND a.time BETWEEN b.time - INTERVAL 3 SECOND AND b.time + INTERVAL 2 SECOND)"""
PAIRS = (
    (
        f"SELECT window_start, k, SUM(v + w) AS s, COUNT(*) AS n FROM TUMBLE(({JOINED}), '5 seconds') GROUP BY k",
        f"{IN_DUCKDB} SELECT time_bucket(INTERVAL 5 SECOND, t) AS window_start, k, SUM(v + w)::BIGINT AS s, COUNT(*) AS n \
          FROM j GROUP BY ALL",
    ),
    (
        f"WITH j AS ({JOINED}) SELECT window_start, MAX(v) AS m FROM TUMBLE(j, '4 seconds') WHERE w > 3",
        f"{IN_DUCKDB} SELECT time_bucket(INTERVAL 4 SECOND, t) AS window_start, MAX(v) AS m FROM j WHERE w > 3 GROUP BY ALL",
    ),
    (
        f"SELECT j.v, j.w, c.v AS z FROM TUMBLE(({JOINED}), '4 seconds') j JOIN TUMBLE(c, '4 seconds') c ON j.k = c.k",
        f"{IN_DUCKDB} SELECT j.v, j.w, c.v AS z FROM j JOIN c ON j.k = c.k \
          AND time_bucket(INTERVAL 4 SECOND, t) = time_bucket(INTERVAL 4 SECOND, c.time)",
    ),
)


def draw_rows(random: Random, count: int) -> list[dict[str, Any]]:
    def draw(number: int) -> dict[str, Any]:
        return {
            "k": random.choice((0, 1, 2, None)),
            "v": number,
            "time": BEGIN + timedelta(milliseconds=500 * random.randrange(40)),
        }

    return [draw(number) for number in range(count)]


@pytest.mark.parametrize("seed", range(scale_examples(20)))
@pytest.mark.parametrize("backend", ["local", "reference"])
def test_windows_over_joined_rows_equal_those_of_duckdb(backend: str, seed: int):
    random = Random(seed)
    tables = {name: draw_rows(random, 30) for name in "abc"}
    with hr.Session(backend=backend, partitions=2) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in tables}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", watermark="1 minute")  # no row is late
        queries = [session.add(text) for text, _ in PAIRS]
        for start in range(0, 30, 10):
            for name, source in sources.items():
                source.append(tables[name][start : start + 10])
            session.advance()
        session.drain()
        found = [query.results().to_pylist() for query in queries]
    assert all(found)
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("time", pa.timestamp("us", "UTC"))])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            connection.register(name, pa.Table.from_pylist(rows, schema))
        for (_, judged), rows in zip(PAIRS, found, strict=True):
            assert_same_rows(rows, connection.sql(judged).to_arrow_table().to_pylist())


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_query_added_later_reports_windows_for_which_all_joined_rows_exist(backend: str):
    #   T = 2 s + 1 µs; a row of a may be 3 s older than the newest: joined rows are complete from 5 s + 1 µs on, windows from 6 s
    with hr.Session(backend=backend) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
            source.append([{"k": 1, "v": 0, "time": BEGIN + timedelta(seconds=2)}])
        session.advance()
        query = session.add(f"SELECT window_start, COUNT(*) AS n FROM TUMBLE(({JOINED}), '1 second')")
        for second in range(3, 9):
            for source in sources.values():
                source.append([{"k": 1, "v": second, "time": BEGIN + timedelta(seconds=second)}])
            session.advance()
        session.drain()
        # each second: a joins b of the same second and of two before, b joins a of three before
        expected = [(BEGIN + timedelta(seconds=second), 6) for second in (6, 7, 8)]
        assert [(row["window_start"], row["n"]) for row in query.results().to_pylist()] == expected


def test_the_stream_of_joined_rows_survives_a_restart(tmp_path: Path):
    def open_session() -> tuple[hr.Session, dict[str, hr.MemorySource]]:
        session = hr.Session(tmp_path / "checkpoint", backend="local", partitions=2)
        sources = {name: hr.MemorySource(COLUMNS) for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        return session, sources

    session, sources = open_session()
    query = session.add(f"SELECT window_start, COUNT(*) AS n FROM TUMBLE(({JOINED}), '10 seconds')", name="q")
    for name in "ab":
        sources[name].append([{"k": 1, "v": 1, "time": BEGIN + timedelta(seconds=1)}])
    session.advance()
    session.close()
    session, sources = open_session()
    sources["a"].append([{"k": 1, "v": 2, "time": BEGIN + timedelta(seconds=2)}])
    session.advance()
    session.drain()
    query = session.query("q")
    assert query.results()["n"].to_pylist() == [2]
    session.close()
