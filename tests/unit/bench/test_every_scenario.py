"""Every scenario runs on every system that it lists, with few rows: a query that fails or has no result is noticed here.

headrace gets rows of the streams' own generators and closes all windows. Systems that are loops in one process are started with
the rows of a driver, like headrace with its local back-end, and make all query changes of the scenario. Spark checks the texts
of its queries in `tests/spark/test_scenarios_on_spark.py`. Of Flink, which is not installed here, the texts are parsed, and
compared with the columns of the streams.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.generator import build_pools
from headrace.bench.driver.rates import RateScript, RateSegment
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.measure.collector import ResultCollector
from headrace.bench.queries.query import BenchQuery
from headrace.bench.scenarios.scenario import SYSTEMS, Scenario, list_scenarios, load_scenario
from headrace.bench.systems.adapter import SutAdapter, SutConfig, SutStream
from headrace.bench.systems.duckdb import DuckDbAdapter
from headrace.bench.systems.headrace import HeadraceAdapter, declare_stream
from headrace.bench.systems.limit import LimitAdapter
from headrace.bench.systems.process import SutEventWriter
from headrace.connectors import MemorySource
from headrace.session import Session

pytestmark = pytest.mark.usefixtures("preloaded", "small_warm_up")

TIMEOUT = 60.0
ROWS, SPAN_US = 6_000, 12_000_000  # over all streams
DRIVER_ROWS, DRIVER_RATE = 1_000, 20_000
# No row after the last one: on a busy machine, joins of all rows that were due while kernels were loaded take gigabytes.
DRIVER_SCRIPT = RateScript((RateSegment(DRIVER_ROWS / DRIVER_RATE, DRIVER_RATE, DRIVER_RATE), RateSegment(1.0, 0.0, 0.0)))
SLIDING_JOINS: dict[str, dict[str, Any]] = {
    "headrace": {},
    "headrace_common": {"sliding_plan": "common"},
    "headrace_apart": {"sliding_plan": "common", "sliding_sharing": False},
}
ADAPTERS: dict[str, Callable[[], SutAdapter]] = {
    "headrace": lambda: HeadraceAdapter(backend="local"),
    "headrace_local": lambda: HeadraceAdapter(backend="local"),
    "limit": LimitAdapter,
    "duckdb": DuckDbAdapter,
}
ELSEWHERE = {"spark", "flink"}  # see the module docstring


def load_small(name: str) -> Scenario:
    """Return a scenario whose few rows have partners: with fewer keys, and small relations."""
    scenario = load_scenario(name)
    return replace(scenario, streams=tuple(map(shrink_stream, scenario.streams)), cluster=None, topic=None)


def shrink_stream(stream: StreamSpec) -> StreamSpec:
    return replace(
        stream,
        pool_rows=ROWS,
        keys=min(stream.keys, 1_000),
        match_every=min(stream.match_every, 10),
        scale=min(stream.scale, 0.01),
    )


def list_pairs(systems: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, system) for name in list_scenarios() for system in load_scenario(name).systems if system in systems]


def make_stream_rows(scenario: Scenario, stream: StreamSpec) -> pa.Table:
    """Return the rows of a stream's share, at equal distances of event time."""
    count = round(ROWS * stream.share / sum(other.share for other in scenario.used_streams())) or 1
    pool, numbers = build_pools(stream)[0], np.arange(count)
    columns = {name: values.take(pa.array(numbers % pool.rows)) for name, values in pool.columns.items()}
    times = pa.array(numbers * SPAN_US // count).cast(pa.timestamp("us"))
    return pa.table({**columns, stream.time_column: times}).cast(stream.schema.to_arrow())


@pytest.mark.parametrize(("name", "system"), list_pairs(SLIDING_JOINS))
def test_headrace_has_results_for_every_scenario(name: str, system: str, tmp_path: Path):
    scenario = load_small(name)
    config = SutConfig("", "", tmp_path, tuple(SutStream(stream) for stream in scenario.used_streams()))
    with Session(backend="local", partitions=2, **SLIDING_JOINS[system]) as session:
        for stream in scenario.used_streams():
            source = MemorySource(stream.schema)
            declare_stream(session, config, stream.name, source)
            source.append(make_stream_rows(scenario, stream))
        names = [query.name for query in scenario.peak_queries()]
        for query in scenario.peak_queries():
            session.add(query.sql["headrace"], name=query.name)
        session.drain()
        assert {query.name: query.error for query in session.queries() if query.status == "failed"} == {}
        with_results = [query for query in names if session.query(query).results().num_rows]
        assert len(with_results) >= len(names) / 3  # others have predicates that few rows satisfy


class StartedSystem:
    """An adapter of a system, the driver whose rows it reads, and the events that it wrote."""

    def __init__(self, adapter: SutAdapter, scenario: Scenario, driver: DriverProcess) -> None:
        self.adapter, self._scenario, self._driver, self._out = adapter, scenario, driver, io.StringIO()

    def start(self, collector: ResultCollector, scratch: Path) -> None:
        streams = tuple(SutStream(stream) for stream in self._scenario.used_streams())
        config = SutConfig(self._driver.address, collector.address, scratch, streams, self._scenario.initial_queries())
        self.adapter.start(config, SutEventWriter(self._out))

    def change(self, added: list[BenchQuery], removed: list[str]) -> None:
        """Change the queries, and wait until the changes are reported."""
        if added or removed:
            expected = len(self.list_events()) + len(added) + len(removed)
            self.adapter.change(added, removed)
            self.wait_until(lambda: len(self.list_events()) == expected)

    def list_events(self) -> list[tuple[str, str]]:
        return [(event["event"], event["query"]) for event in map(json.loads, self._out.getvalue().splitlines())]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            self.adapter.check()
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize(("name", "system"), list_pairs(ADAPTERS))
def test_every_system_starts_every_scenario_and_makes_its_changes(name: str, system: str, tmp_path: Path):
    scenario = load_small(name)
    added = [query for step in scenario.build_steps() for query in step.add]
    added_names = {query.name for query in added}
    removed = [query for step in scenario.build_steps() for query in step.remove]
    with DriverProcess(scenario.used_streams(), 1_000_000) as driver, ResultCollector() as collector:
        started = StartedSystem(ADAPTERS[system](), scenario, driver)
        try:
            started.start(collector, tmp_path)
            driver.start(DRIVER_SCRIPT)
            started.change(added, [query for query in removed if query not in added_names])
            started.change([], [query for query in removed if query in added_names])
            started.wait_until(lambda: driver.status().read >= DRIVER_ROWS // 2)
            started.adapter.check()
        finally:
            started.adapter.close()
    assert sorted(started.list_events()) == sorted([*(("live", q.name) for q in added), *(("removed", q) for q in removed)])


def test_every_system_of_a_scenario_is_covered_here_or_elsewhere():
    assert set(SYSTEMS) == ADAPTERS.keys() | SLIDING_JOINS.keys() | ELSEWHERE


@pytest.mark.parametrize("name", [name for name, _ in list_pairs({"flink"})])
def test_the_texts_for_flink_parse_and_read_columns_that_exist(name: str):
    scenario = load_scenario(name)
    streams = {stream.name: {field.name for field in stream.schema} for stream in scenario.used_streams()}
    for query in scenario.peak_queries():
        check_flink_text(query, streams)


INTERVAL = r"INTERVAL '[\d.]+' (?:DAY|HOUR|MINUTE|SECOND)(?:\(\d+\))?"
FLINK_WINDOWS = (
    re.compile(rf"TABLE\(TUMBLE\(TABLE `(\w+)`, DESCRIPTOR\(`time`\), {INTERVAL}\)\)"),
    re.compile(rf"TABLE\(HOP\(TABLE `(\w+)`, DESCRIPTOR\(`time`\), {INTERVAL}, {INTERVAL}\)\)"),
)


def check_flink_text(query: BenchQuery, streams: dict[str, set[str]]) -> None:
    """Parse a text without its window functions: it reads the streams of the query, and columns of these or of its own."""
    text = query.sql["flink"]
    for pattern in FLINK_WINDOWS:
        text = pattern.sub(r"`\1`", text)
    tree = sqlglot.parse_one(text, read="spark")
    assert {table.name for table in tree.find_all(exp.Table)} == set(query.streams), text
    own = {alias.alias for alias in tree.find_all(exp.Alias)} | {"window_start", "window_end"}
    columns = {column.name for column in tree.find_all(exp.Column) if not column.is_star}
    assert columns <= own.union(*(streams[stream] for stream in query.streams)), text
