"""Systems under test beside each other, fed by one driver: they must agree about every window."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.measure.collector import ResultCollector
from headrace.bench.queries.dialects import BenchAggregate, ColumnComparison
from headrace.bench.queries.query import build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.jvm_connector import find_java_compiler
from headrace.bench.systems.process import SutProcess
from headrace.errors import HeadraceError

pytestmark = pytest.mark.spark

SECOND = 1_000_000
PATIENCE = 180.0
WINDOWS = 6  # of the slower query
STREAMS = (StreamSpec("purchases", "purchases", keys=300, key="user_id"), StreamSpec("bids", "bids"))
QUERIES = (
    build_window_aggregation(
        "sums",
        "purchases",
        ["user_id"],
        [BenchAggregate("SUM", "price", "total")],
        ColumnComparison("price", ">", 95.0),
        2 * SECOND,
        SECOND,
    ),
    build_window_aggregation("texts", "bids", ["channel"], [BenchAggregate("COUNT", None, "n")], None, SECOND, SECOND),
)

Counts = dict[tuple[str, int], int]


def add_up(found: Counts, collector: ResultCollector) -> None:
    emissions = collector.take()
    names = [emissions.query_names[code] for code in emissions.query_code.tolist()]
    for name, end, rows in zip(names, emissions.window_end_us.tolist(), emissions.rows.tolist(), strict=True):
        found[name, end] = found.get((name, end), 0) + rows


def results(systems: list[str], scratch: Path) -> dict[str, Counts]:
    """Run systems on the same rows until each has told enough windows of each query."""
    with ExitStack() as stack:
        driver = stack.enter_context(DriverProcess(STREAMS, 1_000_000))
        collectors, found = {}, {system: Counts() for system in systems}
        for system in systems:
            collectors[system] = stack.enter_context(ResultCollector())
            (scratch / system).mkdir()
            offered = tuple(SutStream(stream) for stream in STREAMS)
            config = SutConfig(driver.address, collectors[system].address, scratch / system, offered, QUERIES)
            subject = stack.enter_context(SutProcess(system, config))
            subject.wait_ready(PATIENCE)
            assert subject.events() == []
        driver.start(RateScript.constant(5_000))
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and any(sum(n == q.name for n, _ in c) < WINDOWS for q in QUERIES for c in found.values()):
            time.sleep(0.1)
            for system, collector in collectors.items():
                add_up(found[system], collector)
        return found


def agree(found: dict[str, Counts]) -> None:
    """Compare what all have told, but for the last windows, which may not be told whole."""
    both = set.intersection(*map(set, found.values()))
    last = {query.name: max(end for name, end in both if name == query.name) for query in QUERIES}
    whole = sorted((name, end) for name, end in both if end < last[name])
    assert {name for name, _ in whole} == {query.name for query in QUERIES}
    assert len(whole) >= WINDOWS
    first, *others = ({window: counts[window] for window in whole} for counts in found.values())
    assert all(other == first for other in others)


def test_headrace_agrees_with_duckdb(tmp_path: Path):
    agree(results(["headrace", "duckdb"], tmp_path))


def test_structured_streaming_agrees_with_duckdb_or_says_what_it_lacks(tmp_path: Path):
    if find_java_compiler() is None:
        with pytest.raises(HeadraceError, match="no Java compiler found"):
            results(["spark"], tmp_path)
        return
    agree(results(["spark", "duckdb"], tmp_path))
