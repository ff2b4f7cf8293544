"""The adapter of headrace, over the same stages without Spark: rows in from a driver, counts out to a collector."""

from __future__ import annotations

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
from headrace.bench.queries.dialects import BenchAggregate
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.bench.systems.adapter import SutConfig, SutStream
from headrace.bench.systems.headrace import HeadraceAdapter, make_rows
from headrace.bench.systems.process import SutEventWriter
from headrace.errors import HeadraceError
from headrace.session import Session

PATIENCE = 60.0
SECOND = 1_000_000
FIELDS = StreamSpec("fields", "fields", keys=20, distribution="round_robin")


def query(name: str) -> BenchQuery:
    return build_window_aggregation(
        name, "fields", ["key"], [BenchAggregate("SUM", "f1", "total", integer=True)], None, SECOND // 2, SECOND // 4
    )


class NoSpark:
    def stop(self):
        pass


def without_spark(checkpoint: Path | None = None, **options: object) -> Session:
    return Session(checkpoint, backend="local", partitions=2)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> HeadraceAdapter:
    monkeypatch.setattr(module, "start_spark", lambda *_: NoSpark())
    monkeypatch.setattr(module, "Session", without_spark)
    return HeadraceAdapter()


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not condition():
        time.sleep(0.01)
    return condition()


def test_a_driver_that_is_gone_ends_it(adapter, tmp_path):
    with ResultCollector() as collector:
        with DriverProcess([FIELDS], 1_000_000) as driver:
            config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(FIELDS),), (query("a"),))
            adapter.start(config, SutEventWriter(io.StringIO()))
            adapter.check()
        with pytest.raises(HeadraceError, match="cannot be reached"):
            until(lambda: adapter.check() is not None)
        with pytest.raises(HeadraceError):
            adapter.close()


def test_queries_come_emit_and_go(adapter, tmp_path):
    out = io.StringIO()

    def said() -> list[tuple[str, str]]:
        return [(e["event"], e["query"]) for e in map(json.loads, out.getvalue().splitlines())]

    def emitting(names: set[str]) -> bool:
        emissions = collector.take()
        found.update(emissions.query_names[code] for code in emissions.query_code.tolist())
        assert set(emissions.rows.tolist()) <= set(range(1, 21))
        return names <= found

    with DriverProcess([FIELDS], 1_000_000) as driver, ResultCollector() as collector:
        config = SutConfig(driver.address, collector.address, tmp_path, (SutStream(FIELDS),), (query("a"),))
        started = adapter.start(config, SutEventWriter(out))
        assert started.settings["rows_per_batch"] > 0
        driver.start(RateScript.constant(2_000))
        wrong = BenchQuery("wrong", ("fields",), {"headrace": "SELECT nothing FROM fields"}, SECOND, SECOND)
        adapter.change([query("b"), wrong, BenchQuery("untold", ("fields",), {}, SECOND, SECOND)], [])
        assert until(lambda: len(said()) == 3)
        assert sorted(said()) == [("live", "b"), ("refused", "untold"), ("refused", "wrong")]
        found: set[str] = set()
        assert until(lambda: emitting({"a", "b"}))
        adapter.change([], ["a"])
        assert until(lambda: said()[-1] == ("removed", "a"))
        adapter.check()
        adapter.close()


@pytest.mark.parametrize("schema", STREAM_SCHEMAS.values(), ids=list(STREAM_SCHEMAS))
def test_there_are_rows_of_every_schema(schema):
    rows = make_rows(schema, 5, 3)
    assert rows.schema == schema.to_arrow()
    assert [moment.microsecond for moment in rows.column("time").to_pylist()] == [5, 6, 7]
    assert all(column.null_count == 0 for column in rows.columns)


def test_rows_of_joins_in_sliding_windows_have_one_partner_each():
    orders, lines = (make_rows(STREAM_SCHEMAS[name], 5_000, 3_000, 10_000) for name in ("orders", "lineitem"))
    assert orders.column("o_orderkey").to_pylist() == lines.column("l_orderkey").to_pylist() == list(range(5_000, 8_000))
