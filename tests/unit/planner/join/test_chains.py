"""Top-down optimization of chains: the smallest joins of neighbours are materialized first, within the budget."""

from __future__ import annotations

import math
from random import Random

import pytest
from join_settings import draw_setting, list_connected_trees, make_chain, make_setting

from headrace.planner.join.join_trees import (
    OperatorTree,
    build_flat_tree,
    estimate_probe_cost,
    estimate_storage_cost,
    find_predicate_chain,
    iter_chain_trees,
    iter_operators,
)
from headrace.planner.join.probe_orders import JoinCostModel
from support.join_tree_search import optimize_chain_top_down


def estimate_storage(tree: OperatorTree, setting: JoinCostModel) -> float:
    return estimate_storage_cost(tree, setting.join_graph, setting.cardinalities)


def build_flat(setting: JoinCostModel) -> OperatorTree:
    return build_flat_tree(setting.join_graph.relations)


def list_trees(setting: JoinCostModel, budget: float) -> list[str]:
    return [str(tree) for tree in iter_chain_trees(setting, budget, find_predicate_chain(setting.join_graph))]


def test_find_predicate_chain_does_not_depend_on_names() -> None:
    setting = make_setting(dict.fromkeys("ABCD", 1.0), {("A", "C"): 1.0, ("A", "D"): 1.0, ("B", "D"): 1.0})
    assert find_predicate_chain(setting.join_graph) == ("B", "D", "A", "C")


def test_find_predicate_chain_returns_the_first_chain_by_name() -> None:
    assert find_predicate_chain(draw_setting(0, kind="clique").join_graph) == tuple("ABCDE")
    assert find_predicate_chain(draw_setting(0, kind="cycle").join_graph) == tuple("ABCDE")


def test_a_star_has_no_chain() -> None:
    assert find_predicate_chain(draw_setting(0, kind="star").join_graph) is None


@pytest.fixture
def uneven() -> JoinCostModel:
    """Inputs of 100 rows. Joins: 12 → 50, 23 → 200, 34 → 10; 123 → 100, 234 → 20; 1234 is the root."""
    return make_chain(100, 0.005, 0.02, 0.001)


def test_the_smallest_join_of_neighbours_is_materialized_first(uneven: JoinCostModel) -> None:
    assert list_trees(uneven, math.inf) == ["(R1, R2, R3, R4)", "(R1, R2, (R3, R4))", "(R1, (R2, (R3, R4)))"]


@pytest.mark.parametrize(("budget", "joins"), [(0, 0), (409, 0), (410.001, 1), (429, 1), (430.001, 2)])
def test_joins_are_materialized_until_the_budget_is_spent(uneven: JoinCostModel, budget: float, joins: int) -> None:
    assert len(list_trees(uneven, budget)) == 1 + joins


def test_materialized_joins_nest_bottom_up_and_top_down() -> None:
    """A materialized join becomes part of a larger one; a join of three gets a materialized join of two inside."""
    setting = make_setting(dict.fromkeys("ABCD", 10.0), {("A", "B"): 0.2, ("B", "C"): 0.05, ("C", "D"): 5.0})
    assert list_trees(setting, math.inf) == ["(A, B, C, D)", "(A, (B, C), D)", "((A, (B, C)), D)"]
    dense = make_setting(dict.fromkeys("ABCD", 10.0), {("A", "B"): 1.0, ("B", "C"): 1.0, ("A", "C"): 0.0001, ("C", "D"): 5.0})
    assert list_trees(dense, math.inf) == ["(A, B, C, D)", "((A, B, C), D)", "(((A, B), C), D)"]


def draw_budgets() -> list[tuple[JoinCostModel, float]]:
    budgets = []
    for seed in range(60):
        setting = draw_setting(seed, kind=("chain", "cycle", "clique")[seed % 3])
        budgets.append((setting, estimate_storage(build_flat(setting), setting) * Random(seed).uniform(1, 4)))
    return budgets


def test_trees_stay_within_the_budget_and_cost_at_most_as_much_as_the_flat_tree() -> None:
    for setting, budget in draw_budgets():
        for tree in iter_chain_trees(setting, budget, find_predicate_chain(setting.join_graph)):
            assert estimate_storage(tree, setting) <= budget * (1 + 1e-9)
        assert estimate_probe_cost(optimize_chain_top_down(setting, budget), setting) <= estimate_probe_cost(
            build_flat(setting), setting
        )


def test_each_step_materializes_one_more_join_and_stores_more_rows() -> None:
    for setting, budget in draw_budgets():
        trees = list(iter_chain_trees(setting, budget, find_predicate_chain(setting.join_graph)))
        assert [len(list(iter_operators(tree))) for tree in trees] == list(range(1, len(trees) + 1))
        storage = [estimate_storage(tree, setting) for tree in trees]
        assert storage == sorted(storage)


def test_no_cross_product_is_materialized() -> None:
    for setting, budget in draw_budgets():
        assert optimize_chain_top_down(setting, budget) in list_connected_trees(setting.join_graph)


def test_the_cost_ratio_to_the_best_tree_is_bounded() -> None:
    """The bounds were measured on these 30 random joins of five inputs; other joins may exceed them."""
    ratios = []
    for setting, budget in draw_budgets()[:30]:
        best = min(
            estimate_probe_cost(tree, setting)
            for tree in list_connected_trees(setting.join_graph)
            if estimate_storage(tree, setting) <= budget
        )
        ratios.append(estimate_probe_cost(optimize_chain_top_down(setting, budget), setting) / best)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 2.6
    assert sum(ratios) / len(ratios) <= 1.37
