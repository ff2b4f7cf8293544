"""Queries over results: which inner results are shared, where the bounds of a result are, and from when on it is complete."""

from __future__ import annotations

import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import (
    NestedQuery,
    compute_start_times,
    derive_joined_stream,
    derive_stream,
    has_inner_window_keys,
    isolate_inner_queries,
    result_bounds,
)
from headrace.plan.logical import AggregateQuery
from headrace.plan.sliding_join import SlidingJoinQuery, referenced_inputs
from headrace.plan.window_join import JoinKind, WindowJoinQuery
from headrace.sql import Catalog, bind_query

CATALOG = Catalog.of(Stream(name, Schema.parse("k INT, n INT, time TIMESTAMP"), "time") for name in "abc")
HOPS = "SELECT window_start, k, SUM(n) AS n FROM HOP(a, '10 seconds', '5 seconds') GROUP BY k"
SESSIONS = "SELECT k, SUM(n) AS n FROM SESSION(a, '5 seconds') GROUP BY k"
SECOND = 1_000_000


def bind_nested(text: str) -> NestedQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, NestedQuery)
    return plan


@pytest.mark.parametrize(
    ("kind", "left", "right", "both"),
    [
        (JoinKind.INNER, False, False, True),
        (JoinKind.LEFT, True, False, True),
        (JoinKind.RIGHT, False, True, True),
        (JoinKind.FULL, True, True, True),
        (JoinKind.SEMI, False, False, False),
        (JoinKind.ANTI, True, False, False),
    ],
)
def test_a_kind_of_join_tells_which_rows_and_columns_it_keeps(kind: JoinKind, left: bool, right: bool, both: bool):
    assert (kind.keeps_left, kind.keeps_right, kind.has_both_sides) == (left, right, both)


def test_the_inputs_of_a_condition_are_numbers():
    windows = ", ".join(f"SLIDING({name}, '5 seconds') {name}" for name in "abc")
    join = bind_query(f"SELECT a.n FROM {windows} WHERE a.k = c.k AND b.n = c.n", CATALOG)
    assert isinstance(join, SlidingJoinQuery)
    assert {referenced_inputs(condition) for condition in join.conditions} == {frozenset({0, 2}), frozenset({1, 2})}


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        (f"SELECT MAX(n) AS m FROM TUMBLE(({HOPS}), '20 seconds')", ("window_start", "window_end")),
        (f"SELECT MAX(n) AS m FROM ({HOPS})", ("key0", "key1")),
        (f"SELECT k, MAX(n) AS m FROM ({HOPS}) GROUP BY k", ("key1", "key2")),
    ],
)
def test_the_bounds_of_a_result_are_its_last_keys_without_a_window_of_its_own(text: str, bounds: tuple[str, str]):
    outer = bind_nested(text).outer
    assert tuple(column.name for column in result_bounds(outer)) == bounds  # type: ignore[arg-type]
    assert has_inner_window_keys(outer) is (bounds[0] != "window_start")  # type: ignore[arg-type]


def test_windows_that_started_before_the_query_are_incomplete():
    """
    since 7 s      inner HOP(10, 5): [0,10) and [5,15) started before, [10,20) is complete: the outer query starts at 15 s
    since 5 s      [0,10) started before, [5,15) is complete: 10 s
    """
    query = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({HOPS}), '20 seconds')")
    assert compute_start_times(query, 7 * SECOND) == (7 * SECOND, 15 * SECOND)
    assert compute_start_times(query, 5 * SECOND) == (5 * SECOND, 10 * SECOND)
    assert compute_start_times(query, 5 * SECOND + 1) == (5 * SECOND + 1, 15 * SECOND)
    assert compute_start_times(query, None) == (None, None)


def test_windows_over_results_are_incomplete_where_these_are():
    """
    since 7 s      results of HOP(10, 5) are complete from 15 s on: [0,20) is not, [20,40) is
    """
    middle = f"SELECT k, SUM(n) AS n FROM TUMBLE(({HOPS}), '20 seconds') GROUP BY k"
    query = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({middle}), '60 seconds')")
    assert compute_start_times(query, 7 * SECOND) == (7 * SECOND, 15 * SECOND, 20 * SECOND)


@pytest.mark.parametrize(
    ("inner", "since", "start"),
    [
        ("SELECT SUM(n) AS n FROM HOP(a, '7 seconds', '5 seconds')", 4, 7),  # [0,7) started before, [5,12) is complete
        ("SELECT SUM(n) AS n FROM HOP(a, '2 seconds', '5 seconds')", 4, 4),  # [0,2) ended before, [5,7) is complete
        ("SELECT SUM(n) AS n FROM TUMBLE(a, '5 seconds')", 5, 5),
        (SESSIONS, 4, 4),
        ("SELECT x.n FROM HOP(a, '10 seconds', '5 seconds') x JOIN TUMBLE(b, '5 seconds') y ON x.k = y.k", 7, 15),
        ("SELECT x.n FROM SLIDING(a, '4 seconds') x JOIN SLIDING(b, '9 seconds') y ON x.k = y.k", 7, 16),
    ],
)
def test_an_outer_query_starts_after_the_last_incomplete_inner_window(inner: str, since: int, start: int):
    query = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({inner}), '20 seconds')")
    assert compute_start_times(query, since * SECOND) == (since * SECOND, start * SECOND)


