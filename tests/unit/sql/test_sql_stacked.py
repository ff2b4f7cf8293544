"""Nested queries: bound plans of windows over results, and results that match DuckDB."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

import datetime as dt
from random import Random

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.plan.derived import HIDDEN_BOUNDS, NestedQuery
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.plan.window_join import WindowJoinQuery
from support.compare import assert_same_rows

COUNTS = "SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id"


def test_a_filter_and_projection_of_results_merge_into_the_aggregation(bind) -> None:
    plan = bind(f"SELECT user_id, n + 1 AS more FROM ({COUNTS}) AS c WHERE n > 2")
    assert isinstance(plan, AggregateQuery)
    assert plan.schema.names == ("user_id", "more")
    assert str(plan.having) == "agg0 > 2"


def test_a_union_of_results_and_a_stream_binds_to_a_nested_query(bind) -> None:
    plan = bind(f"SELECT user_id FROM ({COUNTS}) UNION ALL SELECT user_id FROM ads")
    assert isinstance(plan, NestedQuery)
    assert isinstance(plan.outer, StatelessQuery)
    assert plan.streams == ("purchases", "ads")


def test_an_aggregation_of_results_inherits_the_inner_window(bind) -> None:
    plan = bind(f"SELECT window_start, MAX(n) AS n FROM ({COUNTS})")
    assert isinstance(plan.outer, AggregateQuery)
    assert plan.outer.branches[0].keys == HIDDEN_BOUNDS
    assert str(plan.outer.window) == "TUMBLE(5 s)"


def test_a_cte_read_twice_binds_to_one_inner_query(bind) -> None:
    plan = bind(f"WITH c AS ({COUNTS}) SELECT l.n FROM c l JOIN (SELECT MAX(n) AS n FROM c) m ON l.n = m.n")
    assert len(plan.inner) == 2
    assert isinstance(plan.outer, WindowJoinQuery)


def test_an_unused_cte_is_ignored(bind) -> None:
    assert isinstance(bind(f"WITH c AS ({COUNTS}) SELECT user_id FROM ads"), StatelessQuery)


def test_a_join_of_results_outputs_the_bounds_of_the_inner_windows(bind) -> None:
    inner = "SELECT user_id, COUNT(*) AS n FROM HOP(purchases, '8 s', '4 s') GROUP BY user_id"
    plan = bind(f"WITH c AS ({inner}) SELECT window_start, l.n FROM c l JOIN c r ON l.n = r.n")
    assert plan.outer.longest_window == 4_000_000
    assert plan.outer.longest_span == 8_000_000


WINDOWS = "SELECT *, time_bucket(INTERVAL {slide}, time) - i * INTERVAL {slide} AS w FROM {stream}, range({times}) t(i)"
QUERIES = [
    (
        "SELECT window_start AS w, window_end AS e, MAX(t) AS m, COUNT(*) AS c FROM (SELECT k, SUM(x) AS t FROM HOP(a, '4 s', '2 s') GROUP BY k)",
        "SELECT w, w + INTERVAL 4 SECONDS AS e, max(t) AS m, count(*) AS c FROM (SELECT w, k, sum(x) AS t FROM hop GROUP BY w, k) GROUP BY w",
    ),
    (
        "SELECT window_start AS w, SUM(m) AS s FROM TUMBLE((SELECT MAX(t) AS m FROM (SELECT k, SUM(x) AS t FROM HOP(a, '4 s', '2 s') GROUP BY k)), '6 s')",
        "SELECT time_bucket(INTERVAL 6 SECONDS, w + INTERVAL 4 SECONDS - INTERVAL 1 MICROSECOND) AS w, sum(m) AS s FROM (SELECT w, max(t) AS m FROM (SELECT w, k, sum(x) AS t FROM hop GROUP BY w, k) GROUP BY w) GROUP BY ALL",
    ),
    (
        "WITH s AS (SELECT k, SUM(x) AS t FROM HOP(a, '4 s', '2 s') GROUP BY k) SELECT window_start AS w, s.k, s.t FROM s JOIN (SELECT MAX(t) AS t FROM s) m ON s.t = m.t",
        "WITH s AS (SELECT w, k, sum(x) AS t FROM hop GROUP BY w, k) SELECT w, k, t FROM s WHERE t = (SELECT max(t) FROM s o WHERE o.w = s.w)",
    ),
    (
        "SELECT window_start AS w, r.x, s.t FROM HOP(a, '4 s', '2 s') r LEFT JOIN (SELECT k, SUM(x) AS t FROM HOP(a, '4 s', '2 s') WHERE k > 1 GROUP BY k) s ON r.k = s.k WHERE r.x > 50",
        "SELECT r.w, r.x, s.t FROM hop r LEFT JOIN (SELECT w, k, sum(x) AS t FROM hop WHERE k > 1 GROUP BY w, k) s ON r.w = s.w AND r.k = s.k WHERE r.x > 50",
    ),
    (
        "SELECT l.k AS lk, r.k AS rk, l.t, r.n FROM (SELECT k, SUM(x) AS t FROM HOP(a, '4 s', '2 s') GROUP BY k) l FULL JOIN (SELECT k, COUNT(*) AS n FROM HOP(a, '4 s', '2 s') WHERE x > 60 GROUP BY k) r ON l.k = r.n",
        "SELECT l.k AS lk, r.k AS rk, l.t, r.n FROM (SELECT w, k, sum(x) AS t FROM hop GROUP BY w, k) l FULL JOIN (SELECT w, k, count(*) AS n FROM hop WHERE x > 60 GROUP BY w, k) r ON l.w = r.w AND l.k = r.n",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "duckdb_sql"), QUERIES)
def test_nested_queries_match_duckdb(text: str, duckdb_sql: str) -> None:
    random, start = Random(3), dt.datetime(2024, 1, 1)  # noqa: DTZ001  DuckDB timestamps have no time zone
    times = sorted(start + dt.timedelta(seconds=random.uniform(4, 40)) for _ in range(120))
    rows = [{"k": random.randrange(4), "x": random.randrange(100), "time": time} for time in times]
    connection = duckdb.connect()
    connection.register("a", pa.Table.from_pylist(rows))
    connection.execute(f"CREATE TABLE hop AS {WINDOWS.format(stream='a', slide='2 SECONDS', times=2)}")
    cursor = connection.execute(duckdb_sql)
    names = [column[0] for column in cursor.description or ()]
    expected = [
        {name: v.replace(tzinfo=dt.UTC) if isinstance(v, dt.datetime) else v for name, v in zip(names, row, strict=True)}
        for row in cursor.fetchall()
    ]
    with hr.Session(backend="local", partitions=2) as session:
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        query = session.add(text)
        for offset in range(0, len(rows), 30):
            source.append([{**row, "time": row["time"].replace(tzinfo=dt.UTC)} for row in rows[offset : offset + 30]])
            session.advance()
        session.drain()
        assert expected
        assert_same_rows(query.results().to_pylist(), expected)
