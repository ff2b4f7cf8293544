"""Queries added with past=True: state stores of other queries backfill them; they emit only new results.

batch     0        1        2        3
first  ├──────────────────────────────▶
second                    ├───────────▶   past=True: also finds partners of batches 0 and 1
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SessionError
from support.compare import assert_same_rows
from support.examples import scale_examples

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = "SELECT a.k, a.v, b.v AS w, c.v AS z FROM SLIDING(a, '20 seconds') a JOIN SLIDING(b, '20 seconds') b ON a.k = b.k \
JOIN SLIDING(c, '20 seconds', '2 seconds') c ON b.v < c.v"
SECOND = "SELECT b.v, a.v AS u FROM SLIDING(b, '20 seconds') b JOIN SLIDING(a, '10 seconds') a ON a.v < b.v AND a.k = b.k"


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


class PastSession:
    def __init__(self, folder: Path, backend: str, partitions: int = 2, *, sharing: bool = True) -> None:
        self.folder, self.options = folder, {"backend": backend, "partitions": partitions, "sliding_sharing": sharing}
        self.open()

    def open(self) -> None:
        self.session = hr.Session(self.folder, **self.options)
        self.sources = {name: hr.MemorySource("k INT, v INT, time TIMESTAMP") for name in "abc"}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time", watermark="3 seconds")

    def run_batch(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        for name, new_rows in rows.items():
            self.sources[name].append(new_rows)
        self.session.advance()


def draw_rows(random: Random, number: int) -> dict[str, list[dict[str, Any]]]:
    def row() -> dict[str, Any]:
        return {"k": random.randrange(4), "v": random.randrange(20), "time": at(number * 2 + random.uniform(-4, 2))}

    return {name: [row() for _ in range(random.randrange(5))] for name in "abc"}


def run_scenario(folder: Path, backend: str, seed: int, **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    run = PastSession(folder, backend, **options)
    random = Random(seed)
    run.session.add(FIRST, name="first")
    run.run_batch(draw_rows(random, 0))
    for number in range(1, 12):
        if number == 5:
            run.session.add(SECOND, name="second", past=True)
        if number == 6:
            run.session.remove("first")
            run.session.add(FIRST, name="other")  # reuses the bit of the removed query
        if number == 8 and backend == "local":
            run.session.close()
            run.open()
        run.run_batch(draw_rows(random, number))
    run.session.drain()
    results = tuple(run.session.find(name).results().to_pylist() for name in ("second", "other"))
    run.session.close()
    return results


@pytest.mark.parametrize("seed", range(scale_examples(15)))
def test_results_equal_those_of_the_reference(tmp_path: Path, seed: int):
    expected = run_scenario(tmp_path / "reference", "reference", seed)
    assert expected[0]
    for partitions in (1, 3):
        actual = run_scenario(tmp_path / f"local-{partitions}", "local", seed, partitions=partitions)
        for actual_rows, expected_rows in zip(actual, expected, strict=True):
            assert_same_rows(actual_rows, expected_rows)


def run_two_queries(run: PastSession, **second: Any) -> list[dict[str, Any]]:
    run.session.add(FIRST, name="first")
    run.run_batch({"a": [{"k": 1, "v": 1, "time": at(1)}], "b": [{"k": 1, "v": 5, "time": at(1)}], "c": []})
    query = run.session.add(second.pop("text", SECOND), name="second", **second)
    run.run_batch({"b": [{"k": 1, "v": 7, "time": at(2)}]})
    return query.results().to_pylist()


def test_past_finds_earlier_partners_but_emits_no_earlier_results(tmp_path: Path):
    assert run_two_queries(PastSession(tmp_path / "with", "local"), past=True) == [{"v": 7, "u": 1}]
    assert run_two_queries(PastSession(tmp_path / "without", "local")) == []


@pytest.mark.parametrize(
    "text",
    [
        SECOND.replace("'10 seconds'", "'1 minute'"),  # longer than any query retains rows
        SECOND.replace("SLIDING(a,", "SLIDING((SELECT * FROM a WHERE v > 0),"),  # another predicate
        SECOND.replace("a.v AS u", "a.time AS u"),  # a column that no query has stored
    ],
)
def test_a_query_starts_without_backfill_if_the_stores_lack_its_rows(tmp_path: Path, text: str):
    assert run_two_queries(PastSession(tmp_path / "local", "local"), past=True, text=text) == []


def test_there_is_no_backfill_without_sharing(tmp_path: Path):
    assert run_two_queries(PastSession(tmp_path / "local", "local", sharing=False), past=True) == []


def test_past_is_refused_for_queries_that_are_no_sliding_joins(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local")
    with pytest.raises(SessionError, match="past=True is for joins in SLIDING windows only"):
        run.session.add("SELECT k FROM a", past=True)
