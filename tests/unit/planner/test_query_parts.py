"""A query over results taken apart: parts, when each begins, at which level it is evaluated."""

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


def stacked(text: str) -> NestedQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, NestedQuery)
    return plan


def live(*texts: str) -> tuple[LiveQuery, ...]:
    parts = [part.addition for n, text in enumerate(texts) for part in split_query(n, f"q{n}", bind_query(text, CATALOG))]
    return apply_changelog((), Changelog(tuple(parts)))


@pytest.mark.parametrize(
    ("inner", "since", "first"),
    [  # sees rows from `since` on: its windows of a minute begin at `first` or later
        ("TUMBLE(a, '2 seconds')", 3, 4),  # [4 6) is the first; the one before ends at 4
        ("TUMBLE(a, '2 seconds')", 4, 4),
        ("HOP(a, '6 seconds', '2 seconds')", 3, 8),  # [4 10) is the first; [2 8) began too early
        ("HOP(a, '5 seconds', '2 seconds')", 4, 7),
        ("HOP(a, '2 seconds', '6 seconds')", 3, 3),  # [6 8) is the first, and [0 2) is over
        ("SESSION(a, '2 seconds')", 3, 3),
    ],
)
def test_a_window_over_results_begins_when_all_of_them_are_there(inner: str, since: int, first: int) -> None:
    plan = stacked(f"SELECT MAX(t) AS m FROM TUMBLE((SELECT SUM(x) AS t FROM {inner}), '1 minute')")
    assert compute_start_times(plan, since * SECOND) == (since * SECOND, first * SECOND)
    assert compute_start_times(plan, None) == (None, None)


def test_beginnings_add_up() -> None:
    text = f"SELECT MAX(m) AS m FROM TUMBLE((SELECT MAX(t) AS m FROM HOP(({SUMS}), '8 seconds', '4 seconds')), '1 minute')"
    assert compute_start_times(stacked(text), 3 * SECOND) == (3 * SECOND, 4 * SECOND, 8 * SECOND)


def test_rows_and_results_meet_in_the_first_window_that_has_both() -> None:
    text = "SELECT r.x, s.t FROM HOP(a, '8 s', '4 s') r JOIN (SELECT k, SUM(x) AS t FROM HOP(a, '8 s', '4 s') GROUP BY k) s ON r.k = s.k"
    plan = stacked(text)
    assert isinstance(plan.outer, WindowJoinQuery)
    assert compute_start_times(plan, 3 * SECOND) == (3 * SECOND, 4 * SECOND)  # [4 12): all its rows, and the sums of it


def test_parts_are_told_from_queries_by_their_ids() -> None:
    found = live("SELECT k FROM a", f"SELECT MAX(t) AS m FROM ({SUMS})")
    assert [root_query_id(query.id) for query in found] == [0, 1, 1]
    assert [query.name for query in found] == ["q0", "q1", "q1/1"]
    assert [bool(query.output_stream) for query in found] == [False, False, True]


def test_equal_sub_queries_make_one_stream() -> None:
    found = live(f"SELECT MAX(t) AS m FROM ({SUMS})", f"SELECT MIN(t) AS m FROM TUMBLE(({SUMS}), '1 minute')", "SELECT x FROM b")
    makers = [query for query in found if query.output_stream]
    assert len(makers) == 2
    assert len({query.output_stream for query in makers}) == 1


@pytest.mark.parametrize("inner", [PAIRS, "SELECT k, SUM(x) AS t FROM SESSION(a, '2 seconds') GROUP BY k"])
def test_results_that_depend_on_the_query_are_its_own(inner: str) -> None:
    found = live(*[f"SELECT COUNT(*) AS m FROM TUMBLE(({inner}), '1 minute')"] * 2)
    assert len({query.output_stream for query in found if query.output_stream}) == 2


def test_a_stream_of_results_is_as_deep_as_its_makers_need() -> None:
    found = live(f"SELECT MAX(t) AS m FROM ({SUMS})", f"SELECT MAX(n) AS m FROM ({PAIRS})")
    deep = compute_stream_depths(found)
    by_name = {query.name: query for query in found}
    assert compute_query_level(by_name["q0/1"].plan, deep) == compute_query_level(by_name["q1/1"].plan, deep) == 0
    assert compute_query_level(by_name["q0"].plan, deep) == 1
    assert compute_query_level(by_name["q1"].plan, deep) == 2  # groups of joined rows are exchanged first
    assert isinstance(by_name["q1"].plan, AggregateQuery)
    assert compute_stream_depths(live("SELECT x FROM a")) == {}
