"""The solver against a search through everything, the worked examples to the row, and what it says when time is up."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from two_queries import FIGURES, Q1, Q2, labels

from headrace.planner.join.baselines import optimize_individually
from headrace.planner.join.candidates import build_strategy, generate_candidates
from headrace.planner.join.cost import HistoryCardinality, WindowCardinality
from headrace.planner.join.greedy import choose_greedily, optimize_greedily
from headrace.planner.join.ilp import build_program, solve_program
from headrace.planner.join.join_graph import JoinGraph, make_theta_predicate
from headrace.planner.join.optimizer import optimize_sliding_joins
from support.exhaustive_join_search import compute_cost, find_least_cost
from support.random_join_graphs import JoinEnvironment, draw_workload


def optimum(queries, figures, tasks, **options):
    among = generate_candidates(queries, figures, tasks, **options)
    choice, solved = solve_program(build_program(among), among, choose_greedily(among, 0), time_limit=math.inf, gap=0.0)
    assert solved.status == "optimal"
    assert solved.gap == pytest.approx(0.0, abs=1e-6)
    return build_strategy(among, choice, solved)


def drawn(seed, relations, number, size, attributes=2):
    """Queries over relations of uneven sizes, with windows."""
    random = Random(seed)
    environment = JoinEnvironment.draw(random, relations, attributes)
    rates = {name: random.choice((1.0, 5.0, 20.0)) for name in environment.relations}
    windows = {name: random.choice((1.0, 4.0)) for name in environment.relations}
    selectivities = {one: random.choice((0.01, 0.1, 0.5)) for one in environment.equalities.values()}
    return environment.draw_queries(random, number, size), WindowCardinality(rates, windows, selectivities)


def test_sharing_saves_150_of_950_rows():
    """Alone, S goes to R first and T to U first; together, S to T and T to S, since somebody sends rows there anyway."""
    alone = [optimum([query], FIGURES, 1, materializable=(), storage_weight=0.0) for query in (Q1, Q2)]
    assert [one.total_cost for one in alone] == [475, 475]
    assert labels(alone[0].get_plan(Q1).get_order("S").stores) == "R[] T[]"
    assert labels(alone[1].get_plan(Q2).get_order("T").stores) == "U[] S[]"
    shared = optimum([Q1, Q2], FIGURES, 1, materializable=(), storage_weight=0.0)
    assert shared.total_cost == 800
    assert labels(shared.get_plan(Q1).get_order("S").stores) == "T[] R[]"
    assert labels(shared.get_plan(Q2).get_order("T").stores) == "S[] U[]"
    assert not shared.materialized_plans


def test_the_example_with_joins_kept_and_stores_partitioned():
    for tasks, weight in ((1, 0.0), (1, 1.0), (4, 1.0), (4, 0.1)):
        found = optimum([Q1, Q2], FIGURES, tasks, storage_weight=weight)
        assert found.total_cost == pytest.approx(find_least_cost([Q1, Q2], FIGURES, tasks, storage_weight=weight))


@pytest.mark.parametrize("seed", range(12))
def test_nothing_costs_less_than_the_optimum(seed):
    queries, figures = drawn(seed, 4, 2, 3)
    keeping = seed % 3 != 0
    tasks, weight = (1, 3, 5)[seed % 3], (0.0, 0.3, 1.0, 2.0)[seed % 4]
    found = optimum(queries, figures, tasks, storage_weight=weight, materializable=None if keeping else ())
    assert found.total_cost == pytest.approx(
        find_least_cost(queries, figures, tasks, storage_weight=weight, use_intermediates=keeping)
    )


@pytest.mark.parametrize("seed", range(4))
def test_nothing_costs_less_than_the_optimum_of_a_larger_query(seed):
    queries, figures = drawn(seed, 5, 1, 4, 1)
    assert optimum(queries, figures, 3).total_cost == pytest.approx(find_least_cost(queries, figures, 3))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_pruned_is_not_missed(seed):
    queries, figures = drawn(seed, 6, 4, 3 + seed % 2)
    for tasks, weight in ((1, 0.5), (3, 0.05), (2, 1.0)):
        pruned, everything = (optimum(queries, figures, tasks, storage_weight=weight, prune=prune) for prune in (True, False))
        assert pruned.total_cost == pytest.approx(everything.total_cost)


@pytest.mark.parametrize("seed", range(6))
def test_a_strategy_costs_what_it_says(seed):
    queries, figures = drawn(seed, 8, 6, 4, 3)
    found = optimize_sliding_joins(queries, figures, 3, storage_weight=0.7)
    assert (found.probe_cost, found.storage_cost) == pytest.approx(compute_cost(found, figures, 3, 0.7))
    assert {plan.join_graph for plan in found.query_plans} == set(queries)
    assert found.total_cost <= optimize_greedily(queries, figures, 3, storage_weight=0.7).total_cost
    assert found.total_cost <= sum(one.total_cost for one in optimize_individually(queries, figures, 3, storage_weight=0.7))


def test_conditions_that_are_no_equalities_are_sent_everywhere():
    query = JoinGraph(frozenset("RS"), frozenset({make_theta_predicate("R", "S", "R.x < S.x")}))
    found = optimize_sliding_joins([query], FIGURES, 4)
    assert (found.probe_cost, found.storage_cost) == (800, 200)
    assert all(store.partitioned_by is None for store in found.stores)


def test_without_time_the_answer_is_the_greedy_one():
    queries, figures = draw_workload(1, 100, 10, 4)
    found = optimize_sliding_joins(queries, figures, 4, time_limit=0.0)
    assert found == optimize_greedily(queries, figures, 4)
    assert (found.solver_report.status, found.solver_report.gap, found.solver_report.seconds) == ("greedy", 1.0, 0.0)


def test_with_little_time_the_answer_says_so():
    queries, figures = draw_workload(1, 100, 30, 5)
    found = optimize_sliding_joins(queries, figures, 4, time_limit=0.02)
    assert found.solver_report.status in {"greedy", "time limit"}
    assert found.solver_report.gap > 1e-3
    assert found.total_cost <= optimize_greedily(queries, figures, 4).total_cost


def test_equal_queries_are_one_and_no_query_is_no_work():
    once, twice = (optimize_sliding_joins(queries, FIGURES, 4) for queries in ([Q1], [Q1, Q1]))
    assert once == twice
    nothing = optimize_sliding_joins([], FIGURES, 4)
    assert (nothing.query_plans, nothing.materialized_plans, nothing.total_cost) == ((), (), 0)


def test_a_query_of_one_input_probes_nothing():
    found = optimize_sliding_joins([Q1.subgraph("R"), Q1], FIGURES, 4)
    assert found.query_plans[0].probe_orders[0].stores == ()
    assert found.total_cost == optimize_sliding_joins([Q1], FIGURES, 4).total_cost


def test_equal_queries_give_equal_answers():
    queries, figures = draw_workload(2, 20, 10, 3)
    assert optimize_sliding_joins(queries, figures, 4) == optimize_sliding_joins(queries, figures, 4)


def test_an_answer_for_a_large_query_says_that_not_everything_was_looked_at():
    names = "ABCDEFGHI"
    query = JoinGraph(
        frozenset(names), frozenset(make_theta_predicate(one, two, f"{one}.x < {two}.x") for one, two in pairwise(names))
    )
    found = optimize_sliding_joins(
        [query], HistoryCardinality(dict.fromkeys(names, 10.0), dict.fromkeys(query.predicates, 0.1)), 1
    )
    assert found.solver_report.status == "restricted"
