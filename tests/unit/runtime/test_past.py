"""Queries that begin in the past: they see what stores hold for others, and give out what is new.

batch     0        1        2        3
first  ├──────────────────────────────▶
second                    ├───────────▶   with its past: finds partners of batches 0 and 1, too
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

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = "SELECT a.k, a.v, b.v AS w, c.v AS z FROM SLIDING(a, '20 seconds') a JOIN SLIDING(b, '20 seconds') b ON a.k = b.k \
JOIN SLIDING(c, '20 seconds', '2 seconds') c ON b.v < c.v"
SECOND = "SELECT b.v, a.v AS u FROM SLIDING(b, '20 seconds') b JOIN SLIDING(a, '10 seconds') a ON a.v < b.v AND a.k = b.k"


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


class Run:
    def __init__(self, folder: Path, backend: str, partitions: int = 2, *, multiway: str = "global") -> None:
        self.folder, self.options = folder, {"backend": backend, "partitions": partitions, "multiway": multiway}
        self.open()

    def open(self) -> None:
        self.session = hr.Session(self.folder, **self.options)
        self.sources = {name: hr.MemorySource("k INT, v INT, time TIMESTAMP") for name in "abc"}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time", watermark="3 seconds")

    def batch(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        for name, found in rows.items():
            self.sources[name].append(found)
        self.session.advance()


def rows(chance: Random, number: int) -> dict[str, list[dict[str, Any]]]:
    def row() -> dict[str, Any]:
        return {"k": chance.randrange(4), "v": chance.randrange(20), "time": at(number * 2 + chance.uniform(-4, 2))}

    return {name: [row() for _ in range(chance.randrange(5))] for name in "abc"}


def played(folder: Path, backend: str, seed: int, **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    run = Run(folder, backend, **options)
    chance = Random(seed)
    run.session.add(FIRST, name="first")
    run.batch(rows(chance, 0))
    for number in range(1, 12):
        if number == 5:
            run.session.add(SECOND, name="second", past=True)
        if number == 6:
            run.session.remove("first")
            run.session.add(FIRST, name="other")  # gets a bit that was another's
        if number == 8 and backend == "local":
            run.session.close()
            run.open()
        run.batch(rows(chance, number))
    run.session.drain()
    found = tuple(run.session.find(name).results().to_pylist() for name in ("second", "other"))
    run.session.close()
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("partitions", [1, 3])
def test_as_the_reference_says(tmp_path: Path, seed: int, partitions: int):
    expected = played(tmp_path / "reference", "reference", seed)
    found = played(tmp_path / "local", "local", seed, partitions=partitions)
    assert expected[0]
    for one, other in zip(found, expected, strict=True):
        assert_same_rows(one, other)


def simple(run: Run, **second: Any) -> list[dict[str, Any]]:
    run.session.add(FIRST, name="first")
    run.batch({"a": [{"k": 1, "v": 1, "time": at(1)}], "b": [{"k": 1, "v": 5, "time": at(1)}], "c": []})
    query = run.session.add(second.pop("text", SECOND), name="second", **second)
    run.batch({"b": [{"k": 1, "v": 7, "time": at(2)}]})
    return query.results().to_pylist()


def test_partners_of_before_are_found_and_old_results_are_not_given_out(tmp_path: Path):
    assert simple(Run(tmp_path / "with", "local"), past=True) == [{"v": 7, "u": 1}]
    assert simple(Run(tmp_path / "without", "local")) == []


@pytest.mark.parametrize(
    "text",
    [
        SECOND.replace("'10 seconds'", "'1 minute'"),  # longer than anybody keeps
        SECOND.replace("SLIDING(a,", "SLIDING((SELECT * FROM a WHERE v > 0),"),  # another selection
        SECOND.replace("a.v AS u", "a.time AS u"),  # a column that nobody looked at
    ],
)
def test_without_enough_in_the_stores_it_begins_now(tmp_path: Path, text: str):
    assert simple(Run(tmp_path / "local", "local"), past=True, text=text) == []


def test_nothing_is_lent_where_nothing_is_shared(tmp_path: Path):
    assert simple(Run(tmp_path / "local", "local", multiway="none"), past=True) == []


def test_only_joins_in_sliding_windows_have_a_past(tmp_path: Path):
    run = Run(tmp_path / "local", "local")
    with pytest.raises(SessionError, match="past=True is for joins in SLIDING windows only"):
        run.session.add("SELECT k FROM a", past=True)
