"""Windows give the same results by iteration over partials and by prefix sums and trees."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

import headrace as hr
from headrace.engine.operators import windows
from support.compare import assert_same_rows

QUERIES = [
    "SELECT window_start, k, COUNT(*) AS n, COUNT(x) AS m, SUM(x) AS total, SUM(y) AS ys, AVG(y) AS a FROM HOP(s, '5 s', '1 s') GROUP BY k",
    "SELECT window_start, k, SUM(y) AS ys, MIN(x) AS low, VAR_POP(x) AS v FROM HOP(s, '5 s', '1 s') WHERE x > 10 OR x IS NULL GROUP BY k",
    "SELECT window_start, SUM(d) AS ds, COUNT(y) AS n FROM TUMBLE(s, '3 s') WHERE x BETWEEN 5 AND 40",
]  # fmt: skip


def results(backend: str) -> list[list[dict]]:
    random = Random(9)
    with hr.Session(backend=backend, **({} if backend == "reference" else {"partitions": 2})) as session:
        source = hr.MemorySource("k INT, x INT, y DOUBLE, d DECIMAL(30, 2), time TIMESTAMP")
        session.create_stream("s", source, time="time", watermark="1 second")
        queries = [session.add(text) for text in QUERIES]
        for batch in range(6):
            begin = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=2 * batch)
            source.append([
                {
                    "k": random.randrange(8),
                    "x": random.choice([None, random.randrange(50)]),
                    "y": random.choice([None, random.uniform(-1e6, 1e6)]),
                    "d": random.randrange(10**12),
                    "time": begin + timedelta(seconds=random.random() * 3),
                }
                for _ in range(60)
            ])  # fmt: skip
            session.advance()
        session.drain()
        return [query.results().to_pylist() for query in queries]


@pytest.fixture(scope="module")
def reference_results() -> list[list[dict]]:
    return results("reference")


@pytest.mark.parametrize("few", [True, False, None])
def test_both_algorithms_equal_the_reference(monkeypatch, reference_results: list[list[dict]], few: bool | None) -> None:
    monkeypatch.setattr(windows, "_FORCE_SPARSE", few)
    for found, expected in zip(results("local"), reference_results, strict=True):
        assert expected
        assert_same_rows(found, expected)
