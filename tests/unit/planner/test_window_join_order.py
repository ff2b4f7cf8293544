"""The optimizer of joins: orders against exhaustive search, groups that share and groups that must not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.window_join import WindowJoinQuery, iter_join_nodes
from headrace.planner.join.window_join_order import (
    REORDER_THRESHOLD,
    JoinStatistics,
    JoinWorkload,
    derive_join_shape,
    estimate_order_cost,
    find_best_order,
    group_join_queries,
    reorder_joins,
)
from headrace.planner.join.window_join_plan import (
    JoinOrderVersion,
    build_join_tree,
    canonicalize_join,
    count_cross_products,
    get_written_order,
    is_reorderable,
    iter_conditions,
)
from headrace.planner.shared_plan import LiveQuery
from headrace.sql import Catalog, bind_query

NAMES = "abcde"
COLUMNS = Schema.parse("k INT, x INT, y INT, time TIMESTAMP")
CATALOG = Catalog.of([Stream(name, COLUMNS, "time") for name in NAMES])


def bound(text: str) -> WindowJoinQuery:
    found = bind_query(text, CATALOG)
    assert isinstance(found, WindowJoinQuery)
    return canonicalize_join(found)


def joined(names: str, *conditions: str, where: str = "") -> WindowJoinQuery:
    sides = ", ".join(f"TUMBLE({name}, '5 s') {name}" for name in names)
    return bound(f"SELECT {names[0]}.k FROM {sides} WHERE {' AND '.join([*conditions, *([where] if where else [])])}")


CHAIN = joined("abcde", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.k = e.k")
STAR = joined("abcde", "a.k = b.k", "a.x = c.x", "a.y = d.y", "a.k = e.k")
THETA = joined("abcd", "a.x < b.x", "b.y <= c.y", "c.k <> d.k")
MIXED = joined("abcde", "a.k = b.k", "b.x < c.x", "c.y = d.y", "d.k = e.k")
CYCLE = joined("abcd", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.x = a.x")


def statistics(seed: int) -> JoinStatistics:
    random = Random(seed)
    keys = {(name, column): 10 ** random.randint(1, 6) for name in NAMES for column in ("k", "x", "y")}
    return JoinStatistics({name: 10.0 ** random.uniform(1, 5) for name in NAMES}, keys)


@pytest.mark.parametrize("plan", [CHAIN, STAR, CYCLE, THETA], ids=["chain", "star", "cycle", "theta"])
@pytest.mark.parametrize("seed", range(12))
def test_dynamic_programming_finds_what_exhaustive_search_finds(plan: WindowJoinQuery, seed: int) -> None:
    work = JoinWorkload.for_queries(plan, frozenset({0}), statistics(seed))
    fewest = without_equality(plan, get_written_order(plan))
    orders = [order for order in permutations(range(len(plan.inputs))) if without_equality(plan, order) == fewest]
    cheapest = min(estimate_order_cost(work, order) for order in orders)
    assert estimate_order_cost(work, find_best_order(work)) == pytest.approx(cheapest)


@pytest.mark.parametrize("relations", [2, 3, 4])
def test_fewer_relations_at_a_time_still_give_an_order_that_joins(relations: int) -> None:
    for seed in range(6):
        work = JoinWorkload.for_queries(CHAIN, frozenset({0}), statistics(seed))
        order = find_best_order(work, max_inputs=relations)
        assert without_equality(CHAIN, order) == 0
        assert estimate_order_cost(work, order) >= estimate_order_cost(work, find_best_order(work))


def test_an_order_keeps_every_condition() -> None:
    plan = joined("abcd", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.x = a.x", "a.y < c.y")

    def asked(tree) -> list[str]:
        found = [str(node.residual) for node in iter_join_nodes(tree) if str(node.residual) != "True"]
        return sorted(
            [*found, *(" = ".join(sorted((str(e.left), str(e.right)))) for n in iter_join_nodes(tree) for e in n.equalities)]
        )

    for order in permutations(range(4)):
        texts = [
            text for one in asked(build_join_tree(plan, order)) for text in one.replace("(", "").replace(")", "").split(" AND ")
        ]
        assert sorted(texts) == ["0.k = 1.k", "0.x = 3.x", "0.y < 2.y", "1.x = 2.x", "2.y = 3.y"]


def without_equality(plan: WindowJoinQuery, order: Sequence[int]) -> int:
    found = count_cross_products(tuple(iter_conditions(plan)), order)
    assert found == sum(not node.equalities for node in iter_join_nodes(build_join_tree(plan, order)))
    return found


def test_steps_without_an_equality_are_counted() -> None:
    assert without_equality(CHAIN, (2, 1, 0, 3, 4)) == 0
    assert without_equality(CHAIN, (0, 2, 1, 3, 4)) == 1
    assert without_equality(CHAIN, (0, 2, 4, 1, 3)) == 2
    assert without_equality(THETA, (0, 1, 2, 3)) == 3
    assert without_equality(MIXED, get_written_order(MIXED)) == 1


@pytest.mark.parametrize("seed", range(12))
def test_no_order_has_a_step_without_an_equality_that_need_not_be(seed: int) -> None:
    for plan in (CHAIN, STAR, CYCLE):
        assert without_equality(plan, find_best_order(JoinWorkload.for_queries(plan, frozenset({0}), statistics(seed)))) == 0
    for relations in (2, 3, 5):
        assert (
            without_equality(
                MIXED, find_best_order(JoinWorkload.for_queries(MIXED, frozenset({0}), statistics(seed)), max_inputs=relations)
            )
            == 1
        )


def test_small_inputs_that_have_a_condition_come_first() -> None:
    known = JoinStatistics({"a": 1e4, "b": 10.0, "c": 10.0, "d": 1e4}, {})
    assert set(find_best_order(JoinWorkload.for_queries(THETA, frozenset({0}), known))[:2]) == {1, 2}
    loose = joined("abc", "a.x < b.x", "b.y < c.y")
    even = JoinStatistics(dict.fromkeys(NAMES, 100.0), {})
    assert find_best_order(JoinWorkload.for_queries(loose, frozenset({0}), even))[:2] != (0, 2)


def test_the_order_of_the_text_makes_no_difference() -> None:
    one = bound("SELECT a.k AS n FROM TUMBLE(a, '5 s') a JOIN TUMBLE(b, '5 s') b ON a.k = b.k WHERE b.x > 1")
    two = bound("SELECT a.k AS n FROM TUMBLE(b, '5 s') b JOIN TUMBLE(a, '5 s') a ON a.k = b.k WHERE b.x > 1")
    assert one.inputs == two.inputs
    assert get_written_order(two) == (1, 0)
    outer = bound("SELECT a.k AS n FROM TUMBLE(b, '5 s') b LEFT JOIN TUMBLE(a, '5 s') a ON a.k = b.k")
    assert not is_reorderable(outer)
    assert outer.inputs[0].stream == "b"


def live(number: int, plan: WindowJoinQuery) -> LiveQuery:
    return LiveQuery(number, f"q{number}", plan, bit=number)


def wanted(rows: dict[tuple[str, int], set[int]]):
    """Return the share of a hundred rows that some queries want, given which each wants of each stream."""

    def share(stream: str, slot: int, bits: frozenset[int]) -> float:
        del slot
        return max(0.5, len(set().union(*(rows[stream, bit] for bit in bits)))) / 100

    return share


def test_queries_that_want_the_same_rows_are_joined_together_and_others_are_not() -> None:
    plan = joined("ab", "a.k = b.k")
    front, back = set(range(20)), set(range(80, 100))
    rows = {(stream, bit): front if bit < 2 else back for stream in "ab" for bit in range(4)}
    known = JoinStatistics({"a": 1e4, "b": 1e4}, {("a", "k"): 10, ("b", "k"): 10}, wanted(rows))
    found = group_join_queries([live(number, plan) for number in range(4)], known, {})
    assert found[0] == found[1] != found[2] == found[3]


def test_groups_that_are_known_stay() -> None:
    plan = joined("ab", "a.k = b.k")
    assert group_join_queries([live(0, plan), live(1, plan)], JoinStatistics(), {0: 3}) == {0: 3, 1: 3}


def test_an_order_is_changed_only_where_that_gains_much() -> None:
    plan = joined("abc", "a.k = b.k", "b.x = c.x")
    even = JoinStatistics(dict.fromkeys(NAMES, 1000.0), {(name, column): 1000 for name in NAMES for column in "kxy"})
    assert reorder_joins([live(0, plan)], even) == {}
    skewed = JoinStatistics({"a": 1e6, "b": 1e4, "c": 1.0}, {(name, column): 1000 for name in NAMES for column in "kxy"})
    changed = reorder_joins([live(0, plan)], skewed)
    assert changed[0].order[-1] == 0  # the large one last
    work = JoinWorkload.for_queries(plan, frozenset({0}), skewed)
    assert estimate_order_cost(work, changed[0].order) < REORDER_THRESHOLD * estimate_order_cost(work, (0, 1, 2))
    settled = LiveQuery(0, "q", plan, order_versions=(JoinOrderVersion(changed[0].order),))
    assert reorder_joins([settled], skewed) == {}


def test_queries_of_one_group_get_one_order() -> None:
    plans = [joined("abc", "a.k = b.k", "b.x = c.x", where=f"a.y > {number}") for number in range(3)]
    skewed = JoinStatistics({"a": 1e6, "b": 1e4, "c": 1.0}, {(name, column): 1000 for name in NAMES for column in "kxy"})
    changed = reorder_joins([live(number, plan) for number, plan in enumerate(plans)], skewed)
    assert len(changed) == 3
    assert len({one.order for one in changed.values()}) == 1


def test_an_order_is_never_given_to_a_query_that_lacks_the_equality_it_needs() -> None:
    """An equality that only some of the queries have may make an order possible for them, and for no other."""
    plain = joined("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x")
    more = joined("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x", "a.y + e.y = c.y")
    for first, second in ((plain, more), (more, plain)):
        for seed in range(20):
            queries = [live(0, first), live(1, second)]
            for number, one in reorder_joins(queries, statistics(seed)).items():
                plan = queries[number].plan
                assert isinstance(plan, WindowJoinQuery)
                assert without_equality(plan, one.order) == 0


def test_queries_with_other_equalities_are_not_of_one_shape() -> None:
    plain = joined("abc", "a.k = b.k", "b.x = c.x")
    more = joined("abc", "a.k = b.k", "b.x = c.x", "a.y + c.y = b.y")
    assert derive_join_shape(plain) != derive_join_shape(more)
