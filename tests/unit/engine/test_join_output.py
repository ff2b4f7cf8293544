"""Complete rows of joins become results: filtered after outer joins, projected or grouped, failures by query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from support.compare import assert_same_rows

DAY = datetime(2024, 1, 1, tzinfo=UTC)
TUMBLES = "TUMBLE(s, '8 seconds') a {kind} TUMBLE(t, '8 seconds') b ON a.k = b.k"
SLIDINGS = "SLIDING(s, '3 seconds') a JOIN SLIDING(t, '2 seconds') b ON a.k = b.k"


def run_queries(backend: str, texts: Sequence[str], big: int = 1) -> tuple[list[list[dict[str, Any]]], list[bool]]:
    """Return the results of queries over three batches of two streams, and whether each query failed."""
    with hr.Session(backend=backend, partitions=2) as session:
        sources = {name: hr.MemorySource("k INT, v BIGINT, time TIMESTAMP") for name in "st"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        queries = [session.add(text) for text in texts]
        for batch in range(3):
            for shift, source in enumerate(sources.values()):
                numbers = range(6 * batch, 6 * batch + 6)
                source.append([{"k": (n * (shift + 2)) % 5, "v": n * big, "time": DAY + timedelta(seconds=n)} for n in numbers])
            session.advance()
        session.drain()
        return [query.results().to_pylist() for query in queries], [query.error is not None for query in queries]


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
@pytest.mark.parametrize("outputs", ["SELECT a.v AS x, b.v AS y", "SELECT COUNT(*) AS n, SUM(b.v) AS total"])
def test_rows_are_filtered_after_the_join(kind: str, outputs: str) -> None:
    conditions = ["b.v IS NULL OR a.v < b.v", "a.v IS NULL", "a.v + b.v > 20", "COALESCE(a.v, b.v) > 3"]
    texts = [f"{outputs} FROM {TUMBLES.format(kind=kind)} WHERE {condition}" for condition in conditions]
    (results, failed), (expected, _) = run_queries("local", texts), run_queries("reference", texts)
    assert not any(failed)
    assert any(expected)
    for rows, expected_rows in zip(results, expected, strict=True):
        assert_same_rows(rows, expected_rows)


@pytest.mark.parametrize("join", [TUMBLES.format(kind="JOIN"), SLIDINGS], ids=["window", "sliding"])
def test_an_overflow_in_the_output_fails_its_query_alone(join: str) -> None:
    texts = [f"SELECT a.v * b.v AS x FROM {join}", f"SELECT a.v - b.v AS x FROM {join}", f"SELECT b.v AS x FROM {join}"]
    results, failed = run_queries("local", texts, big=1 << 40)
    assert failed == [True, False, False]
    expected, _ = run_queries("reference", texts[1:], big=1 << 40)
    for rows, expected_rows in zip(results[1:], expected, strict=True):
        assert expected_rows
        assert_same_rows(rows, expected_rows)
