"""What a query has, takes and costs: latency in event time, bytes that are kept for it, its part of the work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
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
from headrace.service.query_stats import QueryStats, collect_stats, estimate_growth
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
    with opened(tmp_path) as found:
        yield found


def opened(folder: Path) -> hr.Session:
    found = hr.Session(folder / "checkpoint", backend="local", partitions=2)
    SOURCES[found] = {name: hr.MemorySource(COLUMNS) for name in "ab"}
    for name, source in SOURCES[found].items():
        found.create_stream(name, source, time="time", watermark="1 second")
    return found


def run(session: hr.Session, batches: int = 4) -> QueryStats:
    """Read rows of a few seconds in so many batches; nothing closes before ten."""
    for batch in range(batches):
        for name in "ab":
            times = [datetime(2026, 1, 1, 0, 0, batch, 1000 * n, UTC) for n in range(50)]
            SOURCES[session][name].append([{"k": n % 7, "v": n, "time": at} for n, at in enumerate(times)])
        session.advance()
    return collect_stats(session)


# --- costs ------------------------------------------------------------------------------------------------------------


def test_what_is_shared_is_paid_by_what_each_would_pay_alone():
    found = divide_costs([SharedCost(3.0, {1: 2.0, 2: 4.0}), SharedCost(1.0, {2: 1.0})])
    assert found == {1: CostBreakdown(2.0, 1.0, 0.25), 2: CostBreakdown(5.0, 3.0, 0.75)}
    assert sum_shared_costs([SharedCost(3.0, {1: 2.0}), SharedCost(1.0, {})]) == 4.0


@pytest.mark.parametrize("sql", [TUMBLING, JOINING, CLOSING, SLIDING], ids=["aggregation", "join", "sessions", "sliding"])
def test_equal_queries_pay_half_each(session: hr.Session, sql: str):
    one, two = (session.add(sql, name=name) for name in ("one", "two"))
    found = run(session).costs
    assert found[one.id] == found[two.id]
    assert 0 < found[one.id].shared < found[one.id].alone
    assert found[one.id].share == 0.5


def test_nobody_pays_more_for_being_in_company(session: hr.Session):
    texts = [TUMBLING, JOINING, CLOSING, SLIDING, f"{JOINING} WHERE a.v > 10", "SELECT v FROM a WHERE v > 20"]
    queries = [session.add(sql) for sql in texts]
    found = run(session).costs
    assert set(found) == {query.id for query in queries}
    assert all(0 < one.shared <= one.alone * (1 + 1e-9) for one in found.values())
    assert sum(one.share for one in found.values()) == pytest.approx(1)


@pytest.mark.parametrize("sql", [JOINING, SLIDING], ids=["join", "sliding"])
def test_a_join_adds_work_and_the_same_again_adds_none(session: hr.Session, sql: str):
    session.add(TUMBLING)
    run(session, 3)
    first = estimate_growth(session, sql)
    assert first.before < first.after < first.before + first.standalone  # one of its streams is read already
    session.add(sql)
    run(session, 3)
    again = estimate_growth(session, sql)
    assert again.after == pytest.approx(again.before)
    assert again.standalone > 0


def test_a_join_of_a_stream_that_gave_nothing_yet_costs_nothing_known(session: hr.Session):
    session.add(TUMBLING)
    SOURCES[session]["a"].append([{"k": 1, "v": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}])
    session.advance()
    assert estimate_growth(session, JOINING).standalone >= 0


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", [TUMBLING, JOINING, CLOSING, SLIDING], ids=["aggregation", "join", "sessions", "sliding"])
def test_what_is_kept_is_counted_and_known_after_a_restart(tmp_path: Path, sql: str):
    with opened(tmp_path) as session:
        query = session.add(sql, name="q")
        bytes_ = run(session).state_bytes[query.id]
        state = session.coordinator.state
        assert (
            bytes_
            == sum(
                ref.bytes for ref in (*state.aggregation_refs, *state.session_refs, *state.join_buffer_refs, *state.store_refs)
            )
            > 0
        )
    with opened(tmp_path) as session:
        assert collect_stats(session).state_bytes == {session.query("q").id: bytes_}


def test_what_two_use_is_divided(session: hr.Session):
    alone = session.add(TUMBLING)
    whole = run(session, 1).state_bytes[alone.id]
    other = session.add(TUMBLING)
    found = run(session, 1).state_bytes
    assert found[other.id] < whole
    assert found[alone.id] > found[other.id]  # what was there before is its own
    session.remove(alone.name)
    session.advance()
    assert set(collect_stats(session).state_bytes) == {other.id}


def test_rows_that_pass_leave_nothing(session: hr.Session):
    query = session.add("SELECT v FROM a")
    assert run(session).state_bytes == {query.id: 0}


# --- latency ----------------------------------------------------------------------------------------------------------


def live(sql: str) -> LiveQuery:
    return LiveQuery(1, "q", bind_query(sql, CATALOG))  # type: ignore[arg-type]


def done(second: float, watermark: float, *, emitted: bool = True) -> tuple[BatchReport, float]:
    """A batch that was committed at a second, with rows of up to one second more than the watermark."""
    marks = {("a",): EventTimeMarks(round(watermark * 1e6), round((watermark + 1) * 1e6))}
    return BatchReport(0, 1, 1, emitted_by={1: 1} if emitted else {}, marks=marks), second


@pytest.mark.parametrize(
    ("sql", "waited"),
    [
        (TUMBLING, 43.5 - 40),  # [30, 40) closed
        ("SELECT COUNT(*) AS n FROM HOP(a, '10 seconds', '2 seconds')", 43.5 - 38),  # 38, 40 and 42: the first waited longest
        (CLOSING, 43.5 - 37),  # after the mark before, at the earliest
        ("SELECT v FROM a", 43.5 - 38),  # rows from 38 to 43
    ],
)
def test_the_oldest_result_of_a_batch_waited_longest(sql: str, waited: float):
    assert measure_latencies([done(40, 37), done(43.5, 42)], {1: live(sql)}) == {1: LatencyPercentiles(waited, waited)}


def test_batches_without_results_and_the_end_of_time_do_not_count():
    quiet = [done(40, 37), done(41, 39, emitted=False)]
    last = BatchReport(0, 1, 1, emitted_by={1: 1}, marks={("a",): EventTimeMarks(MAX_TIME, 0)}), 50.0
    assert measure_latencies(quiet, {1: live(TUMBLING)}) == {}
    assert measure_latencies([done(40, 37), last], {1: live(TUMBLING)}) == {}
    assert measure_latencies([done(40, 37), done(41, 41)], {}) == {}


def test_spread():
    batches = [done(0, 0), *(done(10 * n + n / 10, 10 * n) for n in range(1, 22))]
    assert measure_latencies(batches, {1: live(TUMBLING)}) == {1: LatencyPercentiles(pytest.approx(1.1), pytest.approx(2.0))}


def test_all_of_it_is_told(service: Service):
    service.add(name="counts")
    for _ in range(6):
        now = datetime.now(UTC).isoformat()
        row = {"user_id": 1, "gem_pack": 1, "price": 1.0, "time": now}
        assert service.http.post("/v1/streams/purchases/rows", json=[row]).status_code == 202
        time.sleep(0.6)
    time.sleep(2)  # figures are reckoned now and then
    told = service.http.get("/v1/queries/counts").json()
    assert 0 < told["latency_seconds"]["p50"] <= told["latency_seconds"]["p95"] < 60
    assert told["state_bytes"] > 0
    assert told["cost"]["share"] == 1
    metrics = service.http.get("/metrics").text
    assert 'headrace_query_latency_seconds{quantile="0.5",query="counts"}' in metrics
    assert 'headrace_query_state_bytes{query="counts"}' in metrics
    assert service.http.get("/v1/overview").json()["history"][-1]["live"] == 1
