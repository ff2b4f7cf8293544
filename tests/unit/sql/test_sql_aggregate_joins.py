"""Joins of aggregations on their keys bind to one aggregation; its results match DuckDB."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import SqlError
from headrace.plan.derived import NestedQuery
from headrace.plan.logical import AggregateQuery
from headrace.plan.window_join import WindowJoinQuery
from support.compare import assert_same_rows

BASE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
PURCHASES, ADS = (
    "user_id INT, pack STRING, price DOUBLE, time TIMESTAMP",
    "user_id BIGINT, pack STRING, cost DOUBLE, time TIMESTAMP",
)
KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")


def make_rows(random: Random, count: int, column: str) -> list[dict[str, Any]]:
    return [
        {
            "user_id": random.choice([1, 2, 3, 4, None]),
            "pack": random.choice("ab"),
            column: random.choice([None, 1.5, 2.0, 7.25]),
            "time": BASE + dt.timedelta(seconds=random.random() * 20),
        }
        for _ in range(count)
    ]


def write_queries(kind: str, on: str, where: str) -> tuple[str, str]:
    """Return the same join for headrace and for DuckDB, which has window columns."""
    both_sides = "SEMI" not in kind and "ANTI" not in kind
    outputs = "p.user_id AS u, p.revenue, p.n" + (", a.cost, a.m, p.revenue - a.cost AS profit" if both_sides else "")
    p, a = "SUM(price) AS revenue, COUNT(*) AS n", "SUM(cost) AS cost, COUNT(DISTINCT cost) AS m"
    headrace_sql = (
        f"SELECT window_end AS w, {outputs} FROM (SELECT user_id, {p} FROM TUMBLE(purchases, '5 seconds') WHERE pack = 'a' GROUP BY user_id) p "
        f"{kind} (SELECT user_id, {a} FROM TUMBLE(ads, '5 seconds') GROUP BY user_id HAVING COUNT(*) > 1) a ON p.user_id = a.user_id{on}{where}"
    )
    window_key = "time_bucket(interval '5 seconds', time, timestamp '1970-01-01') AS w, user_id"
    end = f"{'coalesce(p.w, a.w)' if both_sides else 'p.w'} + interval '5 seconds' AS w"
    duckdb_sql = (
        f"SELECT {end}, {outputs} FROM (SELECT {window_key}, {p} FROM purchases WHERE pack = 'a' GROUP BY 1, 2) p "
        f"{kind.replace('LEFT SEMI', 'SEMI').replace('LEFT ANTI', 'ANTI')} "
        f"(SELECT {window_key}, {a} FROM ads GROUP BY 1, 2 HAVING COUNT(*) > 1) a ON p.w = a.w AND p.user_id = a.user_id{on}{where}"
    )
    return headrace_sql, duckdb_sql


def run_duckdb(tables: dict[str, list[dict[str, Any]]], text: str) -> list[dict[str, Any]]:
    connection = duckdb.connect()
    for name, rows in tables.items():
        connection.register(name, pa.Table.from_pylist([{**row, "time": row["time"].replace(tzinfo=None)} for row in rows]))
    cursor = connection.execute(text)
    names = [column[0] for column in cursor.description]
    fetched = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [{**row, "w": row["w"].replace(tzinfo=dt.UTC)} for row in fetched]


def test_joins_of_aggregations_match_duckdb() -> None:
    random = Random(4)
    tables = {"purchases": make_rows(random, 80, "price"), "ads": make_rows(random, 50, "cost")}
    cases = [(kind, on, where) for kind in KINDS for on, where in (("", ""), (" AND p.revenue > 5", ""), ("", " WHERE p.n > 1"))]
    with hr.Session(backend="local", partitions=2) as session:
        sources = {"purchases": hr.MemorySource(PURCHASES), "ads": hr.MemorySource(ADS)}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", watermark="30 seconds")
        queries = [
            (session.add(write_queries(*case)[0]), write_queries(*case)[1])
            for case in cases
            if case[0] != "RIGHT JOIN" or not case[1]
        ]
        for name, source in sources.items():
            source.append(tables[name])
        session.advance()
        session.drain()
        for query, text in queries:
            expected = run_duckdb(tables, text)
            assert expected
            assert_same_rows(query.results().to_pylist(), expected)


def test_a_join_of_aggregations_binds_to_one_aggregation(bind) -> None:
    plan = bind(
        "SELECT p.user_id, p.total - a.n AS d FROM (SELECT user_id, SUM(price) AS total FROM HOP(purchases, '8 s', '4 s') GROUP BY user_id) p "
        "JOIN (SELECT user_id, COUNT(*) AS n FROM HOP(ads, '8 s', '4 s') GROUP BY user_id) a USING (user_id)"
    )
    assert isinstance(plan, AggregateQuery)
    assert plan.streams == ("purchases", "ads")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id) p JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '10 s') GROUP BY user_id) a ON p.user_id = a.user_id",
        "SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id, name) p JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '5 s') GROUP BY user_id) a ON p.user_id = a.user_id",
        "SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id) p JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '5 s') GROUP BY user_id) a ON p.n = a.n",
        "SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id) p JOIN TUMBLE(ads, '5 s') a ON p.user_id = a.user_id",
        "SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') GROUP BY user_id) p FULL JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '5 s') GROUP BY user_id) a ON p.user_id = a.user_id",
    ],
)  # fmt: skip
def test_other_joins_of_aggregations_bind_to_a_window_join_of_results(bind, text: str) -> None:
    plan = bind(text)
    assert isinstance(plan, NestedQuery)
    assert isinstance(plan.outer, WindowJoinQuery)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM SESSION(purchases, '5 s') GROUP BY user_id) p JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '5 s') GROUP BY user_id) a ON p.user_id = a.user_id", "a join needs windows, and 'p' has no window"),
        ("SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM HOP(purchases, '5 s', '2 s') GROUP BY user_id) p JOIN (SELECT user_id, COUNT(*) AS n FROM TUMBLE(ads, '4 s') GROUP BY user_id) a ON p.user_id = a.user_id", "results of windows of 5 s every 2 s cannot be joined"),
        ("SELECT p.n FROM (SELECT user_id, COUNT(*) AS n FROM HOP(purchases, '5 s', '2 s') GROUP BY user_id) p JOIN HOP(ads, '5 s', '2 s') a ON p.user_id = a.user_id", "results of windows of 5 s every 2 s cannot be joined"),
    ],
)  # fmt: skip
def test_aggregations_in_incompatible_windows_are_refused(bind, text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        bind(text)
