"""Sliding joins over more relations than a word has bits: a row tells in one word which of its parts are new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COUNT = 66


def run_joins(texts: list[str], streams: int, **options: object) -> list[list[int]]:
    """Run joins over streams s0, s1, … whose rows arrive in two batches; return their sorted results."""
    with hr.Session(backend="local", partitions=2, **options) as session:
        sources = [hr.MemorySource("k INT, time TIMESTAMP") for _ in range(streams)]
        for number, source in enumerate(sources):
            session.create_stream(f"s{number}", source, time="time", watermark="2 seconds")
        queries = [session.add(text) for text in texts]
        for batch in range(2):
            for number, source in enumerate(sources):
                source.append([{"k": 2 * number + batch, "time": BEGIN + timedelta(seconds=batch)}])
            session.advance()
        assert {query.status for query in queries} == {"live"}
        return [sorted(query.results()["c"].to_pylist()) for query in queries]


@pytest.mark.parametrize("hub", [True, False])
def test_joins_of_more_streams_than_a_word_has_bits(hub: bool):
    pairs = [(0, number) if hub else (number - 1, number) for number in range(1, COUNT)]
    texts = [
        f"SELECT a.k * 1000 + b.k AS c FROM SLIDING(s{left}, '5 seconds') a, SLIDING(s{right}, '5 seconds') b"
        for left, right in pairs
    ]
    expected = [[(2 * left + i) * 1000 + 2 * right + j for i in range(2) for j in range(2)] for left, right in pairs]
    assert run_joins(texts, COUNT) == expected


def test_more_joins_without_sharing_than_a_word_has_bits():
    text = "SELECT a.k * 1000 + b.k AS c FROM SLIDING(s0, '5 seconds') a, SLIDING(s1, '5 seconds') b"
    assert run_joins([text] * 33, 2, sliding_sharing=False) == [[2, 3, 1002, 1003]] * 33
