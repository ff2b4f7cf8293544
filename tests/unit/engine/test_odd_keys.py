"""Unusual group keys (NaN, NULL, empty text, integer limits) over batches and partitions, against the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.engine.joins import index
from support.compare import assert_same_rows

DAY = datetime(2024, 1, 1, tzinfo=UTC)


def run_queries(
    backend: str, schema: str, texts: Sequence[str], batches: Sequence[Sequence[dict[str, Any]]], partitions: int = 3
) -> list[list[dict[str, Any]]]:
    """Return the results of queries over all batches; rows are one second apart."""
    with hr.Session(backend=backend, partitions=partitions) as session:
        source = hr.MemorySource(f"{schema}, time TIMESTAMP")
        session.create_stream("s", source, time="time", watermark="1 hour")
        queries = [session.add(text) for text in texts]
        second = 0
        for batch in batches:
            rows = []
            for row in batch:
                rows.append({**row, "time": DAY + timedelta(seconds=second)})
                second += 1
            source.append(rows)
            session.advance()
        session.drain()
        assert [query.error for query in queries] == [None] * len(queries)
        return [query.results().to_pylist() for query in queries]


def check_all_against_reference(schema: str, texts: Sequence[str], batches: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Compare the results of queries that run together with those of the reference, which shares nothing."""
    expected = run_queries("reference", schema, texts, batches)
    for partitions in (1, 4):
        for text, rows, expected_rows in zip(
            texts, run_queries("local", schema, texts, batches, partitions), expected, strict=True
        ):
            try:
                assert_same_rows(rows, expected_rows)
            except AssertionError as error:
                raise AssertionError(f"{text}\n{error}") from error


def check_against_reference(schema: str, sql: str, batches: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    (expected,) = run_queries("reference", schema, [sql], batches)
    for partitions in (1, 4):
        (actual,) = run_queries("local", schema, [sql], batches, partitions)
        assert_same_rows(actual, expected)
    return expected


Y = [[{"y": y} for y in batch] for batch in ((math.inf, math.nan, 0.0), (-math.inf, -0.0, None), (math.nan, 1.0))]


KEYS = ["y", "y - y", "-y", "y * 0", "0 / y"]


@pytest.mark.parametrize("window", ["TUMBLE(s, '1 hour')", "HOP(s, '4 seconds', '2 seconds')", "SESSION(s, '10 seconds')"])
def test_all_nan_values_are_the_same_key(window: str):
    """∞ − ∞ has other bits than math.nan."""
    texts = [f"SELECT window_start, {key} AS v, COUNT(*) AS n FROM {window} GROUP BY {key}" for key in KEYS]
    check_all_against_reference("y DOUBLE", texts, Y)


@pytest.mark.parametrize("value", ["y", "y - y", "-y", "y * 0"])
def test_distinct_counts_treat_all_nan_as_equal(value: str):
    results = check_against_reference(
        "y DOUBLE", f"SELECT COUNT(DISTINCT {value}) AS n, COUNT({value}) AS c FROM TUMBLE(s, '1 hour')", Y
    )
    assert len(results) == 1


AGGREGATES = ["MIN(y)", "MAX(y)", "MEDIAN(y)", "SUM(y)", "AVG(y)", "STDDEV(y)", "percentile(y, 0.9)", "MAX(y - y)"]


@pytest.mark.parametrize("batches", [Y, Y[1:2], Y[2:], [Y[0][1:]]], ids=["all", "-inf", "nan", "nan and 0"])
def test_nan_and_infinity_in_aggregates(batches: Sequence[Sequence[dict[str, Any]]]):
    check_all_against_reference("y DOUBLE", [f"SELECT {call} AS v FROM TUMBLE(s, '1 hour')" for call in AGGREGATES], batches)


def test_text_that_looks_like_null_is_not_null():
    batches = [[{"a": a, "b": b} for a in (None, "", "\x00null", "NULL") for b in (None, "", "\x00")] for _ in range(2)]
    results = check_against_reference(
        "a STRING, b STRING", "SELECT a, b, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY a, b", batches
    )
    assert len(results) == 12
    assert {row["n"] for row in results} == {2}


def test_text_keys_are_not_concatenated():
    """('a', 'bc') is not ('ab', 'c')."""
    batches = [[{"a": "a", "b": "bc"}, {"a": "ab", "b": "c"}], [{"a": "abc", "b": ""}, {"a": "", "b": "abc"}]]
    assert (
        len(
            check_against_reference(
                "a STRING, b STRING", "SELECT a, b, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY a, b", batches
            )
        )
        == 4
    )


def test_the_smallest_and_largest_integers_are_valid_keys():
    values = (-(2**63), 2**63 - 1, 0, -1, None)
    batches = [[{"a": a} for a in values], [{"a": a} for a in reversed(values)]]
    results = check_against_reference(
        "a BIGINT", "SELECT a, COUNT(*) AS n, MIN(a) AS low, MAX(a) AS high FROM TUMBLE(s, '1 hour') GROUP BY a", batches
    )
    assert len(results) == 5


def test_keys_of_a_union_are_equal_across_integer_types():
    both = "SELECT CAST(a AS SMALLINT) AS k, time FROM s UNION ALL SELECT b AS k, time FROM s"
    sql = f"SELECT k, COUNT(*) AS n FROM TUMBLE(({both}), '1 hour') GROUP BY k"
    batches = [[{"a": 1, "b": 1}, {"a": 2, "b": 3}], [{"a": None, "b": 2}]]
    results = check_against_reference("a INT, b BIGINT", sql, batches)
    assert sorted((row["k"] is None, row["k"], row["n"]) for row in results if row["k"] is not None) == [
        (False, 1, 2),
        (False, 2, 2),
        (False, 3, 1),
    ]


def test_many_keys_over_several_partitions():
    batches = [[{"a": f"key-{(i * 7) % 500}", "n": i} for i in range(start, start + 1000)] for start in (0, 1000, 2000)]
    results = check_against_reference(
        "a STRING, n INT", "SELECT a, SUM(n) AS total, COUNT(*) AS c FROM TUMBLE(s, '1 hour') GROUP BY a", batches
    )
    assert len(results) == 500


@pytest.mark.parametrize("kind", ["JOIN", "FULL JOIN"])
@pytest.mark.parametrize("keys", ["a.n = b.n", "a.k = b.k AND a.j = b.j", "a.y = b.y"])
def test_keys_of_window_joins_with_equal_hashes_are_different_keys(keys: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "hash_keys", lambda columns, rows: np.zeros(rows, np.uint64))
    rows = [{"n": f"{k % 3}", "k": k % 4, "j": k % 3, "y": (k % 5) / 2} for k in range(24)]
    check_against_reference(
        "n STRING, k INT, j INT, y DOUBLE",
        f"SELECT a.n AS n, a.k AS k, b.j AS j, b.y AS y FROM TUMBLE(s, '1 minute') a {kind} TUMBLE(s, '1 minute') b ON {keys}",
        [rows[:10], [*rows[10:], {"n": None, "k": None, "j": 1, "y": math.nan}]],
    )
