"""Strategies without the integer program: greedy, individual, and individual with common subplans merged."""

from __future__ import annotations

import pytest
from two_queries import FIGURES, Q1, Q2

from headrace.planner.join.baselines import merge_common_subplans, optimize_individually
from headrace.planner.join.candidates import generate_candidates, list_targets, price_choice, prune_choice
from headrace.planner.join.greedy import choose_greedily, improve_choice
from headrace.planner.join.optimizer import Objective
from support.exhaustive_join_search import compute_cost
from support.join_models import optimize_greedily, optimize_sliding_joins
from support.random_join_graphs import draw_workload


def test_equal_prefixes_of_individually_best_orders_count_once():
    """Each query alone costs 475, but only one of its orders starts with S to T or T to S: the queries share no step."""
    among = generate_candidates([Q1, Q2], FIGURES, 1, materializable=(), storage_weight=0.0)
    assert sum(price_choice(among, choose_greedily(among, 0))) == 950
    assert sum(price_choice(among, choose_greedily(among))) == 800


def test_a_join_is_materialized_if_it_saves_steps():
    """Rows of R and of U probe the materialized join S⋈T: both save a step."""
    among = generate_candidates([Q1, Q2], FIGURES, 1, storage_weight=0.2)
    shared, flat = (
        choose_greedily(among),
        choose_greedily(generate_candidates([Q1, Q2], FIGURES, 1, storage_weight=0.2, materializable=())),
    )
    assert any(join == Q1.subgraph("ST") for join, _ in shared)
    assert all(join in {Q1, Q2} for join, _ in flat)


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_greedy_choice_is_complete_and_more_rounds_cost_no_more(size, tasks):
    queries, figures = draw_workload(size, 12, 8, size)
    among = generate_candidates(queries, figures, tasks)
    costs = []
    for rounds in range(4):
        choice = choose_greedily(among, rounds)
        assert choice == prune_choice(among, choice)
        assert all(target in choice for query in queries for target in list_targets(query))
        costs.append(sum(price_choice(among, choice)))
    assert costs[1] <= costs[0]
    assert costs[3] <= costs[0]


def test_a_query_that_is_probed_by_another_query_is_counted_once():
    part = Q1.subgraph("ST")
    among = generate_candidates([Q1, part], FIGURES, 1, storage_weight=0.1)
    through = next(ending for ending in among.last_steps[Q1, "R"] if len(among.paths[ending]) == 1)
    choice = improve_choice(among, {(Q1, "R"): through})
    assert choice == prune_choice(among, choice)
    assert choice[Q1, "R"] == through
    assert sum(price_choice(among, choice)) == pytest.approx(sum(price_choice(among, choose_greedily(among))))


@pytest.mark.parametrize("seed", range(3))
def test_joint_optimization_costs_less_than_merging_and_merging_less_than_individual(seed):
    queries, figures = draw_workload(seed, 8, 12, 3)
    alone = optimize_individually(queries, figures, 4)
    together = merge_common_subplans(alone, figures, 4)
    assert (together.probe_cost, together.storage_cost) == pytest.approx(compute_cost(together, figures, 4))
    assert (
        optimize_sliding_joins(queries, figures, 4).total_cost
        <= together.total_cost
        < sum(strategy.total_cost for strategy in alone)
    )
    assert optimize_sliding_joins(queries, figures, 4).total_cost <= optimize_greedily(queries, figures, 4).total_cost


def test_individual_optimization_equals_the_optimum_of_each_query():
    for query, alone in zip((Q1, Q2), optimize_individually([Q1, Q2], FIGURES, 4), strict=True):
        assert alone.total_cost == pytest.approx(optimize_sliding_joins([query], FIGURES, 4, Objective(gap=0.0)).total_cost)


def test_sharing_over_ten_relations_saves_two_fifths_of_the_probe_cost():
    queries, figures = draw_workload(1, 10, 100, 3)
    alone = optimize_individually(queries, figures, 4)
    assert optimize_sliding_joins(queries, figures, 4).probe_cost < 0.6 * sum(strategy.probe_cost for strategy in alone)
