"""A UNION ALL as a side of a join is one stream with the rows of several."""

from __future__ import annotations

import pytest

from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import HIDDEN_TIME, NestedQuery, UnitedStream
from headrace.sql import Catalog, bind_query

CATALOG = Catalog((
    Stream("a", Schema.parse("k INT, v INT, time TIMESTAMP"), "time"),
    Stream("b", Schema.parse("k BIGINT, v INT, at TIMESTAMP"), "at"),
    Stream("c", Schema.parse("k INT, v INT, time TIMESTAMP"), "time"),
))  # fmt: skip
UNION = "SELECT k, v, time FROM a WHERE v > 1 UNION ALL SELECT k, v + 1, at FROM b"


def bind(text: str) -> NestedQuery:
    query = bind_query(text, CATALOG)
    assert isinstance(query, NestedQuery)
    return query


def get_union(query: NestedQuery) -> UnitedStream:
    (union,) = (stream for stream in query.unnested if isinstance(stream, UnitedStream))
    return union


@pytest.mark.parametrize(
    "sides",
    [
        f"TUMBLE(({UNION}), '5 seconds') u JOIN TUMBLE(c, '5 seconds') c ON u.k = c.k",
        f"SLIDING(({UNION}), '5 seconds') u JOIN SLIDING(c, '5 seconds') c ON u.k = c.k",
        f"({UNION}) u JOIN c ON u.k = c.k AND u.time BETWEEN c.time - INTERVAL 5 SECONDS AND c.time + INTERVAL 5 SECONDS",
    ],
)
def test_the_rows_of_a_union_are_one_input(sides: str):
    query = bind(f"SELECT u.v, c.v AS w FROM {sides}")
    union = get_union(query)
    assert {join_input.stream for join_input in query.outer.inputs} == {union.name, "c"}
    assert (union.stream.schema.to_ddl(), union.stream.time) == ("`k` BIGINT, `v` INT, `time` TIMESTAMP", "time")
    assert union.bases == ("a", "b")
    assert [str(branch.predicate) for branch in union.branches] == ["v > 1", "True"]
    assert set(query.streams) == {"a", "b", "c"}


def test_equal_unions_are_equal_streams():
    texts = [
        f"SELECT u.v FROM TUMBLE(({UNION}), '5 seconds') u JOIN TUMBLE(c, '5 seconds') c ON u.k = c.k",
        f"SELECT u.k FROM SLIDING(({UNION}), '9 seconds') u, SLIDING(c, '1 second') c WHERE u.k = c.v",
    ]
    first, second = (get_union(bind(text)) for text in texts)
    assert first == second
    other = get_union(bind(texts[0].replace("v > 1", "v > 2")))
    assert other.name != first.name


def test_a_union_without_the_event_time_has_it_hidden():
    union = "SELECT k FROM a UNION ALL SELECT k FROM b"
    query = bind(f"SELECT u.k FROM TUMBLE(({union}), '5 seconds') u JOIN TUMBLE(c, '5 seconds') c ON u.k = c.k")
    stream = get_union(query).stream
    assert (stream.time, stream.schema.names) == (HIDDEN_TIME, ("k", HIDDEN_TIME))
    assert bind(f"SELECT * FROM TUMBLE(({union}), '5 s') u JOIN TUMBLE(c, '5 s') c USING (k)").schema.names == ("k", "v", "time")


def test_unions_of_results_are_refused():
    sums = "SELECT k, SUM(v) AS v FROM TUMBLE({}, '5 seconds') GROUP BY k"
    union = f"SELECT k, v FROM ({sums.format('a')}) UNION ALL SELECT k, v FROM ({sums.format('c')})"
    text = f"SELECT u.v FROM TUMBLE(({union}), '5 seconds') u JOIN TUMBLE(c, '5 seconds') c ON u.k = c.k"
    with pytest.raises(SqlError, match="a UNION ALL of results of windows cannot be joined") as caught:
        bind_query(text, CATALOG)
    assert caught.value.hint == "join the results one by one"


def test_unions_that_are_not_joined_are_pushed_down():
    query = bind_query(f"SELECT k, SUM(v) AS v FROM TUMBLE(({UNION}), '5 seconds') GROUP BY k", CATALOG)
    assert not isinstance(query, NestedQuery)
    assert query.streams == ("a", "b")
