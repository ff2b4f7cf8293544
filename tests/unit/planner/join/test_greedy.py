"""Strategies without the integer program: at once, alone, and alone with equal beginnings made once."""

from __future__ import annotations

import pytest
from two_queries import FIGURES, Q1, Q2

from headrace.planner.join.baselines import merge_common_subplans, optimize_individually
from headrace.planner.join.candidates import generate_candidates, list_targets, price_choice, prune_choice
from headrace.planner.join.greedy import choose_greedily, improve_choice, optimize_greedily
from headrace.planner.join.optimizer import optimize_sliding_joins
from support.exhaustive_join_search import compute_cost
from support.random_join_graphs import draw_workload


def test_equal_beginnings_of_individually_best_orders_count_once():
    """The orders that cost 475 for each query have S to T and T to S in one of them only: nothing is shared."""
    among = generate_candidates([Q1, Q2], FIGURES, 1, materializable=(), storage_weight=0.0)
    assert sum(price_choice(among, choose_greedily(among, 0))) == 950
    assert sum(price_choice(among, choose_greedily(among))) == 800


def test_what_is_kept_pays():
    """Rows of R look into S⋈T, rows of U as well: both save a step, once S⋈T is kept."""
    among = generate_candidates([Q1, Q2], FIGURES, 1, storage_weight=0.2)
    with_it, without = (
        choose_greedily(among),
        choose_greedily(generate_candidates([Q1, Q2], FIGURES, 1, storage_weight=0.2, materializable=())),
    )
    assert any(join == Q1.subgraph("ST") for join, _ in with_it)
    assert all(join in {Q1, Q2} for join, _ in without)


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_greedy_choice_is_complete_and_never_dearer_for_looking_again(size, tasks):
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


def test_a_query_that_another_one_probes_is_counted_once():
    part = Q1.subgraph("ST")
    among = generate_candidates([Q1, part], FIGURES, 1, storage_weight=0.1)
    through = next(ending for ending in among.last_steps[Q1, "R"] if len(among.paths[ending]) == 1)
    choice = improve_choice(among, {(Q1, "R"): through})
    assert choice == prune_choice(among, choice)
    assert choice[Q1, "R"] == through
    assert sum(price_choice(among, choice)) == pytest.approx(sum(price_choice(among, choose_greedily(among))))


@pytest.mark.parametrize("seed", range(3))
def test_the_more_is_looked_at_together_the_less_it_costs(seed):
    queries, figures = draw_workload(seed, 8, 12, 3)
    alone = optimize_individually(queries, figures, 4)
    together = merge_common_subplans(alone, figures, 4)
    assert (together.probe_cost, together.storage_cost) == pytest.approx(compute_cost(together, figures, 4))
    assert optimize_sliding_joins(queries, figures, 4).total_cost <= together.total_cost < sum(one.total_cost for one in alone)
    assert optimize_sliding_joins(queries, figures, 4).total_cost <= optimize_greedily(queries, figures, 4).total_cost


def test_each_query_alone_is_what_it_is_among_one():
    for query, alone in zip((Q1, Q2), optimize_individually([Q1, Q2], FIGURES, 4), strict=True):
        assert alone.total_cost == pytest.approx(optimize_sliding_joins([query], FIGURES, 4, gap=0.0).total_cost)


def test_ten_relations_save_two_fifths_of_the_probes():
    queries, figures = draw_workload(1, 10, 100, 3)
    alone = optimize_individually(queries, figures, 4)
    assert optimize_sliding_joins(queries, figures, 4).probe_cost < 0.6 * sum(one.probe_cost for one in alone)
