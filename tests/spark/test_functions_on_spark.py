"""Functions of users in Spark's workers: loaded from the checkpoint, also after a restart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import headrace as hr

pytestmark = pytest.mark.spark

RATE = 2.0


def helper(values):
    return pc.multiply(values, RATE)


def twice(price):
    return helper(price)


def opened(checkpoint: Path, spark: Any):
    session = hr.Session(checkpoint, spark=spark, partitions=2)
    session.source = hr.MemorySource("price DOUBLE, note STRING, time TIMESTAMP")
    session.create_stream("purchases", session.source, time="time")
    return session


def rows(*found: tuple[int, float, str]) -> list[dict]:
    return [{"price": price, "note": note, "time": datetime(2026, 1, 1, 0, 0, s, tzinfo=UTC)} for s, price, note in found]


def test_functions_reach_workers_and_survive(spark: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "state", spark) as session:
        session.register_function("twice", twice, "DOUBLE", arguments="DOUBLE")
        session.register_function("words", hr.rowwise(str.split), "ARRAY<STRING>", arguments="STRING")
        session.add("SELECT SUM(twice(price)) AS s FROM TUMBLE(purchases, '5 s') WHERE twice(price) > 1", name="sum")
        flow = session.stream("purchases").flat_map(word=hr.call("words", "note")).window(hr.tumble("5 s"))
        flow.group_by("word").agg(n=hr.count()).add("words")
        session.source.append(rows((0, 0.1, "a b"), (1, 1.0, "b")))
        session.advance()
    with opened(tmp_path / "state", spark) as session:
        session.source.append(rows((2, 3.0, "b c")))
        session.drain()
        assert session.query("sum").results()["s"].to_pylist() == [8.0]
        found = session.query("words").results().to_pylist()
        assert sorted((row["word"], row["n"]) for row in found) == [("a", 1), ("b", 3), ("c", 1)]
