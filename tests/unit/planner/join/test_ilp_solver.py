"""The ILP solver: against exhaustive search, the worked examples, and limits of effort."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from two_queries import FIGURES, Q1, Q2, labels

from headrace.planner.join.baselines import optimize_individually
from headrace.planner.join.candidates import build_strategy, generate_candidates
from headrace.planner.join.cost import WindowCardinality
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program, solve_program
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.optimizer import Objective, optimize_jointly
from support.exhaustive_join_search import compute_cost, find_least_cost
from support.join_models import HistoryCardinality, make_theta_predicate, optimize_greedily, optimize_sliding_joins
from support.random_join_graphs import JoinEnvironment, draw_workload


def find_optimum(queries, figures, tasks, **options):
    among = generate_candidates(queries, figures, tasks, **options)
    choice, solved = solve_program(
        build_program(among), among, choose_greedily(among, 0), time_limit=math.inf, gap=0.0, is_bounded=False
    )
    assert solved.status == "optimal"
    assert solved.gap == pytest.approx(0.0, abs=1e-6)
    return build_strategy(among, choice, solved)


def draw_windowed_workload(seed, relations, number, size, attributes=2):
    """Draw queries over windowed streams of different rates."""
    random = Random(seed)
    environment = JoinEnvironment.draw(random, relations, attributes)
    rates = {name: random.choice((1.0, 5.0, 20.0)) for name in environment.relations}
    windows = {name: random.choice((1.0, 4.0)) for name in environment.relations}
    selectivities = {equality: random.choice((0.01, 0.1, 0.5)) for equality in environment.equalities.values()}
    return environment.draw_queries(random, number, size), WindowCardinality(rates, windows, selectivities)


def test_sharing_saves_150_of_950_rows():
    """Alone, S probes R first and T probes U first; together, S probes T and T probes S, so that both queries share steps."""
    alone = [find_optimum([query], FIGURES, 1, materializable=(), storage_weight=0.0) for query in (Q1, Q2)]
    assert [strategy.total_cost for strategy in alone] == [475, 475]
    assert labels(alone[0].get_plan(Q1).get_order("S").stores) == "R[] T[]"
    assert labels(alone[1].get_plan(Q2).get_order("T").stores) == "U[] S[]"
    shared = find_optimum([Q1, Q2], FIGURES, 1, materializable=(), storage_weight=0.0)
    assert shared.total_cost == 800
    assert labels(shared.get_plan(Q1).get_order("S").stores) == "T[] R[]"
    assert labels(shared.get_plan(Q2).get_order("T").stores) == "S[] U[]"
    assert not shared.materialized_plans


def test_the_example_with_materialized_joins_and_partitioned_stores_is_optimal():
    for tasks, weight in ((1, 0.0), (1, 1.0), (4, 1.0), (4, 0.1)):
        strategy = find_optimum([Q1, Q2], FIGURES, tasks, storage_weight=weight)
        assert strategy.total_cost == pytest.approx(find_least_cost([Q1, Q2], FIGURES, tasks, storage_weight=weight))


@pytest.mark.parametrize("seed", range(12))
def test_the_solution_equals_the_optimum_of_exhaustive_search(seed):
    queries, figures = draw_windowed_workload(seed, 4, 2, 3)
    use_intermediates = seed % 3 != 0
    tasks, weight = (1, 3, 5)[seed % 3], (0.0, 0.3, 1.0, 2.0)[seed % 4]
    strategy = find_optimum(queries, figures, tasks, storage_weight=weight, materializable=None if use_intermediates else ())
    assert strategy.total_cost == pytest.approx(
        find_least_cost(queries, figures, tasks, storage_weight=weight, use_intermediates=use_intermediates)
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_solution_of_a_larger_query_equals_the_optimum_of_exhaustive_search(seed):
    queries, figures = draw_windowed_workload(seed, 5, 1, 4, 1)
    assert find_optimum(queries, figures, 3).total_cost == pytest.approx(find_least_cost(queries, figures, 3))


@pytest.mark.parametrize("seed", range(12))
def test_pruning_does_not_change_the_optimal_cost(seed):
    queries, figures = draw_windowed_workload(seed, 6, 4, 3 + seed % 2)
    for tasks, weight in ((1, 0.5), (3, 0.05), (2, 1.0)):
        pruned, unpruned = (find_optimum(queries, figures, tasks, storage_weight=weight, prune=prune) for prune in (True, False))
        assert pruned.total_cost == pytest.approx(unpruned.total_cost)


@pytest.mark.parametrize("seed", range(6))
def test_the_stated_cost_of_a_strategy_is_its_computed_cost(seed):
    queries, figures = draw_windowed_workload(seed, 8, 6, 4, 3)
    strategy = optimize_sliding_joins(queries, figures, 3, Objective(storage_weight=0.7))
    assert (strategy.probe_cost, strategy.storage_cost) == pytest.approx(compute_cost(strategy, figures, 3, 0.7))
    assert {plan.join_graph for plan in strategy.query_plans} == set(queries)
    assert strategy.total_cost <= optimize_greedily(queries, figures, 3, storage_weight=0.7).total_cost
    assert strategy.total_cost <= sum(
        single.total_cost for single in optimize_individually(queries, figures, 3, storage_weight=0.7)
    )


def test_joins_without_equalities_probe_all_partitions():
    query = JoinGraph(frozenset("RS"), frozenset({make_theta_predicate("R", "S", "R.x < S.x")}))
    strategy = optimize_sliding_joins([query], FIGURES, 4)
    assert (strategy.probe_cost, strategy.storage_cost) == (800, 200)
    assert all(store.partitioned_by is None for store in strategy.stores)


def test_without_time_the_solution_is_the_greedy_strategy():
    queries, figures = draw_workload(1, 100, 10, 4)
    strategy = optimize_jointly(queries, figures, 4, Objective(time_limit=0.0)).strategies["ilp"]
    assert strategy == optimize_greedily(queries, figures, 4)
    assert (strategy.solver_report.status, strategy.solver_report.gap) == ("greedy", 1.0)


def test_with_little_time_the_report_states_the_gap():
    queries, figures = draw_workload(1, 100, 30, 5)
    strategy = optimize_sliding_joins(queries, figures, 4, Objective(time_limit=0.02))
    assert strategy.solver_report.status in {"greedy", "effort limit"}
    assert strategy.solver_report.gap > 1e-3
    assert strategy.total_cost <= optimize_greedily(queries, figures, 4).total_cost


def test_equal_queries_count_once_and_no_queries_cost_nothing():
    once, twice = (optimize_sliding_joins(queries, FIGURES, 4) for queries in ([Q1], [Q1, Q1]))
    assert once == twice
    empty = optimize_sliding_joins([], FIGURES, 4)
    assert (empty.query_plans, empty.materialized_plans, empty.total_cost) == ((), (), 0)


def test_a_query_of_one_input_has_no_probes():
    strategy = optimize_sliding_joins([Q1.subgraph("R"), Q1], FIGURES, 4)
    assert strategy.query_plans[0].probe_orders[0].stores == ()
    assert strategy.total_cost == optimize_sliding_joins([Q1], FIGURES, 4).total_cost


def test_the_optimizer_is_deterministic():
    queries, figures = draw_workload(2, 20, 10, 3)
    assert optimize_sliding_joins(queries, figures, 4) == optimize_sliding_joins(queries, figures, 4)


def test_the_report_of_a_large_query_says_restricted():
    names = "ABCDEFGHI"
    query = JoinGraph(
        frozenset(names), frozenset(make_theta_predicate(left, right, f"{left}.x < {right}.x") for left, right in pairwise(names))
    )
    strategy = optimize_sliding_joins(
        [query], HistoryCardinality(dict.fromkeys(names, 10.0), dict.fromkeys(query.predicates, 0.1)), 1
    )
    assert strategy.solver_report.status == "restricted"
