"""Joins on a key of many rows: results that exceed the memory limit are written in parts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.engine import result_writer
from headrace.engine.joins import index
from headrace.storage.result_files import BatchResults

ROWS = 300
SQL = "SELECT a.n AS left_n, b.n AS right_n FROM TUMBLE(a, '5 seconds') a JOIN TUMBLE(b, '5 seconds') b ON a.k = b.k"


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(index, "MAX_PAIRS", 4096)
    monkeypatch.setattr(result_writer, "FLUSH_BYTES", 100_000)
    with hr.Session(backend="local", partitions=2) as session:
        for name in "ab":
            source = hr.MemorySource("k INT, n INT, time TIMESTAMP")
            session.create_stream(name, source, time="time")
            source.append([{"k": 7, "n": n, "time": "2024-01-01T00:00:01Z"} for n in range(ROWS)])
        yield session


def run_to_end(session: hr.Session, monkeypatch) -> int:
    """Run to the end of the input; return the maximum number of result bytes in memory."""
    most, add = 0, BatchResults.add

    def add_and_measure(self, queries, rows, counts=None) -> None:
        nonlocal most
        add(self, queries, rows, counts)
        most = max(most, self.bytes)

    monkeypatch.setattr(BatchResults, "add", add_and_measure)
    session.advance()
    session.drain()
    return most


def test_results_of_a_hot_key_are_written_in_parts(session, monkeypatch, tmp_path) -> None:
    memory = session.add(SQL, name="kept")
    session.add(SQL, name="files", sink=f"parquet:{tmp_path}/out")
    assert run_to_end(session, monkeypatch) < 400_000  # of about 1.5 MB in total
    written = pa.parquet.read_table(f"{tmp_path}/out")
    assert memory.results().num_rows == written.num_rows == ROWS * ROWS
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 10
    assert len(set(zip(written["left_n"].to_pylist(), written["right_n"].to_pylist(), strict=True))) == ROWS * ROWS


def test_an_aggregation_over_a_hot_key_does_not_hold_all_pairs(session, monkeypatch) -> None:
    total = session.add(
        "SELECT COUNT(*) AS n, SUM(a.n + b.n) AS total FROM TUMBLE(a, '5 seconds') a JOIN TUMBLE(b, '5 seconds') b ON a.k = b.k"
    )
    assert run_to_end(session, monkeypatch) < 10_000
    assert total.results().to_pylist() == [{"n": ROWS * ROWS, "total": ROWS * ROWS * (ROWS - 1)}]
