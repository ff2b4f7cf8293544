"""Aggregates over unions whose arguments are equal in some branches and different in others."""

from __future__ import annotations

import pytest

import headrace as hr

BRANCHES = {
    "apart, then alike": ("x AS n, k AS t", "x AS n, x AS t"),
    "alike, then apart": ("x AS n, x AS t", "x AS n, k AS t"),
    "alike, apart, alike": ("x AS n, x AS t", "x AS n, k AS t", "k AS n, k AS t"),
    "crossed": ("x AS n, k AS t", "k AS n, x AS t"),
}
AGGREGATES = (
    "SUM(n) AS a1, SUM(t) AS a2, MAX(t) AS a3, MAX(n) AS a4, COUNT(t) AS a5, COUNT(DISTINCT n) AS a6, COUNT(DISTINCT t) AS a7"
)
ROWS = [(1, 10), (2, None), (None, 30), (4, 40)]


WINDOWS = ["TUMBLE({}, '1 minute')", "HOP({}, '1 minute', '30 seconds')", "SESSION({}, '5 seconds')"]


def results(backend: str, texts: list[str]) -> list[list[dict]]:
    with hr.Session(backend=backend) as session:
        source = hr.MemorySource("x INT, k INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        queries = [session.add(text) for text in texts]
        bystander = session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '1 minute')")
        for second, (x, k) in enumerate(ROWS):
            source.append([{"x": x, "k": k, "time": f"2026-01-01T00:00:{second:02d}Z"}])
            session.advance()
        session.drain()
        assert bystander.results().to_pylist() == [{"n": 4}]
        assert [query.error for query in queries] == [None] * len(queries)
        return [query.results().to_pylist() for query in queries]


@pytest.mark.parametrize("branches", BRANCHES.values(), ids=BRANCHES.keys())
def test_aggregates_use_the_argument_of_each_branch(branches: tuple[str, ...]):
    union = " UNION ALL ".join(f"SELECT {columns}, time FROM s" for columns in branches)
    texts = [f"SELECT {AGGREGATES} FROM {window.format(f'({union})')}" for window in WINDOWS]
    expected = results("reference", texts)
    assert all(expected)
    assert results("local", texts) == expected
