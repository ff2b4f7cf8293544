"""The headrace adapter on the local backend: reads rows from a driver and sends counts to a collector."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace.bench.systems.headrace as module
from headrace.bench.driver.client import DriverProcess
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import STREAM_SCHEMAS, StreamSpec
from headrace.bench.measure.collector import ResultCollector
from headrace.bench.queries.dialects import BenchAggregate, ColumnComparison
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.headrace import HeadraceAdapter, make_rows, parse_sharing_option
from headrace.bench.systems.process import SutEventWriter
from headrace.errors import HeadraceError
from headrace.session import Session

pytestmark = pytest.mark.usefixtures("preloaded", "small_warm_up")

TIMEOUT = 60.0
SECOND = 1_000_000
FIELDS = StreamSpec("fields", "fields", keys=20, distribution="round_robin", pool_rows=10_000)


def make_query(name: str) -> BenchQuery:
    return build_window_aggregation(
        name, "fields", ["key"], [BenchAggregate("SUM", "f1", "total", integer=True)], None, SECOND // 2, SECOND // 4
    )


class StubDeployment:
    """No Spark, and no nodes."""

    def __init__(self, config: SutConfig) -> None:
        self._folder = config.scratch

    def start(self, _settings: dict[str, str]) -> None:
        """Start nothing."""

    def make_checkpoint(self, name: str) -> Path:
        return self._folder / name

    def describe(self) -> dict[str, str]:
        return {}

    def limit_nodes(self) -> None:
        """There are none."""

    check = close = limit_nodes


def open_local_session(checkpoint: Path | None = None, **options: object) -> Session:
    return Session(checkpoint, backend="local", partitions=2)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> HeadraceAdapter:
    monkeypatch.setattr(module, "SparkDeployment", StubDeployment)
    monkeypatch.setattr(module, "Session", open_local_session)
    return HeadraceAdapter()


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


def test_a_lost_driver_fails_the_adapter(adapter, tmp_path):
    with ResultCollector() as collector:
        with DriverProcess([FIELDS], 1_000_000) as driver:
            config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(FIELDS),), (make_query("a"),))
            adapter.start(config, SutEventWriter(io.StringIO()))
            adapter.check()
        with pytest.raises(HeadraceError, match="cannot be reached"):
            wait_until(lambda: adapter.check() is not None)
        adapter.close()


def test_queries_are_added_emit_results_and_are_removed(adapter, tmp_path):
    out = io.StringIO()

    def list_events() -> list[tuple[str, str]]:
        return [(e["event"], e["query"]) for e in map(json.loads, out.getvalue().splitlines())]

    def have_emitted(names: set[str]) -> bool:
        emissions = collector.take()
        emitted_names.update(emissions.query_names[code] for code in emissions.query_code.tolist())
        assert set(emissions.rows.tolist()) <= set(range(1, 21))
        return names <= emitted_names

    with DriverProcess([FIELDS], 1_000_000) as driver, ResultCollector() as collector:
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(FIELDS),), (make_query("a"),))
        started = adapter.start(config, SutEventWriter(out))
        assert started.settings["rows_per_batch"] > 0
        driver.start(RateScript.constant(2_000))
        wrong = BenchQuery("wrong", ("fields",), {"headrace": "SELECT nothing FROM fields"}, SECOND, SECOND)
        adapter.change([make_query("b"), wrong, BenchQuery("untold", ("fields",), {}, SECOND, SECOND)], [])
        assert wait_until(lambda: len(list_events()) == 3)
        assert sorted(list_events()) == [("live", "b"), ("refused", "untold"), ("refused", "wrong")]
        emitted_names: set[str] = set()
        assert wait_until(lambda: have_emitted({"a", "b"}))
        adapter.change([], ["a"])
        assert wait_until(lambda: list_events()[-1] == ("removed", "a"))
        adapter.check()
        adapter.close()


@pytest.mark.parametrize("schema", STREAM_SCHEMAS.values(), ids=list(STREAM_SCHEMAS))
def test_make_rows_supports_every_schema(schema):
    rows = make_rows(schema, 5, 3)
    assert rows.schema == schema.to_arrow()
    assert [moment.microsecond for moment in rows.column("time").to_pylist()] == [5, 6, 7]
    assert all(column.null_count == 0 for column in rows.columns)


def test_rows_for_sliding_joins_have_one_match_each():
    orders, lines = (make_rows(STREAM_SCHEMAS[name], 5_000, 3_000, 10_000) for name in ("orders", "lineitem"))
    assert orders.column("o_orderkey").to_pylist() == lines.column("l_orderkey").to_pylist() == list(range(5_000, 8_000))


def make_predicate_query(name: str, limit: int) -> BenchQuery:
    total = [BenchAggregate("SUM", "f1", "total", integer=True)]
    return build_window_aggregation(name, "fields", ["key"], total, ColumnComparison("f2", "<", limit), SECOND // 4, SECOND // 8)


def test_without_sharing_every_query_has_its_own_session_and_the_same_results(tmp_path):
    """Both systems read the same rows, as consumer groups of their own; a query is added, and one removed, while they run."""
    first, more = (make_predicate_query("a", 20), make_predicate_query("b", 500)), make_predicate_query("c", 900)
    counts: dict[str, dict[tuple[str, int], int]] = {"all": {}, "none": {}}
    outs = {sharing: io.StringIO() for sharing in counts}
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(DriverProcess([FIELDS], 1_000_000))
        collectors = {sharing: stack.enter_context(ResultCollector()) for sharing in counts}
        adapters = {sharing: HeadraceAdapter(backend="local") for sharing in counts}

        def collect() -> bool:
            for sharing, collector in collectors.items():
                emissions = collector.take()
                names = [emissions.query_names[code] for code in emissions.query_code.tolist()]
                for key, rows in zip(
                    zip(names, emissions.window_end_us.tolist(), strict=True), emissions.rows.tolist(), strict=True
                ):
                    counts[sharing][key] = counts[sharing].get(key, 0) + rows
            return all(sum(name == query for name, _ in found) >= 6 for found in counts.values() for query in "abc")

        for sharing, adapter in adapters.items():
            stack.callback(adapter.close)
            scratch = tmp_path / sharing
            scratch.mkdir()
            config = SutConfig(
                driver.address, collectors[sharing].address, scratch, (SutStream(FIELDS),), first, {"sharing": sharing}
            )
            assert adapter.start(config, SutEventWriter(outs[sharing])).settings["sharing"] == sharing
            adapter.change([more], [])
        assert wait_until(lambda: all('"live"' in out.getvalue() for out in outs.values()))
        driver.start(RateScript.constant(4_000))
        assert wait_until(collect)
        for adapter in adapters.values():
            adapter.check()
            assert wait_until(lambda adapter=adapter: adapter.read_component_seconds().get("windows", 0.0) > 0)
            assert {"input", "aggregation", "state", "other"} <= adapter.read_component_seconds().keys()
            adapter.change([], ["a"])
        assert wait_until(lambda: all('"removed"' in out.getvalue() for out in outs.values()))
        before = driver.status().read
        assert wait_until(lambda: driver.status().read > before + 4_000)  # the group of the removed query holds nothing up
    common = counts["all"].keys() & counts["none"].keys()
    last = {query: max(end for name, end in common if name == query) for query in "abc"}
    complete = [key for key in common if key[1] < last[key[0]]]
    assert len(complete) >= 12
    assert {key: counts["all"][key] for key in complete} == {key: counts["none"][key] for key in complete}


def test_an_unknown_sharing_is_refused(tmp_path):
    config = SutConfig("127.0.0.1:1", "127.0.0.1:2", tmp_path, (SutStream(FIELDS),), (), {"sharing": "some"})
    with pytest.raises(HeadraceError, match="unknown sharing 'some'"):
        parse_sharing_option(config)
