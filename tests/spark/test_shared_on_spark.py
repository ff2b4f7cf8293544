"""Shared queries on Spark: large inputs, churn, streaming DataFrames, failing workers. All kinds: `tests/conformance`."""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.backends.spark import pipeline
from headrace.errors import SessionError

pytestmark = pytest.mark.spark

ROWS = "user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"


def purchase(second: float, user: int = 1, pack: int = 1, price: float = 10.0) -> dict[str, Any]:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    return {"user_id": user, "gem_pack": pack, "price": price, "time": at}


def test_shuffle_blocks_of_joins_become_state_and_survive_a_restart(spark: Any, tmp_path: Path) -> None:
    #   half of the rows arrive before a restart, half after it with more partitions; the window spans all rows
    count, base = 40_000, 1_700_000_000_000_000

    def make_table(number: int) -> pa.Table:
        places = np.arange(number * count, (number + 1) * count)
        times = pa.array(places + base, pa.timestamp("us", tz="UTC"))
        return pa.table({"k": pa.array(places % 50_000, pa.int32()), "n": pa.array(places, pa.int32()), "time": times})

    text = "SELECT l.n AS a, r.n AS b FROM TUMBLE(l, '1 hour') l JOIN TUMBLE(r, '1 hour') r ON l.k = r.k WHERE l.n < r.n"
    for number, partitions in enumerate((2, 3)):
        with hr.Session(tmp_path / "checkpoint", spark=spark, partitions=partitions) as session:
            sources = {name: hr.MemorySource("k INT, n INT, time TIMESTAMP") for name in "lr"}
            for name, source in sources.items():
                session.create_stream(name, source, time="time")
            query = session.add(text, name="pairs")
            for source in sources.values():
                source.append(make_table(number))
            session.advance()
            suffixes = [path.suffix for path in (tmp_path / "checkpoint" / "state").iterdir()]
            assert ".block" in suffixes
            if number == 1:
                assert suffixes.count(".part") == 3  # the old state was repartitioned
                session.drain()
                results = query.results()
    n = np.arange(2 * count)
    expected = [(int(a), int(a) + 50_000) for a in n[n + 50_000 < 2 * count]]
    assert sorted(zip(results["a"].to_pylist(), results["b"].to_pylist(), strict=True)) == expected


