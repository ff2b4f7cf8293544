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


def run_scenario(
    folder: Path,
    backend: str,
    seed: int,
    texts: tuple[str, str] = (FIRST, SECOND),
    delay: int = 0,
    added: int = 5,
    **options: Any,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run both queries, the second from batch `added` on; stream c is `delay` batches behind the others."""
    run = PastSession(folder, backend, **options)
    random = Random(seed)
    run.session.add(texts[0], name="first")

    def draw_delayed(random: Random, number: int) -> dict[str, list[dict[str, Any]]]:
        return {**draw_rows(random, number), "c": draw_rows(random, number - delay)["c"]}

    run.run_batch(draw_delayed(random, 0))
    for number in range(1, added + 7):
        if number == added:
            run.session.add(texts[1], name="second", past=True)
        if number == added + 1:
            run.session.remove("first")
            run.session.add(texts[0], name="other")  # reuses the bit of the removed query
        if number == added + 3 and backend == "local":
            run.session.close()
            run.open()
        run.run_batch(draw_delayed(random, number))
    run.session.drain()
    results = tuple(run.session.find(name).results().to_pylist() for name in ("second", "other"))
    run.session.close()
    return results


@pytest.mark.parametrize("seed", range(scale_examples(15)))
def test_results_equal_those_of_the_reference(tmp_path: Path, seed: int):
    expected = run_scenario(tmp_path / "reference", "reference", seed)
    assert expected[0]
    actual = run_scenario(tmp_path / "local", "local", seed, partitions=(1, 3)[seed % 2])
    for actual_rows, expected_rows in zip(actual, expected, strict=True):
        assert_same_rows(actual_rows, expected_rows)


OUTER = SECOND.replace(" JOIN ", " FULL JOIN ")


@pytest.mark.parametrize("seed", range(scale_examples(15)))
def test_only_new_rows_of_outer_joins_are_results_without_a_partner(tmp_path: Path, seed: int):
    expected = run_scenario(tmp_path / "reference", "reference", seed, (FIRST, OUTER))
    assert any(row["u"] is None for row in expected[0])
    assert any(None not in row.values() for row in expected[0])
    for partitions in (1, 3):
        actual = run_scenario(tmp_path / f"local-{partitions}", "local", seed, (FIRST, OUTER), partitions=partitions)
        assert_same_rows(actual[0], expected[0])


def test_a_stored_row_is_no_result_of_a_new_outer_join(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local")
    run.session.add(FIRST, name="first")
    run.run_batch({"a": [{"k": 1, "v": 1, "time": at(1)}, {"k": 2, "v": 2, "time": at(1)}], "b": [], "c": []})
    query = run.session.add(OUTER, name="second", past=True)
    run.run_batch(
        {"b": [{"k": 1, "v": 7, "time": at(2)}, {"k": 3, "v": 8, "time": at(2)}], "a": [{"k": 4, "v": 9, "time": at(2)}]}
    )
    run.session.drain()
    assert_same_rows(query.results().to_pylist(), [{"v": 7, "u": 1}, {"v": 8, "u": None}, {"v": None, "u": 9}])


STORED_A = "SELECT a.k, a.v, b.v AS w FROM SLIDING(a, '3 seconds') a JOIN SLIDING(b, '20 seconds') b ON a.k = b.k"
NEW_C = "SELECT a.v, c.v AS u FROM SLIDING(a, '3 seconds') a JOIN SLIDING(c, '10 seconds') c ON a.v <= c.v"
NEW_C_OF_THREE = """SELECT a.v, b.v AS w, c.v AS u FROM SLIDING(a, '3 seconds') a
JOIN SLIDING(b, '20 seconds') b ON a.k = b.k JOIN SLIDING(c, '10 seconds') c ON b.v < c.v AND a.k = c.k"""


@pytest.mark.parametrize("text", [NEW_C, NEW_C_OF_THREE])
@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("seed", range(scale_examples(10)))
def test_results_of_a_new_input_equal_those_of_the_reference(tmp_path: Path, seed: int, delay: int, text: str):
    #   batch    0        9
    #   a, b     ├─────────────▶   stored for the first query
    #   c                  ├───▶   read by the second query only, and `delay` batches behind
    texts = (STORED_A, text)
    expected = run_scenario(tmp_path / "reference", "reference", seed, texts, delay, 9)
    actual = run_scenario(tmp_path / "local", "local", seed, texts, delay, 9, partitions=(1, 3)[(seed + delay) % 2])
    for actual_rows, expected_rows in zip(actual, expected, strict=True):
        assert_same_rows(actual_rows, expected_rows)


def test_new_rows_of_a_new_input_find_stored_rows(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local")
    run.session.add(STORED_A, name="first")
    run.run_batch({"a": [{"k": 1, "v": 1, "time": at(1)}], "b": [{"k": 1, "v": 5, "time": at(1)}]})
    second = run.session.add(NEW_C, name="second", past=True)
    three = run.session.add(NEW_C_OF_THREE, name="three", past=True)
    run.run_batch({"c": [{"k": 1, "v": 7, "time": at(2)}]})
    assert second.results().to_pylist() == [{"v": 1, "u": 7}]
    assert three.results().to_pylist() == [{"v": 1, "w": 5, "u": 7}]
    assert second.note == "backfilled: a from first; new rows only: c: no live join in SLIDING windows reads c"
    assert f"query second: {second.note}" in run.session.explain()
    run.session.close()
    run.open()
    assert run.session.find("second").note == second.note


def test_a_query_says_why_it_was_not_backfilled(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local")
    run.session.add(STORED_A, name="first")
    run.run_batch({"a": [{"k": 1, "v": 1, "time": at(1)}]})
    text = NEW_C_OF_THREE.replace("SLIDING(b, '20 seconds')", "SLIDING(b, '1 minute')")
    refused = run.session.add(text, name="refused", past=True)
    plain = run.session.add(text, name="plain")
    run.run_batch({"a": [{"k": 1, "v": 1, "time": at(2)}]})
    assert refused.note == (
        "not backfilled, because more than one input has no stored rows "
        "(b: first stores rows for a shorter time; c: no live join in SLIDING windows reads c)"
    )
    assert plain.note == ""


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
def test_an_input_has_no_backfill_if_the_stores_lack_its_rows(tmp_path: Path, text: str):
    run = PastSession(tmp_path / "local", "local")
    assert run_two_queries(run, past=True, text=text) == []
    assert "backfilled: b from first; new rows only: a: first " in run.session.find("second").note


def test_there_is_no_backfill_without_sharing(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local", sharing=False)
    assert run_two_queries(run, past=True) == []
    assert "sliding_sharing=False" in run.session.find("second").note


def test_past_is_refused_for_queries_that_are_no_sliding_joins(tmp_path: Path):
    run = PastSession(tmp_path / "local", "local")
    with pytest.raises(SessionError, match="past=True is for joins in SLIDING windows only"):
        run.session.add("SELECT k FROM a", past=True)
