"""Candidates of the optimizer: intermediate joins, probe orders and partitionings, against the worked examples."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest
from two_queries import FIGURES, Q1, Q2, RB, RS, SB, SC, ST, TC, TD, TU, UD, labels, names

from headrace.planner.join.candidates import generate_candidates, list_targets
from headrace.planner.join.cost import WindowCardinality, estimate_step_costs
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate, input_relation
from headrace.planner.join.strategy import PartitionedStore
from support.join_models import (
    HistoryCardinality,
    enumerate_partitioned_stores,
    enumerate_probe_orders,
    find_partitionings,
    list_intermediates,
    make_equality,
    make_theta_predicate,
)
from support.random_join_graphs import JoinEnvironment, draw_workload


def list_orders(query, start, **options):
    return {names(order) for order in enumerate_probe_orders(query, start, **options)}


def test_intermediates_are_the_connected_parts_of_a_query():
    assert [names([part]) for part in list_intermediates(Q1)] == ["RS", "ST"]
    assert [names([part]) for part in list_intermediates(Q2)] == ["ST", "TU"]
    assert Q1.subgraph("ST") == Q2.subgraph("ST")
    assert Q1.subgraph("ST").predicates == {ST}


def test_intermediates_of_a_chain_are_its_sections():
    chain = JoinGraph(frozenset("ABCDE"), frozenset(make_theta_predicate(*pair, f"{pair}") for pair in ("AB", "BC", "CD", "DE")))
    assert [names([part]) for part in list_intermediates(chain)] == ["AB", "BC", "CD", "DE", "ABC", "BCD", "CDE", "ABCD", "BCDE"]


def test_candidate_orders_of_the_example():
    assert list_orders(Q1, "R") == {"R S T", "R ST"}
    assert list_orders(Q1, "S") == {"S T R", "S R T"}
    assert list_orders(Q1, "T") == {"T S R", "T RS"}
    assert list_orders(Q2, "S") == {"S T U", "S TU"}
    assert list_orders(Q2, "T") == {"T U S", "T S U"}
    assert list_orders(Q2, "U") == {"U T S", "U ST"}
    for part, query in (("RS", Q1), ("ST", Q1), ("TU", Q2)):
        for start, other in (part, part[::-1]):
            assert list_orders(query.subgraph(part), start) == {f"{start} {other}"}


def test_without_intermediates_orders_visit_inputs_only():
    assert list_orders(Q1, "R", use_intermediates=False) == {"R S T"}
    assert list_orders(Q1, "S", use_intermediates=False) == {"S T R", "S R T"}


def test_partitionings_cover_the_attributes_of_all_queries():
    by = find_partitionings([Q1, Q2])
    assert {names([relation]): set(attributes) for relation, attributes in by.items()} == {
        "R": {RB}, "S": {SB, SC}, "T": {TC, TD}, "U": {UD}, "RS": {SC}, "ST": {SB, TD}, "TU": {TC},
    }  # fmt: skip
    assert by[input_relation("S")] == (SB, SC)
    assert find_partitionings([Q1])[Q1.subgraph("ST")] == (SB,)


def test_stores_without_equalities_have_no_partitioning_attribute():
    query = JoinGraph(frozenset("RS"), frozenset({make_theta_predicate("R", "S", "R.x < S.x")}))
    assert find_partitionings([query]) == {input_relation("R"): (None,), input_relation("S"): (None,)}


def test_partitioned_orders_of_the_example():
    by = find_partitionings([Q1, Q2])
    expected = [labels(stores) for order in enumerate_probe_orders(Q1, "R") for stores in enumerate_partitioned_stores(order, by)]
    assert expected == ["S[b] T[c]", "S[b] T[d]", "S[c] T[c]", "S[c] T[d]", "ST[b]", "ST[d]"]  # σ1 σ3 σ2 σ4 σ5 σ6
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False)
    assert sorted(labels(among.get_order(ending).stores) for ending in among.last_steps[Q1, "R"]) == sorted(expected)
    prefixes = [labels(among.get_order(ending).stores) for ending in among.last_steps[Q1.subgraph("RS"), "R"]]
    assert sorted(prefixes) == ["S[b]", "S[c]"]  # σ7 σ8


def test_candidates_contain_the_orders_of_queries_and_intermediates():
    among = generate_candidates([Q1, Q2], FIGURES, 4, prune=False)
    joins = {Q1, Q2, Q1.subgraph("RS"), Q1.subgraph("ST"), Q2.subgraph("TU")}
    assert set(among.last_steps) == {target for join in joins for target in list_targets(join)}
    by = find_partitionings([Q1, Q2])
    for join, start in among.last_steps:
        expected = {stores for order in enumerate_probe_orders(join, start) for stores in enumerate_partitioned_stores(order, by)}
        assert {among.get_order(ending).stores for ending in among.last_steps[join, start]} == expected
        assert len(among.last_steps[join, start]) == len(expected)


def test_equal_prefixes_share_steps():
    among = generate_candidates([Q1, Q2], FIGURES, 1)
    prefixes = [(step.start, among.get_order(number).stores, step.result) for number, step in enumerate(among.steps)]
    assert len(set(prefixes)) == len(prefixes)
    (first,) = (number for number, (start, stores, _) in enumerate(prefixes) if (start, labels(stores)) == ("S", "T[]"))
    assert {step.result for step in among.steps if step.previous == first} == {Q1, Q2}


def test_probes_with_different_predicates_are_different_steps():
    other = JoinGraph(frozenset("RS"), frozenset({RS, make_theta_predicate("R", "S", "R.x < S.x")}))
    among = generate_candidates([Q1.subgraph("RS"), other], FIGURES, 1)
    assert len(among.steps) == 4


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("prune", [False, True])
def test_step_costs_equal_those_of_the_cost_model(tasks, prune):
    environment = JoinEnvironment.draw(Random(3), 6)
    queries = environment.draw_queries(Random(4), 4, 4)
    names_ = environment.relations
    selectivities = {equality: 0.01 * (k % 7 + 1) for k, equality in enumerate(environment.equalities.values())}
    rates = {name: 10.0 * (k + 1) for k, name in enumerate(names_)}
    for figures in (
        environment.statistics(),
        WindowCardinality(rates, {name: 2.0 + k for k, name in enumerate(names_)}, selectivities),
    ):
        among = generate_candidates(queries, figures, tasks, prune=prune)
        for (join, start), endings in among.last_steps.items():
            for ending in endings:
                stores = among.get_order(ending).stores
                order = (input_relation(start), *(store.relation for store in stores))
                by = {store.relation: store.partitioned_by for store in stores}
                expected = estimate_step_costs(order, join, figures, dict.fromkeys(order, tasks), by)
                assert [among.steps[number].cost for number in among.paths[ending]] == pytest.approx(expected)


def test_storage_costs_are_the_arriving_rows():
    among = generate_candidates([Q1, Q2], FIGURES, 4, storage_weight=2.0)
    costs = dict(zip(among.stores, among.storage_costs, strict=True))
    assert costs[PartitionedStore(input_relation("S"), SB)] == 200
    assert costs[PartitionedStore(Q1.subgraph("ST"), SB)] == pytest.approx(300)
    windowed = WindowCardinality(
        dict.fromkeys("RSTU", 5.0), {"R": 2.0, "S": 2.0, "T": 4.0, "U": 4.0}, {RS: 0.1, ST: 0.1, TU: 0.1}
    )
    assert windowed.estimate_arrivals(input_relation("T")) == 5.0
    assert windowed.estimate_arrivals(Q1.subgraph("ST")) == pytest.approx(5 * 20 * 0.1 + 5 * 10 * 0.1)


def test_pruning_drops_broadcasts_if_another_store_costs_no_more():
    unpruned = generate_candidates([Q1, Q2], FIGURES, 4, prune=False)
    pruned = generate_candidates([Q1, Q2], FIGURES, 4)
    assert len(pruned.steps) < len(unpruned.steps)
    assert {labels(pruned.get_order(ending).stores) for ending in pruned.last_steps[Q1, "R"]} == {"S[b] T[c]", "ST[b]"}
    expensive = generate_candidates([Q1, Q2], FIGURES, 4, storage_weight=100.0)
    assert len(expensive.steps) == len(unpruned.steps)


def test_orders_visit_every_input_once():
    queries, figures = draw_workload(5, 8, 5, 5)
    among = generate_candidates(queries, figures, 2)
    for (join, start), endings in among.last_steps.items():
        for ending in endings:
            parts = [frozenset({start}), *(store.relation.relations for store in among.get_order(ending).stores)]
            assert frozenset().union(*parts) == join.relations
            assert all(not a & b for a, b in product(parts, parts) if a is not b)


def test_a_cross_product_may_come_at_any_step():
    product_of_all = JoinGraph(frozenset("RST"), frozenset({RS}))
    among = generate_candidates([product_of_all], FIGURES, 1)
    orders = {start: {names(order) for order in enumerate_probe_orders(product_of_all, start)} for start in "RST"}
    assert orders["R"] == {"R S T", "R T S", "R ST"}
    assert all(among.last_steps[target] for target in list_targets(product_of_all))


def test_a_condition_over_three_inputs_connects_each_two_of_them():
    ternary = JoinPredicate(("R", "S", "T"), "R.a + S.b < T.c")
    query = JoinGraph(frozenset("RST"), frozenset({ternary}))
    assert query.is_connected()
    assert list(query.predicates_between("RS", "T")) == [ternary]
    assert list(query.predicates_between("R", "S")) == []
    assert {names(order) for order in enumerate_probe_orders(query, "R")} == {"R S T", "R T S", "R ST"}


def star(inputs):
    """Return a join of A with each of the other inputs."""
    rest = "BCDEFGHIJ"[: inputs - 1]
    edges = frozenset(make_equality(Attribute("A", name), Attribute(name, "x")) for name in rest)
    return JoinGraph(frozenset("A" + rest), edges), HistoryCardinality(dict.fromkeys("A" + rest, 10.0), dict.fromkeys(edges, 0.1))


def chain(inputs):
    names_ = "ABCDEFGHIJ"[:inputs]
    edges = frozenset(make_equality(Attribute(left, "r"), Attribute(right, "l")) for left, right in pairwise(names_))
    return JoinGraph(frozenset(names_), edges), HistoryCardinality(dict.fromkeys(names_, 10.0), dict.fromkeys(edges, 0.1))


@pytest.mark.parametrize("shape", [star, chain])
def test_candidates_of_large_queries_are_limited(shape):
    query, figures = shape(9)
    among = generate_candidates([query], figures, 2)
    assert not among.is_complete
    assert len(among.steps) < 10_000
    assert all(among.last_steps[target] for target in list_targets(query))
    small, figures = shape(5)
    assert generate_candidates([small], figures, 2).is_complete


def test_the_limit_keeps_the_cheapest_order():
    query, _ = star(7)
    sizes = {name: 10.0 * (1 + position) for position, name in enumerate(sorted(query.relations))}
    figures = HistoryCardinality(sizes, dict.fromkeys(query.predicates, 0.02), last_only=False)
    among = generate_candidates([query], figures, 1, storage_weight=0.0, max_steps=1)
    for start in sorted(query.relations):
        costs = [sum(among.steps[number].cost for number in among.paths[ending]) for ending in among.last_steps[query, start]]
        expected = [
            sum(estimate_step_costs(order, query, figures, {}))
            for order in enumerate_probe_orders(query, start, use_intermediates=False)
        ]
        assert min(costs) == pytest.approx(min(expected))
