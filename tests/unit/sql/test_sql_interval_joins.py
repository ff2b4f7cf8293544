"""Joins of streams without windows: the ranges that conditions on the times of rows imply, and what is refused.

a.time BETWEEN b.time - 5 s AND b.time + 2 s      SLIDING(a, 5 s), SLIDING(b, 2 s)
b   ───────────●───────────▶
a   ────[──────┼──]────────▶      a may be 5 s older than b, and b 2 s older than a
"""

# ruff: noqa: E501 – a table reads best with one case a line
from __future__ import annotations

import pytest

from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.sql import Catalog, bind_query

CATALOG = Catalog(tuple(Stream(name, Schema.parse("k INT, v INT, time TIMESTAMP, other TIMESTAMP"), "time") for name in "abc"))
BOUND = "a.time BETWEEN b.time - INTERVAL 5 SECONDS AND b.time + INTERVAL 2 SECONDS"


def bind(text: str) -> SlidingJoinQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, SlidingJoinQuery)
    return plan


def list_ranges(plan: SlidingJoinQuery) -> dict[str, float]:
    return {join_input.stream: join_input.length / 1e6 for join_input in plan.inputs}


@pytest.mark.parametrize(
    ("bound", "ranges", "kept"),
    [
        (BOUND, {"a": 5, "b": 2}, []),
        ("b.time BETWEEN a.time - INTERVAL 2 SECONDS AND a.time + INTERVAL 5 SECONDS", {"a": 5, "b": 2}, []),
        ("a.time >= b.time - INTERVAL '5' SECOND AND a.time - INTERVAL '2 seconds' <= b.time", {"a": 5, "b": 2}, []),
        ("a.time + INTERVAL 1 SECOND >= b.time - INTERVAL 4 SECONDS AND b.time > a.time - INTERVAL 2 SECONDS", {"a": 5, "b": 1.999999}, []),
        ("a.time BETWEEN b.time AND b.time + INTERVAL 1 HOUR", {"a": 0, "b": 3600}, []),
        ("a.time < b.time AND a.time > b.time - INTERVAL 1 SECOND", {"a": 0.999999, "b": 0}, ["0.time < 1.time"]),
        ("a.time BETWEEN b.time + INTERVAL 5 SECONDS AND b.time + INTERVAL 9 SECONDS", {"a": 0, "b": 9}, ["0.time >= time_add(1.time, 5000000)"]),
        ("a.time BETWEEN b.time - INTERVAL 9 SECONDS AND b.time - INTERVAL 5 SECONDS", {"a": 9, "b": 0}, ["0.time <= time_add(1.time, -5000000)"]),
        ("a.time = b.time", {"a": 0, "b": 0}, ["0.time = 1.time"]),
        ("a.time = b.time + INTERVAL 3 SECONDS", {"a": 0, "b": 3}, ["0.time = time_add(1.time, 3000000)"]),
        (f"{BOUND} AND a.time <= b.time + INTERVAL 1 MINUTE", {"a": 5, "b": 2}, []),
        (f"{BOUND} AND a.other <= b.time", {"a": 5, "b": 2}, ["0.other <= 1.time"]),
    ],
)  # fmt: skip
def test_bounds_of_the_times_are_ranges_and_what_they_do_not_imply_is_kept(bound: str, ranges: dict[str, float], kept: list[str]):
    for text in (
        f"SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND {bound}",
        f"SELECT a.v, b.v AS w FROM b, a WHERE {bound} AND b.k = a.k",
    ):
        plan = bind(text)
        assert list_ranges(plan) == ranges
        assert sorted(map(str, plan.conditions)) == sorted(["0.k = 1.k", *kept])


def test_an_interval_join_is_equal_to_the_sliding_join_with_its_ranges():
    spelled = "SELECT a.v FROM SLIDING(a, '5 seconds') a JOIN SLIDING(b, '2 seconds') b ON a.k = b.k WHERE a.v > 3"
    assert bind(f"SELECT a.v FROM a JOIN b ON a.k = b.k AND {BOUND} AND a.v > 3") == bind(spelled)
    assert bind(f"SELECT a.v FROM a JOIN b USING (k) WHERE {BOUND} AND a.v > 3") == bind(spelled)
    assert bind(f"WITH w AS (SELECT * FROM a WHERE v > 3) SELECT a.v FROM w a JOIN b ON a.k = b.k AND {BOUND}") == bind(spelled)
    renamed = "(SELECT k AS key, time AS t, v FROM a WHERE v > 3)"
    text = f"SELECT a.v FROM {renamed} a JOIN b ON a.key = b.k AND {BOUND.replace('a.time', 'a.t')}"
    assert bind(text) == bind(spelled)


