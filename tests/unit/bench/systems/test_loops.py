"""The single-process systems (limit and DuckDB) on rows of a driver must agree on every window."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.measure.collector import ResultCollector
from headrace.bench.queries.dialects import BenchAggregate, ColumnComparison
from headrace.bench.queries.profit import ProfitQueries
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.process import SutProcess

pytestmark = pytest.mark.usefixtures("preloaded")

TIMEOUT = 60.0
SECOND = 1_000_000
PURCHASES = StreamSpec("purchases", "purchases", keys=50, key="user_id", disorder=0.1, watermark=0.1, pool_rows=100_000)
ADS = StreamSpec("ads", "ads", keys=40, key="user_id", disorder=0.1, watermark=0.1, pool_rows=100_000)
SUMS = build_window_aggregation(
    "sums",
    "purchases",
    ["user_id"],
    [BenchAggregate("SUM", "price", "total")],
    ColumnComparison("price", ">", 99.5),
    SECOND // 2,
    SECOND // 8,
)
PROFIT = ProfitQueries(size="500 milliseconds", slide="250 milliseconds").queries(1)[0]


def add_counts(counts: dict[int, int], collector: ResultCollector) -> dict[int, int]:
    emissions = collector.take()
    for end, rows in zip(emissions.window_end_us.tolist(), emissions.rows.tolist(), strict=True):
        counts[end] = counts.get(end, 0) + rows
    return counts


@pytest.mark.parametrize("query", [SUMS, PROFIT], ids=lambda query: query.name)
def test_the_kernel_and_duckdb_give_the_same_counts(query: BenchQuery, tmp_path: Path):
    streams = (PURCHASES, ADS)
    counts: list[dict[int, int]] = [{}, {}]
    with DriverProcess(streams, 1_000_000) as driver, ResultCollector() as first, ResultCollector() as second:
        offered = tuple(SutStream(stream) for stream in streams)
        configs = [SutConfig(driver.address, c.address, tmp_path, offered, (query,)) for c in (first, second)]
        with SutProcess("limit", configs[0]) as limit, SutProcess("duckdb", configs[1]) as duckdb:
            for system in (limit, duckdb):
                system.wait_ready(TIMEOUT)
                assert system.events() == []
            driver.start(RateScript.constant(20_000))
            end = time.monotonic() + TIMEOUT
            while time.monotonic() < end and min(map(len, counts)) < 8:
                time.sleep(0.01)
                counts = [add_counts(counts[0], first), add_counts(counts[1], second)]
            assert limit.events() == duckdb.events() == []
    common_ends = sorted(set(counts[0]) & set(counts[1]))[:-1]  # the last window may be incomplete
    assert len(common_ends) >= 6
    assert {end: counts[0][end] for end in common_ends} == {end: counts[1][end] for end in common_ends}
    assert min(counts[0][end] for end in common_ends) > 0


def test_the_kernel_refuses_a_second_query(tmp_path: Path):
    with DriverProcess([PURCHASES], 1_000) as driver, ResultCollector() as collector:
        queries = (
            SUMS,
            build_window_aggregation("more", "purchases", [], [BenchAggregate("COUNT", None, "n")], None, SECOND, SECOND),
        )
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(PURCHASES),), queries)
        with SutProcess("limit", config) as system:
            system.wait_ready(TIMEOUT)
            assert [(e.event, e.query, e.reason) for e in system.events()] == [
                ("refused", "more", "the hand-written kernel runs a single query")
            ]


def test_duckdb_adds_and_removes_queries_at_run_time(tmp_path: Path):
    with DriverProcess([PURCHASES], 1_000_000) as driver, ResultCollector() as collector:
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(PURCHASES),))
        with SutProcess("duckdb", config) as system:
            system.wait_ready(TIMEOUT)
            driver.start(RateScript.constant(2_000))
            system.add(SUMS)
            wrong = BenchQuery("wrong", ("purchases",), {"duckdb": "SELECT ? AS window_end FROM nowhere"}, SECOND, SECOND)
            system.add(wrong)
            system.add(BenchQuery("untold", ("purchases",), {"flink": "SELECT 1"}, SECOND, SECOND))
            end, counts, events = time.monotonic() + TIMEOUT, {}, []
            while time.monotonic() < end and (len(counts) < 2 or len(events) < 3):
                time.sleep(0.01)
                add_counts(counts, collector)
                events += [(e.event, e.query) for e in system.events()]
            assert sorted(events) == [("live", "sums"), ("refused", "untold"), ("refused", "wrong")]
            system.remove("sums")
            while time.monotonic() < end and not (events := system.events()):
                time.sleep(0.01)
            assert [(e.event, e.query) for e in events] == [("removed", "sums")]
    assert len(counts) >= 2
