"""The shared plan is a pure function of the set of live queries; changelogs add and remove queries."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME
from headrace.model.types import Schema
from headrace.plan.derived import AnyQuery
from headrace.planner.changelog import (
    Changelog,
    QueryAddition,
    apply_changelog,
)
from headrace.planner.explain.text import explain
from headrace.planner.operator_grouping import choose_layout
from headrace.planner.predicate_index import CellLayout
from headrace.planner.shared_plan import LiveQuery, plan_stream
from headrace.planner.statistics import OperatorLoad
from headrace.sql import Catalog, bind_query

CATALOG = Catalog((
    Stream("p", Schema.parse("k INT, x INT, y INT, z INT, s STRING, price DOUBLE, time TIMESTAMP"), "time"),
    Stream("q", Schema.parse("k INT, price DOUBLE, time TIMESTAMP"), "time"),
))  # fmt: skip
TEXTS = [
    "SELECT k, SUM(price) a FROM TUMBLE(p, '5 seconds') WHERE x > 3 GROUP BY k",
    "SELECT k, AVG(price) a FROM HOP(p, '8 seconds', '4 seconds') WHERE x < 9 GROUP BY k",
    "SELECT k, COUNT(*) a FROM TUMBLE(p, '2 seconds') GROUP BY k",
    "SELECT COUNT(*) a FROM TUMBLE(p, '2 seconds') WHERE s LIKE 'a%'",
    "SELECT k, MAX(price) a FROM SESSION(p, '2 seconds') WHERE y = 1 GROUP BY k",
    "SELECT k, price FROM p WHERE x > 1 AND y < 3",
    "SELECT k, SUM(price) a FROM TUMBLE((SELECT k, price FROM p UNION ALL SELECT k, price FROM q), '5 seconds') GROUP BY k",
]


@cache
def bind_number(number: int) -> AnyQuery:
    return bind_query(TEXTS[number % len(TEXTS)], CATALOG)


def make_live_queries(*numbers: int) -> list[LiveQuery]:
    return [LiveQuery(n, f"q{n}", bind_number(n), MIN_TIME, n) for n in numbers]


def make_addition(number: int) -> QueryAddition:
    return QueryAddition(number, f"q{number}", bind_number(number), MIN_TIME)


@given(st.permutations(range(7)))
def test_the_plan_does_not_depend_on_the_order_of_additions(order: list[int]) -> None:
    assert plan_stream("p", make_live_queries(*order)) == plan_stream("p", make_live_queries(*range(7)))


@given(st.sets(st.integers(0, 20)), st.integers(21, 30))
def test_adding_and_removing_a_query_restores_the_plan(initial: set[int], new: int) -> None:
    before = apply_changelog((), Changelog(tuple(make_addition(n) for n in initial)))
    after = apply_changelog(apply_changelog(before, Changelog((make_addition(new),))), Changelog((), frozenset({new})))
    assert after == before
    assert plan_stream("p", after) == plan_stream("p", before)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40))
def test_bits_are_unique_reused_and_less_than_the_largest_number_of_live_queries(steps: list[tuple[bool, int]]) -> None:
    current: tuple[LiveQuery, ...] = ()
    most = 1
    for number, (adding, which) in enumerate(steps):
        change = (
            Changelog((make_addition(number),))
            if adding or not current
            else Changelog((), frozenset({current[which % len(current)].id}))
        )
        current = apply_changelog(current, change)
        most = max(most, len(current))
        assert len({q.bit for q in current}) == len(current)
        assert max((q.bit for q in current), default=0) < most


def test_queries_with_equal_keys_share_an_aggregation_and_its_components() -> None:
    plan = plan_stream("p", make_live_queries(0, 1, 2))
    (aggregation,) = plan.aggregations
    assert [str(c) for c in aggregation.components] == ["rows(*)", "float(price)", "count(price)"]
    assert aggregation.slice_progressions == ((0, 1_000_000),) or len(aggregation.slice_progressions) >= 1
    assert [d.boundaries for d in aggregation.predicate_index.dimensions] == [(4, 9)]


SECOND = OperatorLoad(rows=100_000, slices=1, keys=1_000)


def test_the_cell_layout_minimizes_the_cost() -> None:
    def bind_predicate(text: str):
        return bind_query(f"SELECT k FROM p WHERE {text}", CATALOG).branches[0].predicate

    few = [bind_predicate(f"x > {i} AND y < {i}") for i in range(3)]
    assert choose_layout([bind_predicate(f"x > {i}") for i in range(100)], SECOND).layout is CellLayout.GRID
    assert choose_layout(few, SECOND).layout is CellLayout.GRID
    wide = [bind_predicate(f"x > {i} AND y < {i} AND z = {i} AND k <> {i}") for i in range(40)]
    assert choose_layout(wide, SECOND).layout is CellLayout.SIGNATURES
    expensive = [bind_predicate(" OR ".join(f"s LIKE '{c}{i}%'" for c in "abcdefghij")) for i in range(8)]
    assert choose_layout(expensive, SECOND).layout is CellLayout.PER_QUERY


def test_explain_names_each_operator_and_its_queries() -> None:
    queries = make_live_queries(*range(7))
    text = explain(queries, [plan_stream("p", queries), plan_stream("q", queries)])
    assert "7 live queries, one shared pipeline" in text
    assert "stream p: read once for 7 queries" in text
    assert "aggregation by k · used by 4 queries: q0, q1, q2, q6" in text
    assert "sessions by k, SESSION(2 s) · used by 1 query: q4" in text
    assert "stateless routing · used by 1 query: q5" in text
    assert "aggregation by k · used by 1 query: q6" in text.split("stream q")[1]