def test_without_an_equality_the_bounds_serve_the_search_for_partners():
    assert [str(condition) for condition in bind(f"SELECT a.v FROM a JOIN b ON {BOUND}").conditions] == [
        "0.time <= time_add(1.time, 2000000)",
        "0.time >= time_add(1.time, -5000000)",
    ]


def test_a_stream_joins_itself():
    plan = bind("SELECT y.v FROM a x JOIN a y ON x.k = y.k AND y.time BETWEEN x.time AND x.time + INTERVAL 4 SECONDS")
    assert sorted((join_input.stream, join_input.length) for join_input in plan.inputs) == [("a", 0), ("a", 4_000_000)]


def test_bounds_of_several_pairs_imply_those_of_the_others():
    #   a is at most 5 s older than b, and b at most 60 s older than c: a is at most 65 s older than c
    plan = bind(
        "SELECT a.v FROM a JOIN b ON a.k = b.k AND b.time BETWEEN a.time AND a.time + INTERVAL 5 SECONDS "
        "JOIN c ON c.k = b.k AND c.time BETWEEN b.time AND b.time + INTERVAL 1 MINUTE"
    )
    assert list_ranges(plan) == {"a": 65, "b": 60, "c": 0}
    # that c is not older than b is what its range of 0 s says
    assert [str(condition) for condition in plan.conditions if "time" in str(condition)] == [
        "0.time <= 1.time",
        "1.time <= time_add(0.time, 5000000)",
    ]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("SELECT a.v FROM a JOIN b ON a.k = b.k", "a join needs windows, and 'a' has no window", "or bound the times in a condition: a.time BETWEEN"),
        ("SELECT a.v FROM a JOIN b ON a.k = b.k AND a.time > b.time", "rows of 'b' may be any time older than those of 'a'", "write a.time BETWEEN"),
        ("SELECT x.v FROM a x JOIN b y ON x.time < y.time + INTERVAL 1 HOUR", "rows of 'x' may be any time older than those of 'y'", "BETWEEN"),
        ("SELECT a.v FROM a JOIN b ON a.other BETWEEN b.time AND b.time + INTERVAL 1 HOUR", "a join needs windows", "a.time BETWEEN"),
        (f"SELECT a.v FROM a, b, c WHERE {BOUND}", "rows of 'a' may be any time older than those of 'c'", "BETWEEN"),
        (f"SELECT a.v FROM a JOIN b ON {BOUND} AND a.time > b.time + INTERVAL 2 SECONDS", "no rows can satisfy the conditions on the times", "earlier bound first"),
        ("SELECT a.v FROM a JOIN b ON a.time BETWEEN b.time + INTERVAL 2 SECONDS AND b.time", "no rows can satisfy the conditions on the times", "earlier"),
        (f"SELECT a.v FROM a SEMI JOIN b ON {BOUND}", "a SEMI JOIN of SLIDING windows is not supported", "use an inner join"),
        (f"SELECT a.v FROM a LEFT JOIN b ON a.k = b.k WHERE {BOUND}", "a join needs windows, and 'a' has no window", "TUMBLE"),
        (f"SELECT COUNT(*) AS n FROM a JOIN b ON {BOUND}", "a join needs windows, and 'a' has no window", "TUMBLE"),
        (f"SELECT a.v FROM a JOIN SLIDING(b, '5 seconds') b ON {BOUND}", "either all sides of a join are in SLIDING windows, or none is", "SLIDING"),
        (f"SELECT a.v FROM TUMBLE(a, '5 seconds') a JOIN b ON {BOUND}", "a join needs windows, and 'b' has no window", "TUMBLE"),
        ("WITH a AS (SELECT k, COUNT(*) AS v FROM TUMBLE(a, '1 second') GROUP BY k) SELECT a.v FROM a JOIN b ON a.k = b.k", "a join needs windows, and 'b' has no window", "TUMBLE"),
        (f"SELECT a.v FROM (SELECT k, v, other AS time FROM a UNION ALL SELECT k, v, time FROM c) a JOIN b ON {BOUND}", "a window must be over event time", "pass the column on"),
        ("SELECT a.v FROM (SELECT k, v, other AS time FROM a) a JOIN b ON a.time = b.time", "a window must be over event time", "pass the column on"),
    ],
)  # fmt: skip
def test_joins_whose_times_are_not_bounded_are_refused(text: str, message: str, hint: str):
    with pytest.raises(SqlError) as caught:
        bind_query(text, CATALOG)
    assert message in caught.value.message
    assert hint in caught.value.hint
