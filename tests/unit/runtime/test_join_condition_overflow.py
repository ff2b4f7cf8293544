"""Overflow in a join: a condition between inputs is unknown, as NULL; a condition on one input, or an output, fails the query."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr

BIG = 2**63 - 1
SCHEMA = "k INT, n BIGINT, time TIMESTAMP"
UNKNOWN = {
    "SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.k = b.k AND a.n + b.n > 0": [(1, 2)],
    "SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.k = b.k WHERE a.n + b.n > 0": [(1, 2)],
    "SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.k = b.k AND NOT (a.n + b.n > 0)": [],
    "SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.n + 1 = b.n AND a.k = b.k": [(1, 2)],
    "SELECT a.n, b.n AS m FROM {a} JOIN {b} ON a.n + 1 <= b.n": [(1, 2), (1, 2)],
}
FAILING = [
    "SELECT a.n FROM {a} JOIN {b} ON a.k = b.k AND a.n + 1 > 0",
    "SELECT a.n FROM {a} JOIN {b} ON a.k = b.k WHERE a.n + 1 > 0",
    "SELECT a.n + b.n AS total FROM {a} JOIN {b} ON a.k = b.k",
]


def run_join(path: Path, backend: str, sql: str) -> hr.Query:
    with hr.Session(path, backend=backend) as session:
        sources = {name: hr.MemorySource(SCHEMA) for name in "st"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(sql)
        session.advance()
        for name, values in (("s", (BIG, 1)), ("t", (2, 2))):
            sources[name].append([{"k": k, "n": n, "time": "2024-01-01T00:00:01Z"} for k, n in enumerate(values)])
        session.drain()
        query.rows = [] if query.status == "failed" else sorted(tuple(row.values()) for row in query.results().to_pylist())
        return query


@pytest.mark.parametrize("backend", ["local", "reference"])
@pytest.mark.parametrize("window", ["TUMBLE", "SLIDING"])
def test_a_condition_between_inputs_that_overflows_is_unknown(tmp_path: Path, backend: str, window: str):
    for number, (sql, rows) in enumerate(UNKNOWN.items()):
        text = sql.format(a=f"{window}(s, '5 seconds') a", b=f"{window}(t, '5 seconds') b")
        query = run_join(tmp_path / str(number), backend, text)
        assert (query.status, query.rows) == ("live", rows), sql


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_row_without_a_known_partner_is_unmatched(tmp_path: Path, backend: str):
    sql = "SELECT a.n, b.n AS m FROM TUMBLE(s, '5 seconds') a LEFT JOIN TUMBLE(t, '5 seconds') b ON a.k = b.k AND a.n + b.n > 0"
    query = run_join(tmp_path, backend, sql)
    assert (query.status, query.rows) == ("live", [(1, 2), (BIG, None)])


@pytest.mark.parametrize("backend", ["local", "reference"])
@pytest.mark.parametrize("window", ["TUMBLE", "SLIDING"])
def test_a_condition_on_one_input_and_an_output_fail_the_query(tmp_path: Path, backend: str, window: str):
    for number, sql in enumerate(FAILING):
        text = sql.format(a=f"{window}(s, '5 seconds') a", b=f"{window}(t, '5 seconds') b")
        query = run_join(tmp_path / str(number), backend, text)
        assert query.status == "failed", sql
        assert "integer overflow" in query.error
        assert "\x1f" not in query.error
