"""A query that ends worker processes fails alone: bystanders get the rows of the same batch, also after a restart."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr

pytestmark = pytest.mark.spark


def end_worker(values: pa.Array) -> pa.Array:
    if (pc.max(values).as_py() or 0) > 100:
        os._exit(7)
    return values


def raise_exit(_: pa.Array) -> pa.Array:
    raise SystemExit(3)


def open_session(checkpoint: Path, spark: Any) -> hr.Session:
    session = hr.Session(checkpoint, spark=spark, partitions=2)
    session.source = hr.MemorySource("k INT, v INT, time TIMESTAMP")
    session.create_stream("s", session.source, time="time", watermark="3 seconds")
    return session


def make_rows(*values: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"k": value % 2, "v": value, "time": datetime(2026, 1, 1, 0, 0, s, tzinfo=UTC)} for s, value in values]


def test_a_function_that_ends_its_worker_fails_the_queries_that_call_it(spark: Any, tmp_path: Path) -> None:
    total = "SELECT SUM(v) AS total FROM TUMBLE(s, '5 seconds')"
    with open_session(tmp_path / "state", spark) as session:
        session.register_function("end_worker", end_worker, "INT", arguments="INT")
        session.register_function("raise_exit", raise_exit, "INT", arguments="INT")
        good = session.add(total, name="good")
        bad = session.add(total + " WHERE end_worker(v) > 0")
        worse = session.add("SELECT end_worker(v) AS v FROM s")
        bystander = session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds') WHERE v > 1")
        raising = session.add("SELECT raise_exit(v) AS v FROM s")
        session.source.append(make_rows((1, 1), (2, 2)))
        session.advance()
        assert raising.status == "failed"
        assert "SystemExit" in raising.error
        session.source.append(make_rows((3, 101), (4, 1)))
        session.advance()
        assert [query.status for query in (good, bad, worse, bystander)] == ["live", "failed", "failed", "live"]
        assert "exited unexpectedly" in bad.error
        session.source.append(make_rows((4, 200), (8, 1)))  # rows of the epoch in which the failed queries were live
        session.advance()
    with open_session(tmp_path / "state", spark) as session:
        session.source.append(make_rows((14, 500)))
        session.advance()
        assert session.query("good").results()["total"].to_pylist() == [305, 1]
        assert session.queries()[1].results()["n"].to_pylist() == [3]
