from __future__ import annotations

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.join.normalized_join import NormalizedJoin, find_residual_predicates, normalize_join
from headrace.planner.shared_plan import LiveQuery
from headrace.sql import Catalog, bind_query

STREAMS = [Stream(name, Schema.parse("k INT, s STRING, x INT, time TIMESTAMP"), "time", 0) for name in "rst"]
BY_KEY = "r.k = s.k"
BY_KEY_AND_MORE = "r.k = s.k AND r.s = s.s AND r.x < s.x"


def make_query(number: int, condition: str, residual: frozenset[str] = frozenset()) -> NormalizedJoin:
    text = f"SELECT r.x FROM SLIDING(r, '5 seconds') r JOIN SLIDING(s, '5 seconds') s ON {condition}"
    return normalize_join(
        LiveQuery(number, f"q{number}", bind_query(text, Catalog.of(STREAMS)), bit=number), residual_texts=residual
    )


def make_selectivities(queries: list[NormalizedJoin], **selectivities: float) -> dict:
    names = {"r.k = s.k": "key", "r.s = s.s": "text", "r.x < s.x": "less"}
    return {predicate: selectivities[names[predicate.text]] for query in queries for predicate in query.predicates}


def test_unselective_predicates_of_some_queries_become_residual():
    queries = [make_query(0, BY_KEY), make_query(1, BY_KEY_AND_MORE)]
    assert find_residual_predicates(queries, make_selectivities(queries, key=1e-4, text=0.9, less=0.5)) == {
        "r.s = s.s",
        "r.x < s.x",
    }


def test_selective_predicates_do_not_become_residual():
    queries = [make_query(0, BY_KEY), make_query(1, BY_KEY_AND_MORE)]
    assert find_residual_predicates(queries, make_selectivities(queries, key=0.3, text=1e-3, less=0.5)) == frozenset()


def test_no_predicate_becomes_residual_without_a_common_equality():
    queries = [make_query(0, "r.s = s.s"), make_query(1, BY_KEY)]
    assert find_residual_predicates(queries, make_selectivities(queries, key=0.3, text=0.3, less=0.5)) == frozenset()


def test_queries_that_differ_in_residual_predicates_share_a_join_graph():
    residual = frozenset({"r.s = s.s", "r.x < s.x"})
    plain, more = make_query(0, BY_KEY, residual), make_query(1, BY_KEY_AND_MORE, residual)
    assert plain.join_graph == more.join_graph != make_query(1, BY_KEY_AND_MORE).join_graph
    assert len(more.conditions) == 3


def test_a_query_keeps_its_last_predicates_even_if_they_are_residual():
    alone = make_query(0, "r.s = s.s AND r.x < s.x", frozenset({"r.s = s.s", "r.x < s.x"}))
    assert alone.join_graph == make_query(0, "r.s = s.s AND r.x < s.x").join_graph
