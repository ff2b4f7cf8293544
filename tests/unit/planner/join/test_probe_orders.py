"""Probe orders: the figures of the worked example, and greedy against exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from join_settings import LINKS, draw_setting, make_setting

from headrace.planner.join.cost import RelationOrder, WindowCardinality, estimate_step_costs
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.probe_orders import JoinCostModel, find_greedy_order, find_joinable, find_probe_orders
from support.join_models import make_equality
from support.join_tree_search import enumerate_orders, find_best_order

R, S, T = (input_relation(name) for name in "RST")


def example(tasks_of_s: int = 5) -> JoinCostModel:
    """|R| = 2000, |R⋈S| = 1000, |R⋈T| = 1500; all rows of a prefix are counted, for any order of arrival."""
    setting = make_setting({"R": 2000, "S": 1000, "T": 1000}, {("R", "S"): 0.0005, ("R", "T"): 0.00075}, last_only=False)
    return JoinCostModel(setting.join_graph, setting.cardinalities, {S: tasks_of_s, T: 1})


def list_step_costs(setting: JoinCostModel, order: RelationOrder) -> list[float]:
    return estimate_step_costs(order, setting.join_graph, setting.cardinalities, setting.task_counts, setting.partitioning)


def test_the_example_has_the_stated_sizes() -> None:
    sizes = {name: example().cardinalities.estimate_stored(example().subgraph(name)) for name in ("R", "RS", "RT")}
    assert sizes == pytest.approx({"R": 2000, "RS": 1000, "RT": 1500})


def test_broadcasts_can_cost_more_than_a_larger_intermediate_result() -> None:
    assert list_step_costs(example(), (R, S, T)) == pytest.approx([10_000, 1_000])
    assert list_step_costs(example(), (R, T, S)) == pytest.approx([2_000, 7_500])
    assert find_greedy_order(R, [S, T], example()) == (R, T, S)
    assert find_best_order(R, [S, T], example()) == (R, T, S)


def test_without_broadcasts_the_smaller_intermediate_result_comes_first() -> None:
    assert find_greedy_order(R, [S, T], example(tasks_of_s=1)) == (R, S, T)
    assert example(tasks_of_s=1).estimate_order_cost((R, S, T)) == pytest.approx(3_000)


def test_a_probe_by_the_partitioning_attribute_sends_one_copy() -> None:
    known = JoinCostModel(example().join_graph, example().cardinalities, {S: 5}, {S: Attribute("S", "r")})
    assert list_step_costs(known, (R, S, T)) == pytest.approx([2_000, 1_000])
    assert find_greedy_order(R, [S, T], known) == (R, S, T)
    assert list_step_costs(known, (T, R, S))[1] == pytest.approx(1_500)


def test_orders_avoid_cross_products() -> None:
    setting = make_setting(dict.fromkeys("ABCD", 10.0), {("A", "B"): 1.0, ("B", "C"): 1.0, ("C", "D"): 1.0})
    a, *others = setting.list_inputs()
    assert list(enumerate_orders(a, others, setting.join_graph)) == [setting.list_inputs()]
    assert find_greedy_order(a, others, setting) == setting.list_inputs()
    assert [str(one) for one in find_joinable([setting.subgraph("B")], setting.list_inputs()[2:], setting.join_graph)] == ["C"]


def test_without_predicates_every_order_is_possible() -> None:
    join = JoinGraph(frozenset("ABC"))
    a, b, c = (join.subgraph(name) for name in "ABC")
    assert set(enumerate_orders(a, [b, c], join)) == {(a, b, c), (a, c, b)}


def test_a_clique_allows_all_permutations() -> None:
    setting = draw_setting(1, kind="clique")
    a, *others = setting.list_inputs()
    assert set(enumerate_orders(a, others, setting.join_graph)) == {(a, *rest) for rest in permutations(others)}


def test_orders_visit_materialized_joins_like_inputs() -> None:
    setting = draw_setting(3, kind="chain")
    relations = [setting.subgraph("AB"), setting.subgraph("C"), setting.subgraph("DE")]
    orders = find_probe_orders(relations, setting)
    assert set(orders) == set(relations)
    assert [str(one) for one in orders[setting.subgraph("AB")]] == ["A⋈B", "C", "D⋈E"]


def test_window_cardinalities_order_streams_by_matching_rows() -> None:
    """1 row/s of each, windows of 10 s: a row of R matches 10 × 0.1 = 1 row of S but 10 × 0.5 = 5 rows of T."""
    rs, rt = make_equality(Attribute("R", "a"), Attribute("S", "a")), make_equality(Attribute("R", "b"), Attribute("T", "b"))
    figures = WindowCardinality(dict.fromkeys("RST", 1.0), dict.fromkeys("RST", 10.0), {rs: 0.1, rt: 0.5})
    setting = JoinCostModel(JoinGraph(frozenset("RST"), frozenset({rs, rt})), figures)
    assert find_greedy_order(R, [S, T], setting) == (R, S, T)
    assert list_step_costs(setting, (R, S, T)) == pytest.approx([1, 1])
    assert list_step_costs(setting, (R, T, S)) == pytest.approx([1, 5])


@pytest.mark.parametrize("kind", LINKS)
def test_greedy_orders_of_three_relations_are_optimal(kind: str) -> None:
    for seed in range(50):
        setting = draw_setting(seed, "ABC", kind)
        greedy, best = (
            find_probe_orders(setting.list_inputs(), setting, search) for search in (find_greedy_order, find_best_order)
        )
        for start in setting.list_inputs():
            assert setting.estimate_order_cost(greedy[start]) == pytest.approx(setting.estimate_order_cost(best[start]))


def ratios(names: str) -> list[float]:
    found = []
    for seed in range(60):
        setting = draw_setting(seed, names)
        greedy, best = (
            find_probe_orders(setting.list_inputs(), setting, search) for search in (find_greedy_order, find_best_order)
        )
        found += [
            setting.estimate_order_cost(greedy[start]) / setting.estimate_order_cost(best[start])
            for start in setting.list_inputs()
        ]
    return found


@pytest.mark.parametrize(("names", "worst", "mean"), [("ABCD", 2.2, 1.02), ("ABCDE", 5.2, 1.03), ("ABCDEF", 1.9, 1.02)])
def test_the_cost_ratio_of_greedy_to_optimal_orders_is_bounded(names: str, worst: float, mean: float) -> None:
    """The bounds were measured on these 60 random joins; other joins may exceed them."""
    found = ratios(names)
    assert min(found) >= 1 - 1e-9
    assert max(found) <= worst
    assert sum(found) / len(found) <= mean


def test_the_cost_of_an_operator_depends_on_the_search_and_the_tasks() -> None:
    setting = draw_setting(45, "ABCDE")
    inputs = setting.list_inputs()
    greedy, best = (setting.estimate_operator_cost(inputs, search) for search in (find_greedy_order, find_best_order))
    assert best < greedy == setting.estimate_operator_cost(inputs, find_greedy_order)
    assert replace(setting, task_counts={}).estimate_operator_cost(inputs, find_greedy_order) < greedy


def test_greedy_misses_an_expensive_third_step() -> None:
    """The worst of these joins: an order that probes C first is cheap for two steps, and expensive in the third."""
    setting = draw_setting(45, "ABCDE")
    start = setting.subgraph("D")
    others = [one for one in setting.list_inputs() if one != start]
    greedy, best = find_greedy_order(start, others, setting), find_best_order(start, others, setting)
    assert ["".join(map(str, order)) for order in (greedy, best)] == ["DCEAB", "DEABC"]
    assert list_step_costs(setting, greedy) == pytest.approx([220, 2699, 7705, 1693], abs=1)
    assert list_step_costs(setting, best) == pytest.approx([660, 1413, 276, 34], abs=1)
