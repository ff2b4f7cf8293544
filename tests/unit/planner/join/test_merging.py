"""Iterative merging: materialized joins stay within the bounds and never increase the probe cost."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from join_settings import draw_setting, list_connected_trees, make_chain, with_capacity

from headrace.planner.join.join_trees import (
    MergeBounds,
    OperatorTree,
    build_flat_tree,
    derive_merge_bounds,
    estimate_operator_cost,
    estimate_probe_cost,
    iter_merged_trees,
    iter_operators,
)
from headrace.planner.join.probe_orders import JoinCostModel
from support.join_tree_search import merge_iteratively


def build_flat(setting: JoinCostModel) -> OperatorTree:
    return build_flat_tree(setting.join_graph.relations)


def list_inner_operators(tree: OperatorTree) -> list[OperatorTree]:
    return [operator for operator in iter_operators(tree) if operator is not tree]


def list_stored_rows(tree: OperatorTree, setting: JoinCostModel) -> list[float]:
    return [setting.cardinalities.estimate_stored(setting.subgraph(operator.inputs)) for operator in list_inner_operators(tree)]


def test_default_bounds_are_derived_from_the_largest_input() -> None:
    assert derive_merge_bounds(make_chain(1e4, 1e-4, 1e-4)) == MergeBounds(5e3, 2e4)


def test_mmm_is_merged_since_its_results_are_as_large_as_inputs() -> None:
    """Every result has 10⁴ rows, below the bound of 2 · 10⁴; merging a pair sends 2 · 10⁴, above the bound of 5 · 10³."""
    setting = make_chain(1e4, 1e-4, 1e-4, 1e-4)
    tree = merge_iteratively(setting)
    assert list_stored_rows(tree, setting) == pytest.approx([1e4, 1e4])
    assert estimate_probe_cost(tree, setting) < estimate_probe_cost(build_flat(setting), setting)


def test_mhm_is_merged_only_where_results_are_not_large() -> None:
    """H = 10⁻³ makes R2 ⋈ R3 ten times an input: only R1 ⋈ R2 and R3 ⋈ R4 may be materialized."""
    setting = make_chain(1e4, 1e-4, 1e-3, 1e-4)
    assert {str(operator) for operator in list_inner_operators(merge_iteratively(setting))} <= {"(R1, R2)", "(R3, R4)"}
    assert str(merge_iteratively(setting)) == "((R1, R2), (R3, R4))"


def test_a_high_lower_bound_prevents_merges() -> None:
    setting = make_chain(1e4, 1e-4, 1e-4, 1e-4)
    assert merge_iteratively(setting, MergeBounds(math.inf, math.inf)) == build_flat(setting)


def test_a_low_upper_bound_prevents_merges() -> None:
    setting = make_chain(1e4, 1e-4, 1e-4, 1e-4)
    assert merge_iteratively(setting, MergeBounds(0, 1e4)) == build_flat(setting)


def test_merging_ends_when_all_operators_are_binary() -> None:
    setting = with_capacity(make_chain(1e6, 1e-8, 1e-8, 1e-8, 1e-8), 1e5)
    last = list(iter_merged_trees(setting, MergeBounds(0, math.inf)))[-1]
    assert {len(operator.children) for operator in iter_operators(last)} == {2}


def test_stored_rows_stay_within_the_bound_and_trees_cost_at_most_as_much_as_flat() -> None:
    for seed in range(40):
        setting = draw_setting(seed)
        bounds = derive_merge_bounds(setting)
        tree = merge_iteratively(setting)
        assert all(rows < bounds.max_stored_rows for rows in list_stored_rows(tree, setting))
        assert estimate_probe_cost(tree, setting) <= estimate_probe_cost(build_flat(setting), setting)


def test_each_merge_exceeds_the_lower_bound() -> None:
    for seed in range(20):
        setting = draw_setting(seed)
        bounds = derive_merge_bounds(setting)
        steps = list(iter_merged_trees(setting, bounds))
        for before, after in pairwise(steps):
            known = {operator.inputs for operator in iter_operators(before)}
            (new,) = [operator for operator in iter_operators(after) if operator.inputs not in known]
            assert estimate_operator_cost(new, setting) > bounds.min_sent_rows


def test_the_cost_ratio_to_the_best_tree_within_the_same_bound_is_limited() -> None:
    """The limits were measured on these 30 random joins of five inputs; other joins may exceed them."""
    ratios = []
    for seed in range(30):
        setting = draw_setting(seed)
        upper = derive_merge_bounds(setting).max_stored_rows
        within = [
            tree
            for tree in list_connected_trees(setting.join_graph)
            if all(rows < upper for rows in list_stored_rows(tree, setting))
        ]
        best = min(estimate_probe_cost(tree, setting) for tree in within)
        ratios.append(estimate_probe_cost(merge_iteratively(setting), setting) / best)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1.81
    assert sum(ratios) / len(ratios) <= 1.05
