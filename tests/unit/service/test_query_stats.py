"""Statistics of a query: event-time latency, state bytes, share of the cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

import headrace as hr
from headrace.model.stream import Stream
from headrace.model.time import MAX_TIME
from headrace.model.types import Schema
from headrace.planner.cost import CostBreakdown, SharedCost, divide_costs, sum_shared_costs
from headrace.planner.shared_plan import LiveQuery
from headrace.runtime.metrics import BatchReport, EventTimeMarks, LatencyPercentiles, measure_latencies
from headrace.runtime.query_stats import QueryStats
from headrace.sql import Catalog, bind_query
from support.in_process_service import Service

COLUMNS = "k INT, v BIGINT, time TIMESTAMP"
CATALOG = Catalog.of([Stream("a", Schema.parse(COLUMNS), "time")])
TUMBLING = "SELECT k, SUM(v) AS s FROM TUMBLE(a, '10 seconds') GROUP BY k"
JOINING = "SELECT a.v, b.v AS w FROM TUMBLE(a, '10 seconds') AS a JOIN TUMBLE(b, '10 seconds') AS b ON a.k = b.k"
CLOSING = "SELECT k, COUNT(*) AS n FROM SESSION(a, '5 seconds') GROUP BY k"
SLIDING = "SELECT a.v, b.v AS w FROM SLIDING(a, '10 seconds') AS a, SLIDING(b, '10 seconds') AS b WHERE a.k = b.k"

SOURCES: WeakKeyDictionary[hr.Session, dict[str, hr.MemorySource]] = WeakKeyDictionary()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[hr.Session]:
    with open_session(tmp_path) as created:
        yield created


def open_session(folder: Path) -> hr.Session:
    session = hr.Session(folder / "checkpoint", backend="local", partitions=2)
    SOURCES[session] = {name: hr.MemorySource(COLUMNS) for name in "ab"}
    for name, source in SOURCES[session].items():
        session.create_stream(name, source, time="time", watermark="1 second")
    return session


def run_batches(session: hr.Session, batches: int = 4) -> QueryStats:
    """Process `batches` batches, one second of rows each; no window closes before 10 s."""
    for batch in range(batches):
        for name in "ab":
            times = [datetime(2026, 1, 1, 0, 0, batch, 1000 * n, UTC) for n in range(50)]
            SOURCES[session][name].append([{"k": n % 7, "v": n, "time": at} for n, at in enumerate(times)])
        session.advance()
    return session.statistics.collect()


# --- costs ------------------------------------------------------------------------------------------------------------


def test_shared_cost_is_divided_by_standalone_cost():
    costs = divide_costs([SharedCost(3.0, {1: 2.0, 2: 4.0}), SharedCost(1.0, {2: 1.0})])
    assert costs == {1: CostBreakdown(2.0, 1.0, 0.25), 2: CostBreakdown(5.0, 3.0, 0.75)}
    assert sum_shared_costs([SharedCost(3.0, {1: 2.0}), SharedCost(1.0, {})]) == 4.0


@pytest.mark.parametrize("sql", [TUMBLING, JOINING, CLOSING, SLIDING], ids=["aggregation", "join", "sessions", "sliding"])
def test_equal_queries_share_the_cost_equally(session: hr.Session, sql: str):
    first, second = (session.add(sql, name=name) for name in ("one", "two"))
    costs = run_batches(session).costs
    assert costs[first.id] == costs[second.id]
    assert 0 < costs[first.id].shared < costs[first.id].alone
    assert costs[first.id].share == 0.5


def test_shared_cost_never_exceeds_standalone_cost(session: hr.Session):
    texts = [TUMBLING, JOINING, CLOSING, SLIDING, f"{JOINING} WHERE a.v > 10", "SELECT v FROM a WHERE v > 20"]
    queries = [session.add(sql) for sql in texts]
    costs = run_batches(session).costs
    assert set(costs) == {query.id for query in queries}
    assert all(0 < cost.shared <= cost.alone * (1 + 1e-9) for cost in costs.values())
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1)


@pytest.mark.parametrize("sql", [JOINING, SLIDING], ids=["join", "sliding"])
def test_a_join_adds_cost_and_an_equal_join_adds_none(session: hr.Session, sql: str):
    session.add(TUMBLING)
    run_batches(session, 3)
    first = session.statistics.estimate_growth(sql)
    assert first.before < first.after < first.before + first.standalone  # stream a is read already
    session.add(sql)
    run_batches(session, 3)
    again = session.statistics.estimate_growth(sql)
    assert again.after == pytest.approx(again.before)
    assert again.standalone > 0


def test_a_join_with_an_empty_stream_has_an_estimate(session: hr.Session):
    session.add(TUMBLING)
    SOURCES[session]["a"].append([{"k": 1, "v": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}])
    session.advance()
    assert session.statistics.estimate_growth(JOINING).standalone >= 0


# --- state bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", [TUMBLING, JOINING, CLOSING, SLIDING], ids=["aggregation", "join", "sessions", "sliding"])
def test_state_bytes_are_counted_and_survive_a_restart(tmp_path: Path, sql: str):
    with open_session(tmp_path) as session:
        query = session.add(sql, name="q")
        bytes_ = run_batches(session).state_bytes[query.id]
        state = session._coordinator.state
        assert (
            bytes_
            == sum(
                ref.bytes for ref in (*state.aggregation_refs, *state.session_refs, *state.join_buffer_refs, *state.store_refs)
            )
            > 0
        )
    with open_session(tmp_path) as session:
        assert session.statistics.collect().state_bytes == {session.query("q").id: bytes_}


def test_shared_state_bytes_are_divided_between_queries(session: hr.Session):
    first = session.add(TUMBLING)
    bytes_alone = run_batches(session, 1).state_bytes[first.id]
    second = session.add(TUMBLING)
    state_bytes = run_batches(session, 1).state_bytes
    assert state_bytes[second.id] < bytes_alone
    assert state_bytes[first.id] > state_bytes[second.id]  # the state of the first batch is charged to it alone
    session.remove(first.name)
    session.advance()
    assert set(session.statistics.collect().state_bytes) == {second.id}


def test_stateless_queries_hold_no_state(session: hr.Session):
    query = session.add("SELECT v FROM a")
    assert run_batches(session).state_bytes == {query.id: 0}


# --- latency ----------------------------------------------------------------------------------------------------------


def make_live_query(sql: str) -> LiveQuery:
    return LiveQuery(1, "q", bind_query(sql, CATALOG))  # type: ignore[arg-type]


def make_batch(second: float, watermark: float, *, emitted: bool = True) -> tuple[BatchReport, float]:
    """Return a batch committed at `second`; its newest row is 1 s past the watermark."""
    marks = {("a",): EventTimeMarks(round(watermark * 1e6), round((watermark + 1) * 1e6))}
    return BatchReport(0, 1, 1, emitted_by={1: 1} if emitted else {}, marks=marks), second


@pytest.mark.parametrize(
    ("sql", "latency"),
    [
        (TUMBLING, 43.5 - 40),  # [30, 40) closed
        (
            "SELECT COUNT(*) AS n FROM HOP(a, '10 seconds', '2 seconds')",
            43.5 - 38,
        ),  # of 38, 40 and 42, the first is oldest
        (CLOSING, 43.5 - 37),  # after the previous watermark, at the earliest
        ("SELECT v FROM a", 43.5 - 38),  # rows from 38 to 43
    ],
)
def test_latency_is_that_of_the_oldest_result_of_a_batch(sql: str, latency: float):
    assert measure_latencies([make_batch(40, 37), make_batch(43.5, 42)], {1: make_live_query(sql)}) == {
        1: LatencyPercentiles(latency, latency)
    }


def test_batches_without_results_and_the_final_watermark_are_ignored():
    without_results = [make_batch(40, 37), make_batch(41, 39, emitted=False)]
    last = BatchReport(0, 1, 1, emitted_by={1: 1}, marks={("a",): EventTimeMarks(MAX_TIME, 0)}), 50.0
    assert measure_latencies(without_results, {1: make_live_query(TUMBLING)}) == {}
    assert measure_latencies([make_batch(40, 37), last], {1: make_live_query(TUMBLING)}) == {}
    assert measure_latencies([make_batch(40, 37), make_batch(41, 41)], {}) == {}


def test_latency_percentiles():
    batches = [make_batch(0, 0), *(make_batch(10 * n + n / 10, 10 * n) for n in range(1, 22))]
    assert measure_latencies(batches, {1: make_live_query(TUMBLING)}) == {
        1: LatencyPercentiles(pytest.approx(1.1), pytest.approx(2.0))
    }


def test_statistics_are_collected_again_when_the_cached_ones_are_old(service: Service, monkeypatch: pytest.MonkeyPatch):
    cache_seconds = "headrace.service.host._STATS_CACHE_SECONDS"
    monkeypatch.setattr(cache_seconds, -1.0)
    assert service.host.query_stats() is not service.host.query_stats()
    monkeypatch.setattr(cache_seconds, 3600.0)
    assert service.host.query_stats() is service.host.query_stats()


def test_statistics_are_served_over_http(service: Service):
    service.add(name="counts")
    begin = datetime.now(UTC) - timedelta(seconds=4)
    for batch in range(4):
        row = {"user_id": 1, "gem_pack": 1, "price": 1.0, "time": (begin + timedelta(seconds=batch)).isoformat()}
        assert service.http.post("/v1/streams/purchases/rows", json=[row]).status_code == 202
        service.wait_until(lambda rows=batch + 1: service.session.streams()["purchases"]["rows"] == rows)
    query = service.http.get("/v1/queries/counts").json()
    assert 0 < query["latency_seconds"]["p50"] <= query["latency_seconds"]["p95"] < 60
    assert query["state_bytes"] > 0
    assert query["cost"]["share"] == 1
    metrics = service.http.get("/metrics").text
    for quantile in ("0.5", "0.95"):
        assert f'headrace_query_latency_seconds{{quantile="{quantile}",query="counts"}}' in metrics
    assert 'headrace_query_state_bytes{query="counts"}' in metrics
    assert service.http.get("/v1/overview").json()["history"][-1]["live"] == 1
