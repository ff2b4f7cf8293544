"""Joins without an equality use all partitions: each has an equal share of the pairs, whatever the values are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.engine.joins.pair_search import PairSearch

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS, PARTITIONS = 200, 4


def list_searches(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    """Return (rows that probe, rows of the build side) of each search of a query in its second batch, and the results."""
    searches: list[tuple[int, int]] = []
    find_pairs = PairSearch.find_pairs

    def record_search(self: PairSearch, indexes: Any, build_sets: Any, *limits: Any) -> Any:
        searches.append((self._row_count, len(build_sets)))
        return find_pairs(self, indexes, build_sets, *limits)

    monkeypatch.setattr(PairSearch, "find_pairs", record_search)
    with hr.Session(backend="local", partitions=PARTITIONS) as session:
        sources = {name: hr.MemorySource("x INT, time TIMESTAMP") for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        query = session.add(text)
        session.advance()
        for source in sources.values():
            source.append([{"x": 7, "time": START} for _ in range(ROWS)])
        session.advance()
        if "SLIDING" not in text:
            searches.clear()
            for source in sources.values():
                source.append([{"x": 0, "time": START + timedelta(seconds=9)}])
            session.advance()
        return sorted(searches), query.results().to_pylist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("JOIN", [(ROWS // PARTITIONS, ROWS)] * PARTITIONS),
        ("LEFT JOIN", [(ROWS // PARTITIONS, ROWS)] * PARTITIONS),
        ("RIGHT JOIN", [(ROWS, ROWS // PARTITIONS)] * PARTITIONS),
        ("FULL JOIN", [(ROWS, ROWS)]),  # to tell which rows have no partner, all must be in one place
    ],
)
def test_each_partition_joins_an_equal_share_of_a_window(kind: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"SELECT a.x AS p, b.x AS q FROM TUMBLE(a, '5 s') a {kind} TUMBLE(b, '5 s') b ON a.x >= b.x - 1"
    searches, results = list_searches(monkeypatch, text)
    assert searches == expected
    assert results == [{"p": 7, "q": 7}] * ROWS**2


def test_each_partition_probes_an_equal_share_of_a_sliding_join(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT a.x AS p, b.x AS q FROM SLIDING(a, '5 s') a JOIN SLIDING(b, '5 s') b ON abs(a.x - b.x) <= 1"
    searches, results = list_searches(monkeypatch, text)
    assert searches == [(ROWS, ROWS // PARTITIONS)] * PARTITIONS
    assert results == [{"p": 7, "q": 7}] * ROWS**2