def test_a_million_string_keys_are_aggregated_outside_the_driver(spark: Any, tmp_path: Path) -> None:
    count = 1_000_000
    keys = pa.array([f"user-{i:07d}" for i in range(count)])
    times = pa.array(np.arange(count) + 1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))
    for number in range(2):
        table = pa.table({"key": keys, "amount": pa.array(np.arange(count) % 7, pa.int32()), "time": times})
        with pa.OSFile(str(tmp_path / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=250_000)
    with hr.Session(spark=spark, partitions=2) as session:
        session.create_stream("s", hr.FileSource(tmp_path), time="time")
        everyone = session.add("SELECT key, SUM(amount) AS total, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY key")
        some = session.add("SELECT key, MAX(amount) AS top FROM TUMBLE(s, '1 hour') WHERE amount > 5 GROUP BY key")
        before = psutil.Process().memory_info().rss
        session.drain()
        assert psutil.Process().memory_info().rss - before < 400 << 20  # rows do not pass through the driver
        assert everyone.emitted == count
        table = everyone.results()
        assert set(table["n"].to_pylist()) == {2}
        assert sum(table["total"].to_pylist()) == 2 * sum(i % 7 for i in range(count))
        assert some.emitted == sum(i % 7 == 6 for i in range(count))


def test_the_thousandth_query_is_live_within_two_micro_batches(spark: Any) -> None:
    source = hr.MemorySource(ROWS)
    with hr.Session(spark=spark) as session:
        session.create_stream("p", source, time="time")
        for number in range(999):
            session.add(
                f"SELECT gem_pack, SUM(price) AS s FROM TUMBLE(p, '{number % 10 + 1} s') WHERE price > {number} GROUP BY gem_pack"
            )
        source.append([purchase(0), purchase(1, price=2000.0)])
        session.advance()
        before = session.last_batch
        last = session.add("SELECT COUNT(*) AS n FROM TUMBLE(p, '1 second')", name="last")
        source.append([purchase(2)])
        session.advance()
        assert last.status == "live"
        assert session.last_batch <= before + 2
        source.append([purchase(5)])
        session.advance()
        assert last.results().to_pylist() == [{"n": 1}]


def test_the_stream_continues_while_a_hundred_queries_a_second_are_added_and_removed(spark: Any) -> None:
    """Like the benchmark of thirty seconds, but shorter: rows are still read, and every request succeeds."""
    seconds = int(os.environ.get("HEADRACE_CHURN_SECONDS", "6"))
    source = hr.RateSource(20_000, "purchases", keys=100)
    with hr.Session(spark=spark) as session:
        session.create_stream("p", source, time="time")
        steady = session.add("SELECT gem_pack, COUNT(*) AS n FROM TUMBLE(p, '1 second') GROUP BY gem_pack", name="steady")
        session.advance()
        session.start()
        start, served, rows = time.monotonic(), 0, []
        alive: list[str] = []
        while time.monotonic() - start < seconds:
            name = f"c{served}"
            session.add(
                f"SELECT user_id, SUM(price) s FROM HOP(p, '4 s', '{served % 3 + 1} s') WHERE price > {served} GROUP BY user_id",
                name=name,
                sink="noop",
            )
            alive.append(name)
            if len(alive) > 50:
                session.remove(alive.pop(0))
            served += 1
            rows.append(session.streams()["p"]["rows"])
            time.sleep(max(0.0, start + served / 100 - time.monotonic()))
        session.query(alive[-1]).wait_live(30)
        session.stop()
        assert served > seconds * 50
        assert rows[-1] > rows[len(rows) // 2] > 0
        assert steady.emitted > 0
        assert steady.status == "live"


def test_a_streaming_data_frame_can_be_a_source(spark: Any, tmp_path: Path) -> None:
    incoming = tmp_path / "in"
    incoming.mkdir()
    pa.parquet.write_table(pa.Table.from_pylist([purchase(0), purchase(1, price=30.0)]), incoming / "a.parquet")
    schema = spark.read.parquet(str(incoming)).schema
    frame = spark.readStream.schema(schema).parquet(str(incoming)).selectExpr("user_id", "price", "time")
    with hr.Session(tmp_path / "checkpoint", spark=spark) as session:
        session.create_stream("frames", frame, time="time")
        query = session.add("SELECT COUNT(*) AS n, SUM(price) AS total FROM TUMBLE(frames, '10 seconds')")
        session._coordinator.sources["frames"].wait()
        session.drain()
        assert query.results().to_pylist() == [{"n": 2, "total": 40.0}]


def test_rows_of_a_streaming_data_frame_are_refused_if_they_change(spark: Any, tmp_path: Path) -> None:
    incoming, rows = tmp_path / "in", tmp_path / "checkpoint" / "sources" / "frames" / "rows"
    incoming.mkdir()
    pa.parquet.write_table(pa.Table.from_pylist([purchase(0)]), incoming / "a.parquet")
    frame = spark.readStream.schema(spark.read.parquet(str(incoming)).schema).parquet(str(incoming))
    with hr.Session(tmp_path / "checkpoint", spark=spark) as session:
        session.create_stream("frames", frame, time="time")
        session.add("SELECT price FROM frames")
        session._coordinator.sources["frames"].wait()
        (path,) = rows.iterdir()
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        session.advance()
        assert path.name in session.streams()["frames"]["error"]
        (rows.parent / "0000000000.json").write_text("[]")
        session.advance()
        assert "0000000000.json" in session.streams()["frames"]["error"]


def test_an_unreadable_file_degrades_its_stream_and_no_rows_are_lost(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,time\n1,2026-01-01 00:00:00\n")
    with hr.Session(spark=spark) as session:
        session.create_stream("s", hr.FileSource(tmp_path, schema="x INT, time TIMESTAMP"), time="time")
        other = hr.MemorySource("y INT, time TIMESTAMP")
        session.create_stream("other", other, time="time")
        query = session.add("SELECT SUM(x) AS s FROM TUMBLE(s, '1 second')")
        bystander = session.add("SELECT y FROM other")
        session.advance()
        (tmp_path / "b.csv").write_text("x,time\nnonsense,2026-01-01 00:00:09\n")
        other.append([{"y": 7, "time": "2026-01-01T00:00:00Z"}])
        session.advance()
        assert bystander.results().to_pylist() == [{"y": 7}]
        assert session.streams()["s"]["status"] == "degraded"
        assert "b.csv" in session.streams()["s"]["error"]
        (tmp_path / "b.csv").write_text("x,time\n0000002,2026-01-01 00:00:09\n\n")
        session.drain()
        assert query.results().to_pylist() == [{"s": 1}, {"s": 2}]


def test_bad_lines_are_skipped_and_a_stream_is_dropped(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x,time\n1,2026-01-01 00:00:00\nnonsense,2026-01-01 00:00:01\n")
    source = hr.FileSource(
        tmp_path / "in", schema="x INT, time TIMESTAMP", on_error="skip_row", dead_letter=f"jsonl:{tmp_path / 'dead'}"
    )
    with hr.Session(spark=spark) as session:
        session.create_stream("s", source, time="time")
        query = session.add("SELECT x FROM s")
        session.add("SELECT x FROM s", name="files", sink=f"parquet:{tmp_path / 'out'}")
        session.advance()
        assert query.results().to_pylist() == [{"x": 1}]
        assert pa.parquet.read_table(tmp_path / "out").to_pylist() == [{"x": 1}]
        assert list((tmp_path / "out" / "_pending").iterdir()) == []
        assert [row["line"] for row in session.streams()["s"]["skipped_samples"]] == [3]
        assert len([line for path in (tmp_path / "dead").glob("part-*") for line in path.read_text().splitlines()]) == 1
        session.drop_stream("s", cascade=True)
        session.advance()
        assert (session.streams(), query.status) == ({}, "removed")


@pytest.mark.parametrize("failure", ["raises", "dies"])
def test_a_failing_worker_is_reported_and_no_rows_are_lost(spark: Any, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    def failing(job: Any, tasks: Any) -> Any:
        if failure == "dies":
            os._exit(3)
        raise ValueError("out of luck")

    purchases = hr.MemorySource("user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP")
    with hr.Session(spark=spark, partitions=2) as session:
        session.create_stream("purchases", purchases, time="time")
        query = session.add("SELECT COUNT(*) AS n FROM TUMBLE(purchases, '10 seconds')")
        purchases.append([purchase(1)])
        with monkeypatch.context() as broken:
            broken.setattr(pipeline, "read_select_slice_aggregate", failing)
            with pytest.raises(SessionError, match="batch 0 failed on Spark") as caught:
                session.advance()
        assert ("ValueError: out of luck" if failure == "raises" else "worker exited") in str(caught.value)
        assert "\n\tat " not in str(caught.value)  # no stack trace of the JVM
        purchases.append([purchase(2)])
        session.drain()
        assert query.results().to_pylist() == [{"n": 2}]