@pytest.mark.parametrize(("size", "start"), [(5, 5), (18, 8), (20, 10)])
def test_shorter_windows_of_a_join_start_later(size: int, start: int):
    """
    since 5 s      the inner results are complete from 10 s on, and b from 5 s on; joined windows are 20 s long
    size 18 s      a window of results that starts at 10 s belongs to a window of b that starts at 8 s
    """
    results = f"HOP(({HOPS}), '{size} seconds', '1 second') x"
    query = bind_nested(f"SELECT x.n FROM {results} JOIN HOP(b, '20 seconds', '1 second') y ON x.k = y.k")
    assert compute_start_times(query, 5 * SECOND) == (5 * SECOND, start * SECOND)


def test_results_of_windows_are_a_stream_with_their_bounds_and_time():
    query, other = (bind_query(text, CATALOG) for text in (HOPS, HOPS.replace("SUM", "MAX")))
    assert isinstance(query, AggregateQuery)
    assert isinstance(other, AggregateQuery)
    derived = derive_stream(query, lag=3)
    assert derived.stream.schema.names == ("window_start", "k", "n", "#start", "#end", "#time")
    assert [column.name for column in derived.plan.output[-3:]] == ["window_start", "window_end", "window_end"]
    assert (derived.stream.time, derived.stream.lag) == ("#time", 3)
    assert derive_stream(query).name == derived.name != derive_stream(other).name


def test_a_joined_row_is_a_window_of_a_microsecond_at_the_time_of_its_newest_input():
    text = "SELECT x.n FROM SLIDING(a, '4 seconds') x LEFT JOIN SLIDING(b, '9 seconds') y ON x.k = y.k"
    join = bind_query(text, CATALOG)
    assert isinstance(join, SlidingJoinQuery)
    derived = derive_joined_stream(join, ("time", "at"))
    assert derived.stream.schema.names == ("n", "#start", "#end", "#time")
    newest = "greatest(0.time, 1.at)"
    assert [str(value) for value in derived.plan.output[-3:]] == [newest, f"time_add({newest}, 1)", f"time_add({newest}, 1)"]
    assert (derived.stream.time, derived.stream.lag) == ("#time", 4 * SECOND)
    assert derive_joined_stream(join, ("time", "time")).name != derived.name


def test_a_nested_query_names_the_declared_streams_once():
    join = bind_nested(f"SELECT x.n FROM HOP(({HOPS}), '5 seconds', '5 seconds') x JOIN TUMBLE(b, '5 seconds') y ON x.k = y.k")
    assert join.streams == ("a", "b")
    again = bind_nested(f"SELECT x.n FROM HOP(({HOPS}), '5 seconds', '5 seconds') x JOIN TUMBLE(a, '5 seconds') y ON x.k = y.k")
    assert again.streams == ("a",)
    assert isinstance(join.outer, WindowJoinQuery)
    assert join.schema == join.outer.schema


def test_joined_results_are_not_shared():
    joined = "SELECT x.n FROM TUMBLE(a, '5 seconds') x JOIN TUMBLE(b, '5 seconds') y ON x.k = y.k"
    query = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({joined}), '20 seconds')")
    isolated = isolate_inner_queries(query, 7)
    assert [source.name for source in isolated.inner] == [f"{query.inner[0].name}-7"]
    assert isolated.inner[0].plan.streams == ("a", "b")


def test_inner_windows_are_shared_and_sessions_are_not():
    shared = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({HOPS}), '20 seconds')")
    assert isolate_inner_queries(shared, 7) == shared
    alone = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({SESSIONS}), '20 seconds')")
    assert [source.name for source in isolate_inner_queries(alone, 7).inner] == [f"{alone.inner[0].name}-7"]


def test_a_window_over_results_that_are_not_shared_is_not_shared():
    middle = f"SELECT k, SUM(n) AS n FROM TUMBLE(({SESSIONS}), '10 seconds') GROUP BY k"
    query = bind_nested(f"SELECT MAX(n) AS m FROM TUMBLE(({middle}), '20 seconds')")
    first, second = (f"{source.name}-7" for source in query.inner)
    isolated = isolate_inner_queries(query, 7)
    assert [(source.name, source.plan.streams) for source in isolated.inner] == [(first, ("a",)), (second, (first,))]
    assert isolated.outer.streams == (second,)
