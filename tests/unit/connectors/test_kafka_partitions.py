"""Event time over partitions of a topic: one an hour behind loses no row, an idle one holds up results for `idle` only."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

import headrace as hr
from support.kafka_feed import START, Feed

COUNT = "SELECT COUNT(*) AS n FROM TUMBLE(s, '10 seconds')"


def send_row(feed: Feed, partition: int, second: float) -> None:
    row = {"k": partition, "v": 1, "time": (START + timedelta(seconds=second)).isoformat()}
    feed.put(json.dumps(row), partition=partition)


def read_windows(query: hr.Query) -> dict[float, int]:
    rows = query.results().to_pylist()
    return {(row["window_start"] - START).total_seconds(): row["n"] for row in rows}


@pytest.mark.kafka
def test_a_partition_that_is_an_hour_behind_loses_no_row(feed: Feed):
    for second in range(600):
        send_row(feed, 0, 3600 + second)
    for second in range(4200):  # from an hour before up to the same time
        send_row(feed, 1, second)
    feed.producer.flush()
    with feed.open(max_rows_per_batch=400) as session:
        query = session.add(f"SELECT window_start, {COUNT.removeprefix('SELECT ')}")
        while session.has_work():
            session.advance()
        assert session._coordinator.state.streams["s"].idle_partitions == frozenset()
        session.drain()
        assert query.late == {}
        windows = read_windows(query)
    assert windows == {start: 10 if start < 3600 else 20 for start in range(0, 4200, 10)}


@pytest.mark.kafka
def test_an_idle_partition_holds_results_for_as_long_as_declared(feed: Feed):
    clock = 1_767_225_600_000_000
    with feed.open() as session:  # idle: 10 seconds
        session._coordinator.read_clock = lambda: clock
        query = session.add(f"SELECT window_start, {COUNT.removeprefix('SELECT ')}")
        send_row(feed, 1, 3)
        closed = []
        for second in range(0, 30, 2):
            send_row(feed, 0, second)
            feed.producer.flush()
            while not session.advance().rows:
                pass
            closed.append((second, len(read_windows(query))))
            clock += 2_000_000
        windows = read_windows(query)
    first = next(second for second, count in closed if count)
    assert first == 10  # the other partition had its row 10 s before
    assert closed[-1] == (28, 2)
    assert windows == {0: 6, 10: 5}
