"""The optimizer of window joins: orders against exhaustive search, and groups of queries that share a join."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
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
from support.examples import scale_examples

NAMES = "abcde"
COLUMNS = Schema.parse("k INT, x INT, y INT, time TIMESTAMP")
CATALOG = Catalog.of([Stream(name, COLUMNS, "time") for name in NAMES])


def bind_join(text: str) -> WindowJoinQuery:
    plan = bind_query(text, CATALOG)
    assert isinstance(plan, WindowJoinQuery)
    return canonicalize_join(plan)


def make_join(names: str, *conditions: str, where: str = "") -> WindowJoinQuery:
    sides = ", ".join(f"TUMBLE({name}, '5 s') {name}" for name in names)
    return bind_join(f"SELECT {names[0]}.k FROM {sides} WHERE {' AND '.join([*conditions, *([where] if where else [])])}")


CHAIN = make_join("abcde", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.k = e.k")
STAR = make_join("abcde", "a.k = b.k", "a.x = c.x", "a.y = d.y", "a.k = e.k")
THETA = make_join("abcd", "a.x < b.x", "b.y <= c.y", "c.k <> d.k")
MIXED = make_join("abcde", "a.k = b.k", "b.x < c.x", "c.y = d.y", "d.k = e.k")
CYCLE = make_join("abcd", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.x = a.x")


def draw_statistics(seed: int) -> JoinStatistics:
    random = Random(seed)
    keys = {(name, column): 10 ** random.randint(1, 6) for name in NAMES for column in ("k", "x", "y")}
    return JoinStatistics({name: 10.0 ** random.uniform(1, 5) for name in NAMES}, keys)


@pytest.mark.parametrize("plan", [CHAIN, STAR, CYCLE, THETA], ids=["chain", "star", "cycle", "theta"])
@pytest.mark.parametrize("seed", range(12))
def test_dynamic_programming_finds_the_cheapest_order_of_exhaustive_search(plan: WindowJoinQuery, seed: int) -> None:
    work = JoinWorkload.for_queries(plan, frozenset({0}), draw_statistics(seed))
    cheapest = min(estimate_order_cost(work, order) for order in list_orders_with_fewest_cross_products(plan))
    assert estimate_order_cost(work, find_best_order(work)) == pytest.approx(cheapest)


@cache
def list_orders_with_fewest_cross_products(plan: WindowJoinQuery) -> list[tuple[int, ...]]:
    fewest = count_steps_without_equality(plan, get_written_order(plan))
    return [order for order in permutations(range(len(plan.inputs))) if count_steps_without_equality(plan, order) == fewest]


@pytest.mark.parametrize("relations", [2, 3, 4])
def test_a_smaller_max_inputs_gives_an_order_without_cross_products(relations: int) -> None:
    for seed in range(6):
        work = JoinWorkload.for_queries(CHAIN, frozenset({0}), draw_statistics(seed))
        order = find_best_order(work, max_inputs=relations)
        assert count_steps_without_equality(CHAIN, order) == 0
        assert estimate_order_cost(work, order) >= estimate_order_cost(work, find_best_order(work))


def test_every_join_order_keeps_all_conditions() -> None:
    plan = make_join("abcd", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.x = a.x", "a.y < c.y")

    def list_conditions(tree) -> list[str]:
        residuals = [str(node.residual) for node in iter_join_nodes(tree) if str(node.residual) != "True"]
        return sorted(
            [*residuals, *(" = ".join(sorted((str(e.left), str(e.right)))) for n in iter_join_nodes(tree) for e in n.equalities)]
        )

    for order in permutations(range(4)):
        texts = [
            text
            for condition in list_conditions(build_join_tree(plan, order))
            for text in condition.replace("(", "").replace(")", "").split(" AND ")
        ]
        assert sorted(texts) == ["0.k = 1.k", "0.x = 3.x", "0.y < 2.y", "1.x = 2.x", "2.y = 3.y"]


def count_steps_without_equality(plan: WindowJoinQuery, order: Sequence[int]) -> int:
    steps = count_cross_products(tuple(iter_conditions(plan)), order)
    assert steps == sum(not node.equalities for node in iter_join_nodes(build_join_tree(plan, order)))
    return steps


def test_steps_without_an_equality_are_counted() -> None:
    assert count_steps_without_equality(CHAIN, (2, 1, 0, 3, 4)) == 0
    assert count_steps_without_equality(CHAIN, (0, 2, 1, 3, 4)) == 1
    assert count_steps_without_equality(CHAIN, (0, 2, 4, 1, 3)) == 2
    assert count_steps_without_equality(THETA, (0, 1, 2, 3)) == 3
    assert count_steps_without_equality(MIXED, get_written_order(MIXED)) == 1


@pytest.mark.parametrize("seed", range(12))
def test_the_best_order_has_no_avoidable_step_without_an_equality(seed: int) -> None:
    for plan in (CHAIN, STAR, CYCLE):
        assert (
            count_steps_without_equality(
                plan, find_best_order(JoinWorkload.for_queries(plan, frozenset({0}), draw_statistics(seed)))
            )
            == 0
        )
    for relations in (2, 3, 5):
        assert (
            count_steps_without_equality(
                MIXED,
                find_best_order(JoinWorkload.for_queries(MIXED, frozenset({0}), draw_statistics(seed)), max_inputs=relations),
            )
            == 1
        )


def test_small_inputs_with_a_common_condition_come_first() -> None:
    known = JoinStatistics({"a": 1e4, "b": 10.0, "c": 10.0, "d": 1e4}, {})
    assert set(find_best_order(JoinWorkload.for_queries(THETA, frozenset({0}), known))[:2]) == {1, 2}
    comparisons = make_join("abc", "a.x < b.x", "b.y < c.y")
    uniform = JoinStatistics(dict.fromkeys(NAMES, 100.0), {})
    assert find_best_order(JoinWorkload.for_queries(comparisons, frozenset({0}), uniform))[:2] != (0, 2)


def test_equal_joins_in_another_order_have_equal_inputs() -> None:
    first = bind_join("SELECT a.k AS n FROM TUMBLE(a, '5 s') a JOIN TUMBLE(b, '5 s') b ON a.k = b.k WHERE b.x > 1")
    second = bind_join("SELECT a.k AS n FROM TUMBLE(b, '5 s') b JOIN TUMBLE(a, '5 s') a ON a.k = b.k WHERE b.x > 1")
    assert first.inputs == second.inputs
    assert get_written_order(second) == (1, 0)
    outer = bind_join("SELECT a.k AS n FROM TUMBLE(b, '5 s') b LEFT JOIN TUMBLE(a, '5 s') a ON a.k = b.k")
    assert not is_reorderable(outer)
    assert outer.inputs[0].stream == "b"


def make_live_query(number: int, plan: WindowJoinQuery) -> LiveQuery:
    return LiveQuery(number, f"q{number}", plan, bit=number)


def make_share_function(rows: dict[tuple[str, int], set[int]]):
    """Return a function for the share of 100 rows that queries select; `rows` has the rows by stream and query bit."""

    def share(stream: str, slot: int, bits: frozenset[int]) -> float:
        del slot
        return max(0.5, len(set().union(*(rows[stream, bit] for bit in bits)))) / 100

    return share


def test_queries_that_select_the_same_rows_are_in_the_same_group() -> None:
    plan = make_join("ab", "a.k = b.k")
    front, back = set(range(20)), set(range(80, 100))
    rows = {(stream, bit): front if bit < 2 else back for stream in "ab" for bit in range(4)}
    known = JoinStatistics({"a": 1e4, "b": 1e4}, {("a", "k"): 10, ("b", "k"): 10}, make_share_function(rows))
    groups = group_join_queries([make_live_query(number, plan) for number in range(4)], known, {})
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_existing_groups_are_kept() -> None:
    plan = make_join("ab", "a.k = b.k")
    assert group_join_queries([make_live_query(0, plan), make_live_query(1, plan)], JoinStatistics(), {0: 3}) == {0: 3, 1: 3}


def test_joins_are_reordered_only_for_a_large_gain() -> None:
    plan = make_join("abc", "a.k = b.k", "b.x = c.x")
    uniform = JoinStatistics(dict.fromkeys(NAMES, 1000.0), {(name, column): 1000 for name in NAMES for column in "kxy"})
    assert reorder_joins([make_live_query(0, plan)], uniform) == {}
    skewed = JoinStatistics({"a": 1e6, "b": 1e4, "c": 1.0}, {(name, column): 1000 for name in NAMES for column in "kxy"})
    changed = reorder_joins([make_live_query(0, plan)], skewed)
    assert changed[0].order[-1] == 0  # the large input is last
    work = JoinWorkload.for_queries(plan, frozenset({0}), skewed)
    assert estimate_order_cost(work, changed[0].order) < REORDER_THRESHOLD * estimate_order_cost(work, (0, 1, 2))
    reordered = LiveQuery(0, "q", plan, order_versions=(JoinOrderVersion(changed[0].order),))
    assert reorder_joins([reordered], skewed) == {}


def test_queries_of_the_same_group_get_the_same_order() -> None:
    plans = [make_join("abc", "a.k = b.k", "b.x = c.x", where=f"a.y > {number}") for number in range(3)]
    skewed = JoinStatistics({"a": 1e6, "b": 1e4, "c": 1.0}, {(name, column): 1000 for name in NAMES for column in "kxy"})
    changed = reorder_joins([make_live_query(number, plan) for number, plan in enumerate(plans)], skewed)
    assert len(changed) == 3
    assert len({version.order for version in changed.values()}) == 1


def test_reordering_creates_no_step_without_an_equality_for_any_query_of_a_group() -> None:
    """An equality of some queries makes orders possible for these queries only."""
    plain = make_join("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x")
    more = make_join("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x", "a.y + e.y = c.y")
    for first, second in ((plain, more), (more, plain)):
        for seed in range(scale_examples(20)):
            queries = [make_live_query(0, first), make_live_query(1, second)]
            for number, version in reorder_joins(queries, draw_statistics(seed)).items():
                plan = queries[number].plan
                assert isinstance(plan, WindowJoinQuery)
                assert count_steps_without_equality(plan, version.order) == 0


def test_queries_with_different_equalities_have_different_shapes() -> None:
    plain = make_join("abc", "a.k = b.k", "b.x = c.x")
    more = make_join("abc", "a.k = b.k", "b.x = c.x", "a.y + c.y = b.y")
    assert derive_join_shape(plain) != derive_join_shape(more)
