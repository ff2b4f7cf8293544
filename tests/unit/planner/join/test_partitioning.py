"""Partitioning: candidate attributes, and the cheapest scheme for any optimizer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from join_settings import draw_setting, list_connected_parts, list_connected_trees

from headrace.planner.join.cost import count_copies
from headrace.planner.join.join_graph import Attribute, JoinGraph
from headrace.planner.join.join_trees import (
    OperatorTree,
    build_flat_tree,
    build_left_deep_tree,
    enumerate_schemes,
    estimate_probe_cost,
    find_partition_attributes,
    list_stored_relations,
    partition_tree,
)
from headrace.planner.join.probe_orders import JoinCostModel, find_greedy_order, find_probe_orders
from support.join_models import HistoryCardinality, make_equality, make_theta_predicate
from support.join_tree_search import find_best_partitioned_tree, find_best_partitioning, optimize_left_deep, partition_orders


def parse_attribute(text: str) -> Attribute:
    return Attribute(*text.split("."))


def parse_join(*conditions: str) -> JoinGraph:
    """Parse a join with equalities ("R.a = S.b") or comparisons ("R < S")."""
    found = []
    for text in conditions:
        left, sign, right = text.split()
        found.append(
            make_equality(parse_attribute(left), parse_attribute(right))
            if sign == "="
            else make_theta_predicate(left, right, text)
        )
    return JoinGraph(frozenset(name for one in found for name in one.relations), frozenset(found))


def list_names(found: tuple[Attribute, ...]) -> list[str]:
    return [str(one) for one in found]


def set_task_count(setting: JoinCostModel, tasks: int) -> JoinCostModel:
    return replace(setting, task_counts=dict.fromkeys(list_connected_parts(setting.join_graph), tasks))


# --------------------------------------------------------------------------------------------------------------------- candidates

FIVE = parse_join("R1.a = R2.b", "R1.c = R3.d", "R3.e = R4.f", "R2.g = R4.h", "R4.i = R5.j")


def test_a_materialized_join_is_partitioned_by_attributes_of_predicates_to_other_inputs() -> None:
    assert list_names(find_partition_attributes(FIVE.subgraph({"R2", "R3", "R4"}), FIVE)) == ["R2.b", "R3.d", "R4.i"]


def test_an_input_can_be_partitioned_by_any_attribute_of_an_equality() -> None:
    assert list_names(find_partition_attributes(FIVE.subgraph({"R4"}), FIVE)) == ["R4.f", "R4.h", "R4.i"]


def test_comparisons_give_no_partitioning_attribute() -> None:
    join = parse_join("R.a = S.a", "S < T")
    assert list_names(find_partition_attributes(join.subgraph("S"), join)) == ["S.a"]
    assert find_partition_attributes(join.subgraph("T"), join) == ()


def test_schemes_are_the_product_of_candidates() -> None:
    """Degrees 2, 2, 2, 3, 1. The source document has at most n(n - 1) schemes; for a clique of four the product is 3⁴."""
    assert len(list(enumerate_schemes([FIVE.subgraph({name}) for name in FIVE.relations], FIVE))) == 2 * 2 * 2 * 3 * 1
    clique = draw_setting(0, "ABCD", "clique")
    assert len(list(enumerate_schemes(clique.list_inputs(), clique.join_graph))) == 3**4


def test_an_attribute_common_to_all_inputs_gives_a_single_scheme() -> None:
    join = parse_join("R.a = S.a", "R.a = T.a", "S.a = T.a")
    (only,) = enumerate_schemes([join.subgraph(name) for name in "RST"], join)
    assert {str(one) for one in only.values()} == {"R.a", "S.a", "T.a"}


def test_a_store_without_candidates_has_no_partitioning_attribute() -> None:
    join = parse_join("R.a = S.a", "S < T")
    (only,) = enumerate_schemes([join.subgraph(name) for name in "RST"], join)
    assert only[join.subgraph("T")] is None


# ------------------------------------------------------------------------------------------------------------------------ choices

THREE = parse_join("R.a = S.b", "S.c = T.d")


def three(r: float, t: float) -> JoinCostModel:
    (rs, st) = sorted(THREE.predicates)
    return set_task_count(JoinCostModel(THREE, HistoryCardinality({"R": r, "S": 100.0, "T": t}, {rs: 0.01, st: 0.01})), 4)


@pytest.mark.parametrize(("by", "of_r", "of_t"), [("S.b", 1, 4), ("S.c", 4, 1)])
def test_s_is_partitioned_for_either_r_or_t(by: str, of_r: int, of_t: int) -> None:
    s = THREE.subgraph("S")
    assert count_copies(s, parse_attribute(by), [THREE.subgraph("R")], THREE, 4) == of_r
    assert count_copies(s, parse_attribute(by), [THREE.subgraph("T")], THREE, 4) == of_t


@pytest.mark.parametrize(("r", "t", "by"), [(1000.0, 100.0, "S.b"), (100.0, 1000.0, "S.c")])
def test_the_smaller_side_is_broadcast(r: float, t: float, by: str) -> None:
    choice = partition_orders(three(r, t))
    assert str(choice.partitioning[THREE.subgraph("S")]) == by
    assert sorted(map(str, choice.partitioning.values())) == sorted(["R.a", by, "T.d"])


def test_the_cost_equals_that_of_the_plan_under_the_scheme() -> None:
    """S by b: R sends 1000 + 1000 / 2 · 1, S 100 + 50 (its rows with T), T 4 · 100 + 50."""
    choice = partition_orders(three(1000.0, 100.0))
    under = replace(three(1000.0, 100.0), partitioning=choice.partitioning)
    assert choice.cost == pytest.approx(sum(under.estimate_order_cost(order) for order in choice.plan.values()))
    assert choice.cost == pytest.approx(1000 + 500 + 100 + 50 + 400 + 50)


def test_the_scheme_is_the_cheapest_for_flat_joins() -> None:
    for seed in range(12):
        setting = draw_setting(seed, "ABCD")
        chosen = partition_orders(setting).cost
        for scheme in enumerate_schemes(setting.list_inputs(), setting.join_graph):
            under = replace(setting, partitioning=scheme)
            orders = find_probe_orders(under.list_inputs(), under, find_greedy_order)
            assert chosen <= sum(under.estimate_order_cost(order) for order in orders.values()) * (1 + 1e-9)


def test_partitioning_never_costs_more_than_none() -> None:
    """For three inputs greedy orders are exact; with more inputs, fewer copies may lead to a more expensive order."""
    for seed in range(25):
        setting = draw_setting(seed, "ABC")
        at_random = estimate_probe_cost(build_flat_tree("ABC"), setting)
        assert partition_orders(setting).cost <= at_random * (1 + 1e-9)


def test_operators_can_be_partitioned_separately() -> None:
    for seed in range(10):
        setting = draw_setting(seed, "ABCD", "chain")
        for tree in list_connected_trees(setting.join_graph):
            at_once = find_best_partitioning(
                setting, lambda s, t=tree: (estimate_probe_cost(t, s), t), list_stored_relations(tree, setting.join_graph)
            )
            assert partition_tree(tree, setting)[0] == pytest.approx(at_once.cost)


def test_a_materialized_join_gets_a_partitioning_attribute() -> None:
    setting = three(1000.0, 100.0)
    tree = build_left_deep_tree("RS", "T")
    cost, partitioning = partition_tree(tree, setting)
    assert str(partitioning[THREE.subgraph("RS")]) == "S.c"
    assert cost == pytest.approx(estimate_probe_cost(tree, replace(setting, partitioning=partitioning)))
    assert cost == pytest.approx(1000 + 100 + 1000 + 100)


def test_the_tree_optimizer_is_an_argument() -> None:
    for seed in range(6):
        setting = draw_setting(seed, "ABCD", "chain")
        choice = find_best_partitioned_tree(setting, lambda under: optimize_left_deep(under, math.inf))
        assert choice.cost == pytest.approx(estimate_probe_cost(choice.plan, replace(setting, partitioning=choice.partitioning)))
        best = min(partition_tree(tree, setting)[0] for tree in list_connected_trees(setting.join_graph))
        assert choice.cost >= best * (1 - 1e-9)


def test_partitionings_of_other_relations_are_kept() -> None:
    kept = THREE.subgraph("RS")
    setting = replace(three(100.0, 100.0), partitioning={kept: parse_attribute("S.c")})
    seen: list[Attribute | None] = []

    def optimize(under: JoinCostModel) -> tuple[float, OperatorTree]:
        seen.append(under.partitioning[kept])
        return 1.0, build_flat_tree("RST")

    assert find_best_partitioning(setting, optimize).partitioning[kept] == parse_attribute("S.c")
    assert seen == [parse_attribute("S.c")] * 2
