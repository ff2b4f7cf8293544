"""User functions on Spark: workers load them from the checkpoint, also after a restart."""

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


def open_session(checkpoint: Path, spark: Any):
    session = hr.Session(checkpoint, spark=spark, partitions=2)
    session.source = hr.MemorySource("price DOUBLE, note STRING, time TIMESTAMP")
    session.create_stream("purchases", session.source, time="time")
    return session


def make_rows(*purchases: tuple[int, float, str]) -> list[dict]:
    return [{"price": price, "note": note, "time": datetime(2026, 1, 1, 0, 0, s, tzinfo=UTC)} for s, price, note in purchases]


def test_workers_load_user_functions_also_after_a_restart(spark: Any, tmp_path: Path) -> None:
    with open_session(tmp_path / "state", spark) as session:
        session.register_function("twice", twice, "DOUBLE", arguments="DOUBLE")
        session.register_function("words", hr.rowwise(str.split), "ARRAY<STRING>", arguments="STRING")
        session.add("SELECT SUM(twice(price)) AS s FROM TUMBLE(purchases, '5 s') WHERE twice(price) > 1", name="sum")
        flow = session.stream("purchases").flat_map(word=hr.call("words", "note")).window(hr.tumble("5 s"))
        flow.group_by("word").agg(n=hr.count()).add("words")
        session.source.append(make_rows((0, 0.1, "a b"), (1, 1.0, "b")))
        session.advance()
    with open_session(tmp_path / "state", spark) as session:
        session.source.append(make_rows((2, 3.0, "b c")))
        session.drain()
        assert session.query("sum").results()["s"].to_pylist() == [8.0]
        found = session.query("words").results().to_pylist()
        assert sorted((row["word"], row["n"]) for row in found) == [("a", 1), ("b", 3), ("c", 1)]
