"""Partitioning: which attributes are thought of, and the cheapest scheme for any optimizer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from join_settings import drawn, parts_of

from headrace.sharing.multiway.cost import Whole, copies
from headrace.sharing.multiway.left_deep import left_deep
from headrace.sharing.multiway.partitioning import (
    attributes,
    best_partitioned_tree,
    best_partitioning,
    every_scheme,
    partitioned_orders,
    partitioned_tree,
)
from headrace.sharing.multiway.probe_orders import Setting, greedy_order, probe_orders
from headrace.sharing.multiway.relations import Attribute, Join, equal, theta
from headrace.sharing.multiway.trees import Tree, flat, joined_trees, nested, probe_cost, stores


def attribute(text: str) -> Attribute:
    return Attribute(*text.split("."))


def joined(*conditions: str) -> Join:
    """A join by equalities, or other conditions: "R.a = S.b"; "R < S"."""
    found = []
    for text in conditions:
        left, sign, right = text.split()
        found.append(equal(attribute(left), attribute(right)) if sign == "=" else theta(left, right, text))
    return Join(frozenset(name for one in found for name in one.relations), frozenset(found))


def names(found: tuple[Attribute, ...]) -> list[str]:
    return [str(one) for one in found]


def spread(setting: Setting, tasks: int) -> Setting:
    return replace(setting, tasks=dict.fromkeys(parts_of(setting.join), tasks))


# ----------------------------------------------------------------------------------------------------------------- candidates

FIVE = joined("R1.a = R2.b", "R1.c = R3.d", "R3.e = R4.f", "R2.g = R4.h", "R4.i = R5.j")


def test_a_kept_join_is_partitioned_by_attributes_of_predicates_that_leave_it() -> None:
    assert names(attributes(FIVE.within({"R2", "R3", "R4"}), FIVE)) == ["R2.b", "R3.d", "R4.i"]


def test_an_input_is_partitioned_by_any_attribute_of_an_equality() -> None:
    assert names(attributes(FIVE.within({"R4"}), FIVE)) == ["R4.f", "R4.h", "R4.i"]


def test_other_conditions_partition_nothing() -> None:
    join = joined("R.a = S.a", "S < T")
    assert names(attributes(join.within("S"), join)) == ["S.a"]
    assert attributes(join.within("T"), join) == ()


def test_schemes_are_the_product_of_candidates() -> None:
    """Degrees 2, 2, 2, 3, 1. The text has n(n - 1) schemes at worst; for a clique of four the product is 3⁴, not 12."""
    assert len(list(every_scheme([FIVE.within({name}) for name in FIVE.relations], FIVE))) == 2 * 2 * 2 * 3 * 1
    clique = drawn(0, "ABCD", "clique")
    assert len(list(every_scheme(clique.inputs(), clique.join))) == 3**4


def test_an_attribute_compared_with_everybody_leaves_no_choice() -> None:
    join = joined("R.a = S.a", "R.a = T.a", "S.a = T.a")
    (only,) = every_scheme([join.within(name) for name in "RST"], join)
    assert {str(one) for one in only.values()} == {"R.a", "S.a", "T.a"}


def test_a_store_without_candidates_is_spread_at_random() -> None:
    join = joined("R.a = S.a", "S < T")
    (only,) = every_scheme([join.within(name) for name in "RST"], join)
    assert only[join.within("T")] is None


# -------------------------------------------------------------------------------------------------------------------- choices

THREE = joined("R.a = S.b", "S.c = T.d")


def three(r: float, t: float) -> Setting:
    (rs, st) = sorted(THREE.predicates)
    return spread(Setting(THREE, Whole({"R": r, "S": 100.0, "T": t}, {rs: 0.01, st: 0.01})), 4)


@pytest.mark.parametrize(("by", "of_r", "of_t"), [("S.b", 1, 4), ("S.c", 4, 1)])
def test_either_r_or_t_finds_its_partition_of_s(by: str, of_r: int, of_t: int) -> None:
    s = THREE.within("S")
    assert copies(s, attribute(by), [THREE.within("R")], THREE, 4) == of_r
    assert copies(s, attribute(by), [THREE.within("T")], THREE, 4) == of_t


@pytest.mark.parametrize(("r", "t", "by"), [(1000.0, 100.0, "S.b"), (100.0, 1000.0, "S.c")])
def test_the_larger_side_is_spared_the_copies(r: float, t: float, by: str) -> None:
    choice = partitioned_orders(three(r, t))
    assert str(choice.partitioning[THREE.within("S")]) == by
    assert sorted(map(str, choice.partitioning.values())) == sorted(["R.a", by, "T.d"])


def test_the_cost_is_that_of_the_plan_under_the_scheme() -> None:
    """S by b: R sends 1000 + 1000 / 2 · 1, S 100 + 50 (its rows with T), T 4 · 100 + 50."""
    choice = partitioned_orders(three(1000.0, 100.0))
    under = replace(three(1000.0, 100.0), partitioning=choice.partitioning)
    assert choice.cost == pytest.approx(sum(under.order_cost(order) for order in choice.plan.values()))
    assert choice.cost == pytest.approx(1000 + 500 + 100 + 50 + 400 + 50)


def test_no_scheme_is_cheaper_for_flat_joins() -> None:
    for seed in range(12):
        setting = drawn(seed, "ABCD")
        chosen = partitioned_orders(setting).cost
        for scheme in every_scheme(setting.inputs(), setting.join):
            under = replace(setting, partitioning=scheme)
            orders = probe_orders(under.inputs(), under, greedy_order)
            assert chosen <= sum(under.order_cost(order) for order in orders.values()) * (1 + 1e-9)


def test_any_attribute_is_as_good_as_none_or_better() -> None:
    """Of three inputs, for which greedy orders are exact: with others, fewer copies may lure it into a dearer order."""
    for seed in range(25):
        setting = drawn(seed, "ABC")
        at_random = probe_cost(flat("ABC"), setting)
        assert partitioned_orders(setting).cost <= at_random * (1 + 1e-9)


def test_operators_can_be_tried_one_by_one() -> None:
    for seed in range(10):
        setting = drawn(seed, "ABCD", "chain")
        for tree in joined_trees(setting.join):
            at_once = best_partitioning(setting, lambda s, t=tree: (probe_cost(t, s), t), stores(tree, setting.join))
            assert partitioned_tree(tree, setting).cost == pytest.approx(at_once.cost)


def test_a_kept_join_gets_an_attribute_too() -> None:
    setting = three(1000.0, 100.0)
    choice = partitioned_tree(nested("RS", "T"), setting)
    assert str(choice.partitioning[THREE.within("RS")]) == "S.c"
    assert choice.cost == pytest.approx(probe_cost(choice.plan, replace(setting, partitioning=choice.partitioning)))
    assert choice.cost == pytest.approx(1000 + 100 + 1000 + 100)


def test_an_optimizer_of_trees_is_an_argument() -> None:
    for seed in range(6):
        setting = drawn(seed, "ABCD", "chain")
        choice = best_partitioned_tree(setting, lambda under: left_deep(under, math.inf))
        assert choice.cost == pytest.approx(probe_cost(choice.plan, replace(setting, partitioning=choice.partitioning)))
        best = min(partitioned_tree(tree, setting).cost for tree in joined_trees(setting.join))
        assert choice.cost >= best * (1 - 1e-9)


def test_what_the_setting_has_for_other_relations_stays() -> None:
    kept = THREE.within("RS")
    setting = replace(three(100.0, 100.0), partitioning={kept: attribute("S.c")})
    seen: list[Attribute | None] = []

    def optimize(under: Setting) -> tuple[float, Tree]:
        seen.append(under.partitioning[kept])
        return 1.0, flat("RST")

    assert best_partitioning(setting, optimize).partitioning[kept] == attribute("S.c")
    assert seen == [attribute("S.c")] * 2
