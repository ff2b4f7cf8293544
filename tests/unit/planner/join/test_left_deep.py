"""Generalised left-deep trees: never over the budget, never worse than flat, and how far from the best of all trees."""

from __future__ import annotations

import math
from random import Random

import pytest
from join_settings import chain, drawn, linked, with_capacity

from headrace.planner.join.join_trees import (
    OperatorTree,
    build_flat_tree,
    build_left_deep_tree,
    enumerate_connected_trees,
    estimate_probe_cost,
    estimate_storage_cost,
    iter_left_deep_trees,
    optimize_left_deep,
)
from headrace.planner.join.probe_orders import JoinCostModel


def stored(tree: OperatorTree, setting: JoinCostModel) -> float:
    return estimate_storage_cost(tree, setting.join_graph, setting.cardinalities)


def flat_of(setting: JoinCostModel) -> OperatorTree:
    return build_flat_tree(setting.join_graph.relations)


def is_left_deep(tree: OperatorTree) -> bool:
    below = [child for child in tree.children if isinstance(child, OperatorTree)]
    return len(below) <= 1 and all(len(one.children) == 2 and is_left_deep(one) for one in below)


@pytest.fixture
def small() -> JoinCostModel:
    """Five relations of 10⁶ rows, R1 ⋈ R2 of 10⁴, the next 100, then 1; a task holds 10⁵."""
    return with_capacity(chain(1e6, 1e-8, 1e-8, 1e-8, 1e-8), 1e5)


def test_with_a_budget_for_all_the_tree_is_left_deep(small: JoinCostModel) -> None:
    tree = optimize_left_deep(small, math.inf)
    assert is_left_deep(tree)
    assert len(tree.children) == 2
    assert stored(tree, small) == pytest.approx(5_010_101)


@pytest.mark.parametrize(("more", "children"), [(0, 5), (9_999, 5), (10_000, 4), (10_099, 4), (10_100, 3), (10_101, 2)])
def test_the_tree_grows_as_far_as_the_budget_reaches(small: JoinCostModel, more: float, children: int) -> None:
    assert len(optimize_left_deep(small, 5e6 + more + 1e-3).children) == children


def test_the_last_input_needs_no_budget() -> None:
    """The result of the root is not kept: 1000 rows of it do not count against the 30 + 10 that are."""
    setting = with_capacity(linked(dict.fromkeys("ABC", 10.0), {("A", "B"): 0.1, ("B", "C"): 10.0}), 5)
    assert optimize_left_deep(setting, 40) == build_left_deep_tree("AB", "C")


def test_inputs_are_kept_whatever_the_budget(small: JoinCostModel) -> None:
    assert optimize_left_deep(small, 0) == flat_of(small)


def test_two_inputs_have_one_tree() -> None:
    setting = chain(10, 0.1)
    assert optimize_left_deep(setting, math.inf) == flat_of(setting)


def test_results_that_need_many_tasks_are_not_kept() -> None:
    """R1 ⋈ R2 needs 100 tasks and saves more than their copies cost; with the next, of 1000 tasks, even flat is cheaper."""
    setting = with_capacity(chain(1e6, 1e-5, 1e-5, 1e-5, 1e-5), 1e5)
    assert str(optimize_left_deep(setting, math.inf)) == "((R1, R2), R3, R4, R5)"
    further = build_left_deep_tree(["R1", "R2", "R3"], ["R4", "R5"])
    assert (
        estimate_probe_cost(optimize_left_deep(setting, math.inf), setting)
        < estimate_probe_cost(flat_of(setting), setting)
        < estimate_probe_cost(further, setting)
    )


def test_spending_the_whole_budget_is_often_dearer() -> None:
    """The last trees of growths are what the published algorithm chooses from: here, they are two fifths dearer on average."""
    ratios = []
    for setting, budget in drawn_budgets()[:30]:
        last = [list(iter_left_deep_trees(name, setting, budget))[-1] for name in setting.join_graph.relations]
        ratios.append(
            min(estimate_probe_cost(tree, setting) for tree in last)
            / estimate_probe_cost(optimize_left_deep(setting, budget), setting)
        )
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratios) / len(ratios) == pytest.approx(1.42, abs=0.01)


def drawn_budgets() -> list[tuple[JoinCostModel, float]]:
    found = []
    for seed in range(60):
        setting = drawn(seed)
        found.append((setting, stored(flat_of(setting), setting) * Random(seed).uniform(1, 4)))
    return found


def test_the_budget_is_kept_and_flat_is_never_cheaper() -> None:
    for setting, budget in drawn_budgets():
        tree = optimize_left_deep(setting, budget)
        assert is_left_deep(tree)
        assert stored(tree, setting) <= budget * (1 + 1e-9)
        assert estimate_probe_cost(tree, setting) <= estimate_probe_cost(flat_of(setting), setting)


def test_how_far_it_is_from_the_best_tree_of_any_shape() -> None:
    """Measured on 30 drawn joins of five inputs, after the fact: a note of how it is, no promise for others."""
    of_any, of_its_own = [], []
    for setting, budget in drawn_budgets()[:30]:
        costs = {
            tree: estimate_probe_cost(tree, setting)
            for tree in enumerate_connected_trees(setting.join_graph)
            if stored(tree, setting) <= budget
        }
        found = estimate_probe_cost(optimize_left_deep(setting, budget), setting)
        of_any.append(found / min(costs.values()))
        of_its_own.append(found / min(cost for tree, cost in costs.items() if is_left_deep(tree)))
    assert min(of_any) >= 1 - 1e-9
    assert (max(of_any), max(of_its_own)) <= (1.81, 1.81)
    assert sum(of_any) / len(of_any) <= 1.1
