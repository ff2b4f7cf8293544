"""Several systems under test, fed by one driver: their results must agree in every window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.bench.cluster import BenchCluster
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
TIMEOUT_SECONDS = 300.0  # for busy machines
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


def add_counts(found: Counts, collector: ResultCollector) -> None:
    emissions = collector.take()
    names = [emissions.query_names[code] for code in emissions.query_code.tolist()]
    for name, end, rows in zip(names, emissions.window_end_us.tolist(), emissions.rows.tolist(), strict=True):
        found[name, end] = found.get((name, end), 0) + rows


def count_results(systems: list[str], scratch: Path, clusters: Mapping[str, BenchCluster] | None = None) -> dict[str, Counts]:
    """Run systems on the same rows until each has emitted enough windows of each query; some of them on nodes."""
    with ExitStack() as stack:
        driver = stack.enter_context(DriverProcess(STREAMS, 1_000_000))
        collectors, found = {}, {system: Counts() for system in systems}
        for system in systems:
            collectors[system] = stack.enter_context(ResultCollector())
            (scratch / system).mkdir()
            offered = tuple(SutStream(stream) for stream in STREAMS)
            cluster = (clusters or {}).get(system)
            config = SutConfig(driver.address, collectors[system].address, scratch / system, offered, QUERIES, {}, cluster)
            process = stack.enter_context(SutProcess(system, config))
            process.wait_ready(TIMEOUT_SECONDS)
            if cluster is not None:
                process.limit_nodes()
            assert process.events() == []
        driver.start(RateScript.constant(5_000))
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end and any(sum(n == q.name for n, _ in c) < WINDOWS for q in QUERIES for c in found.values()):
            time.sleep(0.1)
            for system, collector in collectors.items():
                add_counts(found[system], collector)
        return found


def assert_agreement(found: dict[str, Counts]) -> None:
    """Compare the windows that all systems have emitted, except the last ones, which may be incomplete."""
    common = set.intersection(*map(set, found.values()))
    last = {query.name: max(end for name, end in common if name == query.name) for query in QUERIES}
    complete = sorted((name, end) for name, end in common if end < last[name])
    assert {name for name, _ in complete} == {query.name for query in QUERIES}
    assert len(complete) >= WINDOWS
    first, *others = ({window: counts[window] for window in complete} for counts in found.values())
    assert all(other == first for other in others)


def test_headrace_on_two_nodes_and_structured_streaming_agree_with_duckdb(tmp_path: Path):
    """A standalone cluster with two executors of a core each runs headrace.

    Structured Streaming needs a Java compiler for its connector; without one it must say so.
    """
    systems = ["headrace", "spark", "duckdb"]
    if find_java_compiler() is None:
        systems.remove("spark")
        (tmp_path / "without").mkdir()
        with pytest.raises(HeadraceError, match="no Java compiler found"):
            count_results(["spark"], tmp_path / "without")
    assert_agreement(count_results(systems, tmp_path, {"headrace": BenchCluster(2, 1.0, 512)}))
