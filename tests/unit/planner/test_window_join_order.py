"""The optimizer of window joins: orders against exhaustive search, and groups of queries that share a join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from random import Random

import pytest

from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.model.window_join_options import WindowJoinOptions
from headrace.plan.window_join import WindowJoinQuery, iter_join_nodes
from headrace.planner.join.window_join_cost import JoinStatistics, JoinTemplate, PathIds, RowSample
from headrace.planner.join.window_join_order import estimate_order_cost, find_best_order
from headrace.planner.join.window_join_plan import (
    JoinOrderVersion,
    build_join_tree,
    canonicalize_join,
    count_cross_products,
    get_written_order,
    is_reorderable,
    iter_conditions,
)
from headrace.planner.join.window_join_replanning import list_joining_queries, replan_joins, share_steps
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
PAIR, NEXT_PAIR = make_join("ab", "a.k = b.k"), make_join("bc", "b.x = c.x")
TRIPLE = make_join("bcd", "b.x = c.x", "c.y = d.y")
CYCLE = make_join("abcd", "a.k = b.k", "b.x = c.x", "c.y = d.y", "d.x = a.x")


def draw_statistics(seed: int) -> JoinStatistics:
    random = Random(seed)
    keys = {(name, column): 10 ** random.randint(1, 6) for name in NAMES for column in ("k", "x", "y")}
    return JoinStatistics({name: 10.0 ** random.uniform(1, 5) for name in NAMES}, keys)


def make_template(plan: WindowJoinQuery, statistics: JoinStatistics) -> JoinTemplate:
    return JoinTemplate.of(plan, statistics, PathIds())


def cost_of(template: JoinTemplate, order: Sequence[int]) -> float:
    return estimate_order_cost(template, tuple(order), template.find_rows(0))


def find_order(template: JoinTemplate, block_inputs: int = 5) -> tuple[int, ...]:
    rows = template.find_rows(0)
    return find_best_order(template, lambda p: p.estimate_work(template.make_load(p, rows)).nanoseconds, block_inputs)


@pytest.mark.parametrize("plan", [CHAIN, STAR, CYCLE, THETA, MIXED], ids=["chain", "star", "cycle", "theta", "mixed"])
@pytest.mark.parametrize("seed", range(12))
def test_dynamic_programming_finds_the_cheapest_order_of_exhaustive_search(plan: WindowJoinQuery, seed: int) -> None:
    template = make_template(plan, draw_statistics(seed))
    cheapest = min(cost_of(template, order) for order in list_orders_with_fewest_cross_products(plan))
    assert cost_of(template, find_order(template)) == pytest.approx(cheapest)


@cache
def list_orders_with_fewest_cross_products(plan: WindowJoinQuery) -> list[tuple[int, ...]]:
    fewest = count_steps_without_equality(plan, get_written_order(plan))
    return [order for order in permutations(range(len(plan.inputs))) if count_steps_without_equality(plan, order) == fewest]


@pytest.mark.parametrize("block_inputs", [2, 3, 4])
def test_smaller_blocks_give_an_order_without_cross_products(block_inputs: int) -> None:
    differs = False
    for seed in range(6):
        template = make_template(CHAIN, draw_statistics(seed))
        order, best = find_order(template, block_inputs), find_order(template)
        assert count_steps_without_equality(CHAIN, order) == 0
        assert cost_of(template, order) >= cost_of(template, best)
        differs |= order != best
    assert differs or block_inputs > 2  # blocks of two inputs are nearly greedy


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
        assert count_steps_without_equality(plan, find_order(make_template(plan, draw_statistics(seed)))) == 0
    for block_inputs in (2, 3, 5):
        template = make_template(MIXED, draw_statistics(seed))
        assert count_steps_without_equality(MIXED, find_order(template, block_inputs)) == 1


def test_small_inputs_with_a_common_condition_come_first() -> None:
    known = JoinStatistics({"a": 1e4, "b": 10.0, "c": 10.0, "d": 1e4}, {})
    assert set(find_order(make_template(THETA, known))[:2]) == {1, 2}
    comparisons = make_join("abc", "a.x < b.x", "b.y < c.y")
    uniform = JoinStatistics(dict.fromkeys(NAMES, 100.0), {})
    assert find_order(make_template(comparisons, uniform))[:2] != (0, 2)


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


ALL_KEYS = {(name, column): 1000 for name in NAMES for column in "kxy"}
UNIFORM = JoinStatistics(dict.fromkeys(NAMES, 1000.0), ALL_KEYS)
SKEWED = JoinStatistics({"a": 1e6, "b": 1e5, "c": 1.0}, ALL_KEYS)
EASY = WindowJoinOptions(order_gain=0.05, group_gain=0.05)


def make_samples(selected: dict[tuple[str, int], set[int]], row_count: int = 100) -> dict[tuple[str, int], RowSample]:
    """Return samples; `selected` has the sampled rows by stream and query bit."""
    every, masks = (1 << row_count) - 1, {place: sum(1 << row for row in rows) for place, rows in selected.items()}
    streams = {stream for stream, _ in selected}
    return {
        (stream, 0): RowSample(
            {bit: mask for (name, bit), mask in masks.items() if name == stream},
            {bit: every for name, bit in masks if name == stream},
        )
        for stream in streams
    }


def replan(queries: Sequence[LiveQuery], statistics: JoinStatistics, changed=None, options=EASY) -> list[LiveQuery]:
    """Return the queries under the plan after replanning."""
    versions = replan_joins(queries, statistics, None if changed is None else frozenset(changed), options).changed
    return [replace(query, order_versions=(versions[query.id],)) if query.id in versions else query for query in queries]


def groups_of(queries: Sequence[LiveQuery]) -> list[tuple[int, ...]]:
    return [version_of(query).step_groups for query in queries]


def version_of(query: LiveQuery) -> JoinOrderVersion:
    assert isinstance(query.plan, WindowJoinQuery)
    return query.order_versions[-1] if query.order_versions else JoinOrderVersion(get_written_order(query.plan))


def total_cost(queries: Sequence[LiveQuery], statistics: JoinStatistics) -> float:
    return share_steps(list_joining_queries(queries, statistics)).cost


FRONT, BACK = set(range(40)), set(range(60, 100))
FEW_KEYS = {(name, column): 20 for name in NAMES for column in "kxy"}


def select_rows(streams: str, rows_by_bit: Sequence[set[int]]) -> JoinStatistics:
    selected = {(stream, bit): rows for stream in streams for bit, rows in enumerate(rows_by_bit)}
    return JoinStatistics(dict.fromkeys(NAMES, 2e3), FEW_KEYS, make_samples(selected))


def test_queries_that_select_the_same_rows_are_in_the_same_group() -> None:
    plan = make_join("ab", "a.k = b.k")
    statistics = select_rows("ab", [FRONT, FRONT, BACK, BACK])
    groups = groups_of(replan([make_live_query(number, plan) for number in range(4)], statistics))
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_a_join_within_another_join_is_shared_by_those_that_select_its_rows() -> None:
    """Groups are those of the join that queries have in common, not of the whole query."""
    pair, triple = make_join("ab", "a.k = b.k"), make_join("abc", "a.k = b.k", "b.x = c.x")
    statistics = select_rows("abc", [FRONT, BACK, FRONT, BACK])
    written = WindowJoinOptions(reordering=False, group_gain=0.05)
    plans = [pair, pair, triple, triple]
    queries = replan([make_live_query(number, plan) for number, plan in enumerate(plans)], statistics, options=written)
    first_steps = [version_of(query).group for query in queries]
    assert first_steps[0] == first_steps[2] != first_steps[1] == first_steps[3]


def test_queries_share_a_join_and_continue_apart() -> None:
    plan = make_join("abc", "a.k = b.k", "b.x = c.x")
    half, other = set(range(50)), set(range(50, 100))
    rows = {"a": (set(range(100)), set(range(100))), "b": (set(range(60)), set(range(40, 100))), "c": (half, other)}
    selected = {(stream, bit): rows[stream][bit] for stream in "abc" for bit in range(2)}
    statistics = JoinStatistics(
        dict.fromkeys(NAMES, 5e3), {**FEW_KEYS, ("a", "k"): 5000, ("b", "k"): 5000}, make_samples(selected)
    )
    options = WindowJoinOptions(reordering=False, group_gain=0.0)
    queries = replan([make_live_query(number, plan) for number in range(2)], statistics, options=options)
    first, second = groups_of(queries)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_groups_follow_the_statistics_but_not_their_noise() -> None:
    plan = make_join("ab", "a.k = b.k")
    apart, together = select_rows("ab", [FRONT, BACK]), select_rows("ab", [FRONT, FRONT])
    queries = replan([make_live_query(number, plan) for number in range(2)], apart)
    assert len(set(groups_of(queries))) == 2
    assert replan(queries, apart, {0, 1}) == queries  # nothing changed
    merged = replan(queries, together, {0, 1})
    assert len(set(groups_of(merged))) == 1
    assert len(set(groups_of(replan(merged, apart, {0, 1})))) == 2
    #  where either is about as good, groups stay as they are
    even = select_rows("ab", [set(range(62)), set(range(38, 100))])
    careful = WindowJoinOptions(group_gain=0.3)
    for start in (queries, merged):
        assert replan(start, even, {0, 1}, careful) == start
        assert replan(start, even, None, careful) == start


def test_settled_queries_are_not_moved_when_others_change() -> None:
    plan = make_join("ab", "a.k = b.k")
    statistics = select_rows("ab", [FRONT, FRONT, FRONT])
    queries = [replace(make_live_query(0, plan), order_versions=(JoinOrderVersion((0, 1), 3),))]
    queries += [make_live_query(number, plan) for number in (1, 2)]
    replanned = replan(queries, statistics, {1, 2})
    assert groups_of(replanned) == [(3,)] * 3


def test_without_grouping_equal_joins_are_shared_and_without_reordering_orders_stay() -> None:
    plan = make_join("abc", "a.k = b.k", "b.x = c.x")
    statistics = JoinStatistics({"a": 1e6, "b": 1e5, "c": 1.0}, FEW_KEYS, select_rows("abc", [FRONT, BACK]).samples)
    queries = [make_live_query(number, plan) for number in range(2)]
    shared = replan(queries, statistics, options=replace(EASY, grouping=False))
    assert set(groups_of(shared)) == {(0, 0)}
    assert all(version_of(query).order[-1] == 0 for query in shared)
    written = replan(queries, statistics, options=replace(EASY, reordering=False, group_gain=0.02))
    assert {version.order for query in written for version in query.order_versions} <= {(0, 1, 2)}
    assert len(set(groups_of(written))) == 2
    neither = replan_joins(queries, statistics, None, replace(EASY, grouping=False, reordering=False))
    assert (neither.changed, neither.steps) == ({}, 0)


def test_joins_are_reordered_only_for_a_large_gain() -> None:
    plan = make_join("abc", "a.k = b.k", "b.x = c.x")
    default = WindowJoinOptions()
    assert replan([make_live_query(0, plan)], UNIFORM, options=default)[0].order_versions == ()
    (changed,) = replan([make_live_query(0, plan)], SKEWED, options=default)
    assert changed.order_versions[0].order[-1] == 0  # the large input is last
    template = make_template(plan, SKEWED)
    assert cost_of(template, changed.order_versions[0].order) < (1 - default.order_gain) * cost_of(template, (0, 1, 2))
    assert replan([changed], SKEWED, options=default) == [changed]


def test_queries_of_the_same_class_get_the_same_order() -> None:
    plans = [make_join("abc", "a.k = b.k", "b.x = c.x", where=f"a.y > {number}") for number in range(3)]
    changed = replan([make_live_query(number, plan) for number, plan in enumerate(plans)], SKEWED)
    assert {version_of(query).order[-1] for query in changed} == {0}


def test_queries_begin_with_the_join_that_all_of_them_have() -> None:
    """Alone, the first query begins with a and b; beside the others it begins with b and c."""
    large = make_join("abc", "a.k = b.k", "b.x = c.x")
    small = make_join("bc", "b.x = c.x")
    keys = {**ALL_KEYS, ("a", "k"): 30_000, ("b", "k"): 30_000, ("b", "x"): 20_000, ("c", "x"): 20_000}
    statistics = JoinStatistics({"a": 1e4, "b": 1e4, "c": 1e4}, keys)
    alone = find_order(make_template(large, statistics))
    assert set(alone[:2]) == {0, 1}
    queries = [make_live_query(0, large), *(make_live_query(number, small) for number in (1, 2))]
    queries = replan(queries, statistics, options=WindowJoinOptions(order_gain=0.0))
    orders = [version_of(query).order for query in queries]
    assert orders[0] == (*(index + 1 for index in orders[1]), 0)
    assert orders[1] == orders[2]
    (shared,) = [
        step for step in share_steps(list_joining_queries(queries, statistics)).steps.values() if len(step.loads_by_query) > 1
    ]
    assert sorted(shared.loads_by_query) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(scale_examples(30)))
def test_a_common_plan_costs_no_more_than_plans_of_single_queries(seed: int) -> None:
    random = Random(seed)
    choices = [
        CHAIN,
        STAR,
        CYCLE,
        make_join("ab", "a.k = b.k"),
        make_join("bc", "b.x = c.x"),
        make_join("bcd", "b.x = c.x", "c.y = d.y"),
    ]
    plans = [random.choice(choices) for _ in range(random.randint(1, 6))]
    spans = [(random.randrange(60), random.randint(5, 100)) for _ in plans]
    selected = {
        (name, bit): set(range(start, min(100, start + size))) for name in NAMES for bit, (start, size) in enumerate(spans)
    }
    drawn = draw_statistics(seed)
    statistics = JoinStatistics(drawn.rates, drawn.distinct_keys, make_samples(selected), partitions=random.randint(1, 4))
    queries = [make_live_query(number, plan) for number, plan in enumerate(plans)]
    always = WindowJoinOptions(order_gain=0.0, group_gain=0.0)
    planned = replan(queries, statistics, options=always)
    alone = sum(total_cost(replan([query], statistics, options=always), statistics) for query in queries)
    cost = total_cost(planned, statistics)
    assert cost <= total_cost(queries, statistics) * (1 + 1e-9)
    assert cost <= alone * (1 + 1e-9)
    assert total_cost(replan(planned, statistics, {0}, always), statistics) <= cost * (1 + 1e-9)


def test_reordering_creates_no_step_without_an_equality_for_any_query_of_a_group() -> None:
    """An equality of some queries makes orders possible for these queries only."""
    plain = make_join("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x")
    more = make_join("abcde", "a.k = b.k", "b.x = c.x", "c.k = d.k", "d.x = e.x", "a.y + e.y = c.y")
    for first, second in ((plain, more), (more, plain)):
        for seed in range(scale_examples(20)):
            for query in replan([make_live_query(0, first), make_live_query(1, second)], draw_statistics(seed)):
                assert isinstance(query.plan, WindowJoinQuery)
                for version in query.order_versions:
                    assert count_steps_without_equality(query.plan, version.order) == 0


@pytest.mark.parametrize("is_disjoint", [False, True])
def test_a_thousand_queries_are_planned_in_a_bounded_number_of_steps(*, is_disjoint: bool) -> None:
    """Effort is counted in steps whose cost is estimated, because time depends on the machine."""
    choices = [
        make_join("ab", "a.k = b.k"),
        make_join("abc", "a.k = b.k", "b.x = c.x"),
        make_join("bcd", "b.x = c.x", "c.y = d.y"),
    ]
    random, rows = Random(1), 500
    spans = [random.randrange(rows) for _ in range(1000)]
    width = 1 if is_disjoint else 100
    selected = {(name, bit): set(range(start, min(rows, start + width))) for name in NAMES for bit, start in enumerate(spans)}
    statistics = JoinStatistics(dict.fromkeys(NAMES, 1e5), FEW_KEYS, make_samples(selected, rows))
    queries = [make_live_query(number, choices[number % 3]) for number in range(1000)]
    full = replan_joins(queries, statistics, None)
    assert 1000 <= full.steps <= 25_000
    planned = [replace(q, order_versions=(full.changed[q.id],)) if q.id in full.changed else q for q in queries]
    #  the steps of a query that changes beside the others: those on its paths, not those of all queries
    base = replan_joins(planned, statistics, frozenset()).steps
    assert replan_joins(planned, statistics, frozenset({7})).steps - base <= 150
    bounded = replan_joins(queries, statistics, None, WindowJoinOptions(planning_steps=5_000))
    assert bounded.steps <= 5_200
