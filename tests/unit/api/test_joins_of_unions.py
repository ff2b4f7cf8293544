"""Joins whose sides are unions emit what the reference and DuckDB compute, also with late rows, churn and crashes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.storage.fault_points import install_fault_hook
from support.compare import assert_same_rows
from support.examples import scale_examples

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "k INT, v INT, time TIMESTAMP"
UNION = "(SELECT k, v, time FROM a WHERE v % 5 <> 0 UNION ALL SELECT k, v + 1000, time FROM b)"
BOTH = "(SELECT k, v, time FROM c UNION ALL SELECT k, -v, time FROM a UNION ALL SELECT k, v, time FROM c)"
TEXTS = (
    f"SELECT u.v, c.v AS w FROM TUMBLE({UNION}, '4 seconds') u JOIN TUMBLE(c, '4 seconds') c ON u.k = c.k",
    f"SELECT u.v, c.v AS w FROM TUMBLE(c, '4 seconds') c LEFT JOIN TUMBLE({UNION}, '4 seconds') u ON u.k = c.k AND u.v < c.v",
    f"SELECT u.v, w.v w FROM HOP({UNION}, '6 seconds', '2 seconds') u JOIN HOP({BOTH}, '6 seconds', '2 seconds') w ON u.k = w.k",
    f"SELECT window_start, SUM(u.v) AS v FROM TUMBLE({UNION}, '4 seconds') u JOIN TUMBLE(c, '4 seconds') c ON u.k = c.k",
    f"SELECT u.v, w.v AS w FROM SLIDING({UNION}, '3 seconds') u JOIN SLIDING({BOTH}, '2 seconds') w ON u.k = w.k",
    f"SELECT u.v, x.v AS w FROM SLIDING({UNION}, '3 seconds') u, SLIDING({UNION}, '2 seconds') x WHERE u.k = x.k AND u.v < x.v",
)


class Killed(BaseException):
    """Raised by a fault; no code of the engine may catch it."""


class UnionSession:
    """A session over streams a, b and c; `kill_at` is the durable step at which the next batch is killed and run again."""

    def __init__(self, folder: Path, backend: str, watermark: str) -> None:
        self.folder, self.backend, self.watermark, self.kill_at = folder, backend, watermark, ""
        self.open()

    def open(self) -> None:
        install_fault_hook(self.folder, self._reach)
        self.session = hr.Session(self.folder, backend=self.backend, partitions=2)
        self.sources = {name: hr.MemorySource(COLUMNS) for name in "abc"}
        for name, source in self.sources.items():
            self.session.create_stream(name, source, time="time", watermark=self.watermark)

    def _reach(self, step: str) -> None:
        if step == self.kill_at:
            self.kill_at = ""
            raise Killed

    def advance(self, kill_at: str) -> None:
        self.kill_at = kill_at if self.backend == "local" else ""
        try:
            self.session.advance()
        except Killed:
            self.session._coordinator.backend.close()
            self.session._checkpoint.close()
            self.open()
            self.session.advance()
        self.kill_at = ""


def draw_batches(random: Random) -> list[dict[str, list[dict[str, Any]]]]:
    def draw(batch: int) -> dict[str, Any]:
        second = max(0.0, 2 * batch + random.choice((-4, -1, 0, 0.5, 1, 1.5)))
        return {"k": random.choice((0, 1, None)), "v": random.randrange(40), "time": BEGIN + timedelta(seconds=second)}

    return [{name: [draw(batch) for _ in range(random.randrange(7))] for name in "abc"} for batch in range(8)]


def play(run: UnionSession, batches: list[dict[str, list[dict[str, Any]]]], random: Random) -> list[Any]:
    for number, text in enumerate(TEXTS[:4]):
        run.session.add(text, name=f"q{number}")
    for number, batch in enumerate(batches):
        if number == 3:
            run.session.add(TEXTS[4], name="q4")
            run.session.add(TEXTS[5], name="q5")
            run.session.add(TEXTS[0], name="again")
            run.session.remove("q0")
        for name, rows in batch.items():
            run.sources[name].append(rows)
        run.advance(random.choice(("", "", "logged", "commit", "committed")))
    run.session.drain()
    queries = [run.session.find(name) for name in ("q0", "q1", "q2", "q3", "q4", "q5", "again")]
    found = [(query.results().to_pylist(), sum(query.late.values())) for query in queries]
    run.session.close()
    return found


@pytest.mark.parametrize("seed", range(scale_examples(30)))
def test_joins_of_unions_equal_those_of_the_reference(tmp_path: Path, seed: int):
    batches = draw_batches(Random(seed))
    expected = play(UnionSession(tmp_path / "reference", "reference", "1 second"), batches, Random(seed))
    found = play(UnionSession(tmp_path / "local", "local", "1 second"), batches, Random(seed))
    assert any(rows for rows, _ in expected)
    for (rows, late), (expected_rows, expected_late) in zip(found, expected, strict=True):
        assert_same_rows(rows, expected_rows)
        assert late == expected_late


@pytest.mark.parametrize("seed", range(scale_examples(20)))
def test_an_interval_join_of_a_union_equals_that_of_duckdb(seed: int):
    random = Random(seed)
    batches = draw_batches(random)
    text = f"SELECT u.v, c.v AS w FROM {UNION} u JOIN c ON u.k = c.k AND u.time BETWEEN c.time - INTERVAL 3 SECONDS AND c.time"
    with hr.Session(backend="local", partitions=2) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in "abc"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", watermark="1 minute")  # no row is late
        query = session.add(text)
        for batch in batches:
            for name, rows in batch.items():
                sources[name].append(rows)
            session.advance()
        found = query.results().to_pylist()
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("time", pa.timestamp("us", "UTC"))])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in "abc":
            connection.register(name, pa.Table.from_pylist([row for batch in batches for row in batch[name]], schema))
        assert_same_rows(found, connection.sql(text).to_arrow_table().to_pylist())


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_value_that_overflows_in_a_union_fails_only_the_queries_that_read_it(backend: str):
    with hr.Session(backend=backend) as session:
        sources = {name: hr.MemorySource("k INT, v BIGINT, time TIMESTAMP") for name in "ab"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        union = "(SELECT k, v * 1000000000000 AS v, time FROM a WHERE k > 0 UNION ALL SELECT k, v, time FROM b)"
        failing = session.add(f"SELECT u.v FROM TUMBLE({union}, '2 seconds') u JOIN TUMBLE(b, '2 seconds') b ON u.k = b.k")
        other = session.add("SELECT a.v FROM TUMBLE(a, '2 seconds') a JOIN TUMBLE(b, '2 seconds') b ON a.k = b.k")
        for name in "ab":
            sources[name].append([{"k": 1, "v": 10**10, "time": BEGIN}])
        sources["a"].append([{"k": 0, "v": 10**10, "time": BEGIN}])  # not selected
        session.drain()
        assert failing.status == "failed"
        assert "overflow" in failing.error
        assert other.results()["v"].to_pylist() == [10**10]


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_rows_too_far_in_the_future_are_in_no_union(backend: str):
    with hr.Session(backend=backend) as session:
        sources = {name: hr.MemorySource(COLUMNS) for name in "abc"}
        for name, source in sources.items():
            session.create_stream(name, source, time="time", max_ahead="1 hour")
        query = session.add(f"SELECT u.v, c.v AS w FROM TUMBLE({UNION}, '4 s') u LEFT JOIN TUMBLE(c, '4 s') c ON u.k = c.k")
        rows = [{"k": 1, "v": 1, "time": BEGIN}, {"k": 1, "v": 2, "time": datetime.now(UTC) + timedelta(days=1)}]
        for source in sources.values():
            source.append([*rows, {"k": 1, "v": 3, "time": None}])
        session.drain()
        assert sorted((row["v"], row["w"]) for row in query.results().to_pylist()) == [(1, 1), (1001, 1)]
