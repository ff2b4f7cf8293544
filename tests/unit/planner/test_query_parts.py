"""Nested queries split into parts: the start time and the level of each part."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import NestedQuery, compute_start_times
from headrace.plan.logical import AggregateQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.planner.changelog import (
    Changelog,
    apply_changelog,
    compute_query_level,
    compute_stream_depths,
    root_query_id,
    split_query,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.sql import Catalog, bind_query

SECOND = 1_000_000
CATALOG = Catalog.of(Stream(name, Schema.parse("k INT, x INT, time TIMESTAMP"), "time") for name in "ab")
SUMS = "SELECT k, SUM(x) AS t FROM TUMBLE(a, '2 seconds') GROUP BY k"
PAIRS = "SELECT l.k, COUNT(*) AS n FROM TUMBLE(a, '2 seconds') l JOIN TUMBLE(b, '2 seconds') r ON l.k = r.k GROUP BY l.k"


def bind_nested(text: str) -> NestedQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, NestedQuery)
    return plan


def make_live_queries(*texts: str) -> tuple[LiveQuery, ...]:
    parts = [part.addition for n, text in enumerate(texts) for part in split_query(n, f"q{n}", bind_query(text, CATALOG))]
    return apply_changelog((), Changelog(tuple(parts)))


@pytest.mark.parametrize(
    ("inner", "since", "first"),
    [  # the query sees rows from `since` on; its windows of a minute start at `first` or later
        ("TUMBLE(a, '2 seconds')", 3, 4),  # [4 6) is the first inner window; the previous one ends at 4
        ("TUMBLE(a, '2 seconds')", 4, 4),
        ("HOP(a, '6 seconds', '2 seconds')", 3, 8),  # [4 10) is the first inner window; [2 8) starts before 3
        ("HOP(a, '5 seconds', '2 seconds')", 4, 7),
        ("HOP(a, '2 seconds', '6 seconds')", 3, 3),  # [6 8) is the first inner window; [0 2) has ended before 3
        ("SESSION(a, '2 seconds')", 3, 3),
    ],
)
def test_an_outer_window_starts_after_the_first_complete_inner_window(inner: str, since: int, first: int) -> None:
    plan = bind_nested(f"SELECT MAX(t) AS m FROM TUMBLE((SELECT SUM(x) AS t FROM {inner}), '1 minute')")
    assert compute_start_times(plan, since * SECOND) == (since * SECOND, first * SECOND)
    assert compute_start_times(plan, None) == (None, None)


def test_a_row_just_after_the_start_of_an_inner_window_leaves_that_window_incomplete() -> None:
    """
    rows seen          |———————————————     from 2 s + 1 µs on: [2 4) may miss a row at 2 s
    inner    |————————|—————————|————————|
             0        2         4        6
    """
    plan = bind_nested(f"SELECT MAX(t) AS m FROM TUMBLE(({SUMS}), '1 minute')")
    assert compute_start_times(plan, 2 * SECOND + 1) == (2 * SECOND + 1, 4 * SECOND)


def test_start_times_accumulate_over_nesting_levels() -> None:
    text = f"SELECT MAX(m) AS m FROM TUMBLE((SELECT MAX(t) AS m FROM HOP(({SUMS}), '8 seconds', '4 seconds')), '1 minute')"
    assert compute_start_times(bind_nested(text), 3 * SECOND) == (3 * SECOND, 4 * SECOND, 8 * SECOND)


def test_a_join_of_rows_and_results_starts_with_the_first_window_that_has_both() -> None:
    text = "SELECT r.x, s.t FROM HOP(a, '8 s', '4 s') r JOIN (SELECT k, SUM(x) AS t FROM HOP(a, '8 s', '4 s') GROUP BY k) s ON r.k = s.k"
    plan = bind_nested(text)
    assert isinstance(plan.outer, WindowJoinQuery)
    assert compute_start_times(plan, 3 * SECOND) == (3 * SECOND, 4 * SECOND)  # [4 12) has all its rows and their sums


def test_parts_have_the_root_query_id_of_their_query() -> None:
    queries = make_live_queries("SELECT k FROM a", f"SELECT MAX(t) AS m FROM ({SUMS})")
    assert [root_query_id(query.id) for query in queries] == [0, 1, 1]
    assert [query.name for query in queries] == ["q0", "q1", "q1/1"]
    assert [bool(query.output_stream) for query in queries] == [False, False, True]


def test_equal_inner_queries_write_to_the_same_stream() -> None:
    queries = make_live_queries(
        f"SELECT MAX(t) AS m FROM ({SUMS})", f"SELECT MIN(t) AS m FROM TUMBLE(({SUMS}), '1 minute')", "SELECT x FROM b"
    )
    writers = [query for query in queries if query.output_stream]
    assert len(writers) == 2
    assert len({query.output_stream for query in writers}) == 1


@pytest.mark.parametrize("inner", [PAIRS, "SELECT k, SUM(x) AS t FROM SESSION(a, '2 seconds') GROUP BY k"])
def test_inner_joins_and_sessions_write_to_separate_streams(inner: str) -> None:
    queries = make_live_queries(*[f"SELECT COUNT(*) AS m FROM TUMBLE(({inner}), '1 minute')"] * 2)
    assert len({query.output_stream for query in queries if query.output_stream}) == 2


def test_the_level_of_an_outer_query_follows_the_depth_of_its_input_stream() -> None:
    queries = make_live_queries(f"SELECT MAX(t) AS m FROM ({SUMS})", f"SELECT MAX(n) AS m FROM ({PAIRS})")
    depths = compute_stream_depths(queries)
    by_name = {query.name: query for query in queries}
    assert compute_query_level(by_name["q0/1"].plan, depths) == compute_query_level(by_name["q1/1"].plan, depths) == 0
    assert compute_query_level(by_name["q0"].plan, depths) == 1
    assert compute_query_level(by_name["q1"].plan, depths) == 2  # grouping joined rows needs one more shuffle
    assert isinstance(by_name["q1"].plan, AggregateQuery)
    assert compute_stream_depths(make_live_queries("SELECT x FROM a")) == {}
