"""`headrace demo`: it ends after its duration, its summary is right, and all its queries bind."""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace

import pytest

from headrace.cli.demo import generate_queries, schedule_events
from headrace.connectors import GENERATORS, RateSource
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query

STREAMS = [Stream(name, GENERATORS[name].schema, "time") for name in ("purchases", "ads")]


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the demo and of its streams run six times as fast."""
    begin = time.time()

    def read_clock() -> float:
        return begin + 6 * (time.time() - begin)

    clock = SimpleNamespace(time=read_clock, monotonic=read_clock, sleep=time.sleep)
    monkeypatch.setattr("headrace.cli.demo.time", clock)
    monkeypatch.setattr("headrace.cli.demo.RateSource", partial(RateSource, clock=read_clock))
    monkeypatch.setattr("headrace.cli.demo._INTERVAL_SECONDS", 0.4 / 6)
    monkeypatch.setattr("headrace.cli.demo._TICK_SECONDS", 0.1 / 6)


@pytest.mark.usefixtures("fast_clock")
def test_the_demo_ends_and_prints_a_json_summary(headrace):
    result = headrace("demo", "--seconds", 3, "--queries", 10, "--rate", 5000, "--json", "--backend", "local")
    assert result.code == 0, result.err
    summary = result.document
    assert summary["queries"] == {"added": 10, "removed": 3, "live": 7, "failed": 0}
    assert summary["restarts"] == 0
    assert summary["rows"] > 0
    assert summary["results"] > 0
    assert 0 < summary["shared_operators"] < 10
    assert 0 < summary["deployment_seconds"]["median"] <= summary["deployment_seconds"]["max"]
    for query in summary["by_query"].values():
        assert query["deployment_seconds"] == round(query["deployment_seconds"], 4)
    assert "live queries" in result.err


@pytest.mark.usefixtures("fast_clock")
def test_the_demo_prints_a_text_summary(headrace):
    result = headrace("demo", "--seconds", 1, "--queries", 2, "--rate", 1000, "--backend", "local")
    assert result.code == 0, result.err
    assert "2 queries, one pipeline, 0 restarts" in result.out
    assert "one shared pipeline" in result.out


def test_all_queries_bind_and_have_unique_names():
    queries = list(generate_queries(200))
    for query in queries:
        bind_query(query.sql, Catalog.of(STREAMS))
    assert len({query.name for query in queries}) == 200
    assert queries == list(generate_queries(200))


@pytest.mark.parametrize("number", [1, 2, 3, 20, 100])
def test_the_schedule_removes_only_live_queries(number):
    live = set()
    for event in schedule_events(number, 30):
        assert 0 <= event.at <= 0.9 * 30 + 1e-9
        assert (event.query.name in live) != event.add
        (live.add if event.add else live.remove)(event.query.name)
    assert len(live) >= number / 2
