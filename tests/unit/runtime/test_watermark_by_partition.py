"""Watermarks by partition: the partition that is furthest behind counts, unless it is idle."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import SchemaError
from support.partitioned_source import PartitionedSource

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
COUNTS = "SELECT window_start, COUNT(*) AS n FROM TUMBLE(s, '10 seconds')"


class PartitionedRun:
    """A session over a partitioned stream, whose clock the test sets, in seconds."""

    def __init__(self, path: Path, partitions: int, backend: str = "local", **options: object) -> None:
        self.path, self.backend, self.options, self.now = path, backend, options, 0.0
        self.source = PartitionedSource("v INT, time TIMESTAMP", partitions)
        self.open()

    def open(self) -> None:
        self.session = hr.Session(backend=self.backend, checkpoint=str(self.path))
        self.session._coordinator.read_clock = lambda: int(self.now * SECOND)
        self.session.create_stream("s", self.source, time="time", watermark_by="partition", **self.options)
        self.query = self.session.add(COUNTS, name="q")

    def send(self, partition: int, *seconds: float) -> None:
        self.source.append(partition, [{"v": 1, "time": START + timedelta(seconds=s)} for s in seconds])

    def emit(self, *, at: float | None = None) -> dict[int, int]:
        """Run a batch at a time of the clock; return all counts so far, by the second at which the window starts."""
        self.now = self.now if at is None else at
        self.session.advance()
        return {int((row["window_start"] - START).total_seconds()): row["n"] for row in self.query.results().to_pylist()}


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_partition_that_is_an_hour_behind_loses_no_row(tmp_path: Path, backend: str):
    # partition 0:   3600 ──── 3605 ─ 3625 ─ …        its windows wait
    # partition 1:   0 ─ 5 ─ 12 ──── … ──── 3605      its rows are not late
    with_hour = PartitionedRun(tmp_path, 2, backend)
    with_hour.send(0, 3600, 3605, 3625)
    with_hour.send(1, 0, 5)
    assert with_hour.emit() == {}
    with_hour.send(0, 3640)
    with_hour.send(1, 12)
    assert with_hour.emit() == {0: 2}
    with_hour.send(1, 3604)
    assert with_hour.emit() == {0: 2, 10: 1}
    with_hour.send(1, 3700)
    assert with_hour.emit() == {0: 2, 10: 1, 3600: 3, 3620: 1}
    assert with_hour.query.late == {}
    with_hour.session.close()


def test_with_a_watermark_of_the_stream_it_loses_them(tmp_path: Path):
    session = hr.Session(backend="local", checkpoint=str(tmp_path))
    source = PartitionedSource("v INT, time TIMESTAMP", 2)
    session.create_stream("s", source, time="time")
    query = session.add(COUNTS)
    for partition, second in ((0, 3600), (1, 0), (0, 3620), (1, 12)):
        source.append(partition, [{"v": 1, "time": START + timedelta(seconds=second)}])
        session.advance()
    assert query.late == {"s": 2}
    session.close()


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_an_idle_partition_holds_results_no_longer_than_idle(tmp_path: Path, backend: str):
    run = PartitionedRun(tmp_path, 2, backend, idle="30 seconds")
    run.send(0, 1)
    run.send(1, 2)
    assert run.emit(at=100) == {}
    run.send(0, 15)
    assert run.emit(at=129) == {}  # partition 1 had rows 29 seconds ago
    run.send(0, 16)
    assert run.emit(at=130) == {0: 2}
    run.send(1, 17, 3)  # it is back: its rows count again, except in windows that were emitted
    run.send(0, 27)
    assert run.emit(at=131) == {0: 2}
    run.send(1, 28)
    assert run.emit(at=132) == {0: 2, 10: 3}
    assert run.query.late == {"s": 1}
    run.session.close()


def test_a_partition_without_any_row_is_waited_for_as_long(tmp_path: Path):
    run = PartitionedRun(tmp_path, 3)
    run.send(0, 1, 15)
    run.send(1, 1, 15)
    assert run.emit(at=0) == {}
    run.send(0, 16)
    assert run.emit(at=9) == {}
    run.send(1, 16)
    assert run.emit(at=10) == {0: 2}
    run.session.close()


def test_no_partition_is_idle_because_the_session_was_down(tmp_path: Path):
    run = PartitionedRun(tmp_path, 2)
    run.send(0, 1)
    run.send(1, 2)
    run.emit(at=0)
    run.session.close()
    run.now = 1000
    run.open()
    run.send(0, 25)
    assert run.emit() == {}
    run.send(1, 3)
    run.send(0, 26)
    run.emit(at=1009)
    assert run.query.late == {}
    run.session.close()


def test_a_new_partition_is_waited_for(tmp_path: Path):
    run = PartitionedRun(tmp_path, 1)
    run.send(0, 1, 15)
    assert run.emit(at=0) == {0: 1}
    run.source.add_partition()
    run.send(0, 35)
    assert run.emit(at=1) == {0: 1}
    run.send(1, 12, 40)
    assert run.emit(at=2) == {0: 1, 10: 2}
    run.session.close()


def test_rows_of_the_future_do_not_move_the_watermark_of_their_partition(tmp_path: Path):
    run = PartitionedRun(tmp_path, 2, max_ahead="1 hour")
    run.now = START.timestamp()
    run.send(0, 5, 10_000)
    run.send(1, 15, 25)
    assert run.emit() == {}
    assert run.session.streams()["s"]["ahead"] == 1
    run.session.close()


@pytest.mark.parametrize("seed", range(6))
def test_shared_equals_reference_with_partitions_of_any_speed(tmp_path: Path, seed: int):
    def run_with(backend: str) -> tuple[list[dict[int, int]], dict[str, int]]:
        chance = random.Random(seed)
        run = PartitionedRun(tmp_path / backend, 3, backend)
        times, seen = [0.0, 300.0, 3000.0], []
        for step in range(12):
            for partition in range(3):
                if chance.random() < 0.7:
                    rows = [times[partition] + chance.uniform(-4, 4) for _ in range(chance.randint(1, 5))]
                    run.send(partition, *(max(0.0, second) for second in rows))
                    times[partition] += chance.uniform(0, 20)
            seen.append(run.emit(at=step * chance.choice([1, 4])))
        run.session.drain()
        seen.append(run.emit())
        late = run.query.late
        run.session.close()
        return seen, late

    assert run_with("local") == run_with("reference")


def test_a_source_without_partitions_has_no_watermark_by_partition(tmp_path: Path):
    session = hr.Session(backend="local", checkpoint=str(tmp_path))
    with pytest.raises(SchemaError, match="the source has no partitions"):
        session.create_stream("s", hr.MemorySource("time TIMESTAMP"), time="time", watermark_by="partition")
    session.close()
