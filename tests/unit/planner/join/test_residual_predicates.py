from __future__ import annotations

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.join.normalized_join import NormalizedJoin, find_residual_predicates, normalize_join
from headrace.planner.shared_plan import LiveQuery
from headrace.sql import Catalog, bind_query

STREAMS = [Stream(name, Schema.parse("k INT, s STRING, x INT, time TIMESTAMP"), "time", 0) for name in "rst"]
BY_KEY = "r.k = s.k"
BY_KEY_AND_MORE = "r.k = s.k AND r.s = s.s AND r.x < s.x"


def query(number: int, condition: str, loose: frozenset[str] = frozenset()) -> NormalizedJoin:
    text = f"SELECT r.x FROM SLIDING(r, '5 seconds') r JOIN SLIDING(s, '5 seconds') s ON {condition}"
    return normalize_join(
        LiveQuery(number, f"q{number}", bind_query(text, Catalog.of(STREAMS)), bit=number), residual_texts=loose
    )


def figures(queries: list[NormalizedJoin], **chances: float) -> dict:
    named = {"r.k = s.k": "key", "r.s = s.s": "text", "r.x < s.x": "less"}
    return {one: chances[named[one.text]] for each in queries for one in each.predicates}


def test_what_only_some_have_is_loose_where_it_hardly_matters():
    two = [query(0, BY_KEY), query(1, BY_KEY_AND_MORE)]
    assert find_residual_predicates(two, figures(two, key=1e-4, text=0.9, less=0.5)) == {"r.s = s.s", "r.x < s.x"}


def test_what_leaves_much_fewer_rows_stays():
    two = [query(0, BY_KEY), query(1, BY_KEY_AND_MORE)]
    assert find_residual_predicates(two, figures(two, key=0.3, text=1e-3, less=0.5)) == frozenset()


def test_without_a_common_equality_everything_stays():
    two = [query(0, "r.s = s.s"), query(1, BY_KEY)]
    assert find_residual_predicates(two, figures(two, key=0.3, text=0.3, less=0.5)) == frozenset()


def test_queries_with_and_without_are_one_join_then_and_keep_their_conditions():
    loose = frozenset({"r.s = s.s", "r.x < s.x"})
    plain, more = query(0, BY_KEY, loose), query(1, BY_KEY_AND_MORE, loose)
    assert plain.join_graph == more.join_graph != query(1, BY_KEY_AND_MORE).join_graph
    assert len(more.conditions) == 3


def test_a_query_that_has_nothing_else_is_joined_by_it_all_the_same():
    alone = query(0, "r.s = s.s AND r.x < s.x", frozenset({"r.s = s.s", "r.x < s.x"}))
    assert alone.join_graph == query(0, "r.s = s.s AND r.x < s.x").join_graph
