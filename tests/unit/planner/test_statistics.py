"""Plans follow the measured statistics of a stream: its rate and its number of keys."""

from __future__ import annotations

from functools import cache

import headrace as hr
from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME
from headrace.model.types import Schema
from headrace.plan.derived import AnyQuery
from headrace.planner.predicate_index import CellLayout
from headrace.planner.shared_plan import LiveQuery, plan_stream
from headrace.planner.statistics import StreamStatistics, build_statistics, merge_key_counts, update_rate
from headrace.runtime.coordinator import Coordinator
from headrace.sql import Catalog, bind_query

CATALOG = Catalog((Stream("p", Schema.parse("k INT, x INT, y INT, time TIMESTAMP"), "time"),))
WIDE = [f"SELECT k, COUNT(*) n FROM TUMBLE(p, '1 second') WHERE x > {i} AND y < {i} GROUP BY k" for i in range(200)]


@cache
def bind(text: str) -> AnyQuery:
    return bind_query(text, CATALOG)


def plan_queries(texts: list[str], stats: StreamStatistics):
    live = [LiveQuery(i, f"q{i}", bind(text), MIN_TIME, i) for i, text in enumerate(texts)]
    return plan_stream("p", live, stats)


def test_a_large_grid_is_chosen_at_high_rates_only() -> None:
    few, many = (plan_queries(WIDE, StreamStatistics(rate, (("k", 1_000),))) for rate in (1_000, 10_000_000))
    assert [aggregation.predicate_index.layout for aggregation in few.aggregations] == [CellLayout.SIGNATURES]
    assert [aggregation.predicate_index.layout for aggregation in many.aggregations] == [CellLayout.GRID]


def test_a_query_with_very_short_windows_does_not_share_an_aggregation() -> None:
    fine = "SELECT k, COUNT(*) n FROM TUMBLE(p, '1 millisecond') WHERE x > 3 GROUP BY k"
    coarse = [f"SELECT k, COUNT(*) n FROM TUMBLE(p, '10 seconds') WHERE x > {i} GROUP BY k" for i in range(300)]
    aggregations = plan_queries([fine, *coarse], StreamStatistics(1_000_000, (("k", 1_000),))).aggregations
    assert sorted(len(aggregation.subscribers) for aggregation in aggregations) == [1, 300]
    near = "SELECT k, COUNT(*) n FROM TUMBLE(p, '2 seconds') WHERE x > 3 GROUP BY k"
    assert [
        len(aggregation.subscribers)
        for aggregation in plan_queries([near, *coarse], StreamStatistics(1_000_000, (("k", 1_000),))).aggregations
    ] == [301]


def test_statistics_are_rounded_so_that_plans_stay_stable() -> None:
    assert (
        build_statistics(100_000.0, {"k": 1000})
        == build_statistics(120_000.0, {"k": 900})
        == StreamStatistics(1 << 17, (("k", 1024),))
    )
    assert build_statistics(0.0, {}) == StreamStatistics()


def test_the_rate_is_averaged_over_batches() -> None:
    rate = update_rate(0.0, 1_000, 1_000_000)
    assert rate == 1_000
    assert update_rate(rate, 3_000, 1_000_000) == 2_000
    assert update_rate(rate, 5, 0) == rate  # event time did not advance: the rate stays
    assert merge_key_counts([{"k": 3}, {"k": 5, "x": 1}]) == {"k": 5, "x": 1}


def test_statistics_survive_a_restart(tmp_path) -> None:
    def open_session() -> tuple[hr.Session, hr.MemorySource]:
        session, source = hr.Session(checkpoint=tmp_path / "c", backend="local"), hr.MemorySource("k INT, time TIMESTAMP")
        session.create_stream("p", source, time="time")
        return session, source

    def read_statistics(session: hr.Session) -> StreamStatistics:
        coordinator: Coordinator = session._coordinator
        stream = coordinator.state.streams["p"]
        return build_statistics(stream.rate, stream.keys)

    session, source = open_session()
    session.add("SELECT k, COUNT(*) n FROM TUMBLE(p, '1 second') GROUP BY k", name="q")
    for second in range(3):
        source.append([{"k": i % 50, "time": f"2026-01-01T00:00:{second:02d}.{i:03d}"} for i in range(500)])
        session.advance()
    before = read_statistics(session)
    session.close()
    assert before.rate == 512
    assert dict(before.key_counts) == {"k": 64}
    session, _ = open_session()
    assert read_statistics(session) == before
    session.add("SELECT k, COUNT(*) n FROM TUMBLE(p, '2 seconds') GROUP BY k", name="r")
    session.advance()
    assert session._coordinator.state.current_plans()[0].stats == before
    session.close()
