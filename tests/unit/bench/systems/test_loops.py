"""The engines that are loops in one process, fed by a driver: they must agree about every window."""

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

PATIENCE = 60.0
SECOND = 1_000_000
PURCHASES = StreamSpec("purchases", "purchases", keys=50, key="user_id", disorder=0.1, watermark=0.1)
ADS = StreamSpec("ads", "ads", keys=40, key="user_id", disorder=0.1, watermark=0.1)
SUMS = build_window_aggregation(
    "sums",
    "purchases",
    ["user_id"],
    [BenchAggregate("SUM", "price", "total")],
    ColumnComparison("price", ">", 99.5),
    SECOND,
    SECOND // 4,
)
PROFIT = ProfitQueries(size="1 second", slide="500 milliseconds").queries(1)[0]


def counted(found: dict[int, int], collector: ResultCollector) -> dict[int, int]:
    emissions = collector.take()
    for end, rows in zip(emissions.window_end_us.tolist(), emissions.rows.tolist(), strict=True):
        found[end] = found.get(end, 0) + rows
    return found


@pytest.mark.parametrize("query", [SUMS, PROFIT], ids=lambda query: query.name)
def test_the_kernel_and_duckdb_find_the_same(query: BenchQuery, tmp_path: Path):
    streams = (PURCHASES, ADS)
    found: list[dict[int, int]] = [{}, {}]
    with DriverProcess(streams, 1_000_000) as driver, ResultCollector() as first, ResultCollector() as second:
        offered = tuple(SutStream(stream) for stream in streams)
        configs = [SutConfig(driver.address, c.address, tmp_path, offered, (query,)) for c in (first, second)]
        with SutProcess("limit", configs[0]) as limit, SutProcess("duckdb", configs[1]) as duckdb:
            for system in (limit, duckdb):
                system.wait_ready(PATIENCE)
                assert system.events() == []
            driver.start(RateScript.constant(2_000))
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and min(map(len, found)) < 8:
                time.sleep(0.05)
                found = [counted(found[0], first), counted(found[1], second)]
            assert limit.events() == duckdb.events() == []
    both = sorted(set(found[0]) & set(found[1]))[:-1]  # the last one may not be told whole
    assert len(both) >= 6
    assert {end: found[0][end] for end in both} == {end: found[1][end] for end in both}
    assert min(found[0][end] for end in both) > 0


def test_a_second_query_is_refused_by_the_kernel(tmp_path: Path):
    with DriverProcess([PURCHASES], 1_000) as driver, ResultCollector() as collector:
        asked = (
            SUMS,
            build_window_aggregation("more", "purchases", [], [BenchAggregate("COUNT", None, "n")], None, SECOND, SECOND),
        )
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(PURCHASES),), asked)
        with SutProcess("limit", config) as system:
            system.wait_ready(PATIENCE)
            assert [(e.event, e.query, e.reason) for e in system.events()] == [
                ("refused", "more", "the hand-written kernel runs a single query")
            ]


def test_duckdb_takes_queries_while_it_runs(tmp_path: Path):
    with DriverProcess([PURCHASES], 1_000_000) as driver, ResultCollector() as collector:
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(PURCHASES),))
        with SutProcess("duckdb", config) as system:
            system.wait_ready(PATIENCE)
            driver.start(RateScript.constant(2_000))
            system.add(SUMS)
            wrong = BenchQuery("wrong", ("purchases",), {"duckdb": "SELECT ? AS window_end FROM nowhere"}, SECOND, SECOND)
            system.add(wrong)
            system.add(BenchQuery("untold", ("purchases",), {"flink": "SELECT 1"}, SECOND, SECOND))
            end, found, heard = time.monotonic() + PATIENCE, {}, []
            while time.monotonic() < end and (len(found) < 2 or len(heard) < 3):
                time.sleep(0.05)
                counted(found, collector)
                heard += [(e.event, e.query) for e in system.events()]
            assert sorted(heard) == [("live", "sums"), ("refused", "untold"), ("refused", "wrong")]
            system.remove("sums")
            while time.monotonic() < end and not (heard := system.events()):
                time.sleep(0.05)
            assert [(e.event, e.query) for e in heard] == [("removed", "sums")]
    assert len(found) >= 2
