"""Unshared baselines: the best strategy for each query alone, and the union of these strategies without further optimization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace.planner.join.candidates import STORAGE_WEIGHT, build_strategy, generate_candidates
from headrace.planner.join.cost import CardinalityModel, count_copies
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program, solve_program
from headrace.planner.join.join_graph import JoinGraph, input_relation
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, SolverReport


def optimize_individually(
    queries: Sequence[JoinGraph],
    cardinalities: CardinalityModel,
    tasks: int,
    *,
    storage_weight: float = STORAGE_WEIGHT,
    time_limit: float = 2.0,
    budget: float = math.inf,
    hop_weight: float = 0.0,
) -> tuple[JoinStrategy, ...]:
    """Return the best strategy for each query alone (integer program); without sharing, the total cost is the sum of theirs."""
    strategies = []
    for query in dict.fromkeys(queries):
        candidate_orders = generate_candidates(
            [query], cardinalities, tasks, storage_weight=storage_weight, budget=budget, hop_weight=hop_weight
        )
        known = choose_greedily(candidate_orders)
        program = build_program(candidate_orders)
        choice, solved = solve_program(program, candidate_orders, known, time_limit=time_limit, gap=0.0)
        strategies.append(build_strategy(candidate_orders, choice, solved))
    return tuple(strategies)


def merge_common_subplans(
    strategies: Sequence[JoinStrategy], cardinalities: CardinalityModel, tasks: int, *, storage_weight: float = STORAGE_WEIGHT
) -> JoinStrategy:
    """Return the union of the strategies of single queries, where equal prefixes of probe orders are executed once.

    A join that several strategies materialize is computed as in the first of them.
    """
    plans: dict[JoinGraph, JoinProbePlan] = {}
    for strategy in strategies:
        for plan in strategy.materialized_plans:
            plans.setdefault(plan.join_graph, plan)
    queries = tuple(plan for strategy in strategies for plan in strategy.query_plans)
    materialized = _find_probed_plans(queries, plans)
    sent_rows = _estimate_sent_rows((*queries, *materialized), cardinalities, tasks)
    storage_costs = {
        store: storage_weight * cardinalities.estimate_arrivals(store.relation)
        for plan in (*queries, *materialized)
        for store in plan.stores
    }
    return JoinStrategy(
        queries, materialized, math.fsum(sent_rows.values()), math.fsum(storage_costs.values()), SolverReport("greedy", 1.0)
    )


def _find_probed_plans(queries: Sequence[JoinProbePlan], plans: Mapping[JoinGraph, JoinProbePlan]) -> tuple[JoinProbePlan, ...]:
    """Return the plans of all materialized joins that the queries probe, directly or through other such joins."""
    probed: dict[JoinGraph, JoinProbePlan] = {}
    pending = list(queries)
    while pending:
        for store in pending.pop().stores:
            if not store.relation.is_input and store.relation not in probed:
                probed[store.relation] = plans[store.relation]
                pending.append(plans[store.relation])
    return tuple(probed.values())


def _estimate_sent_rows(
    plans: Sequence[JoinProbePlan], cardinalities: CardinalityModel, tasks: int
) -> dict[tuple[str, tuple[PartitionedStore, ...], JoinGraph], float]:
    """Return the rows that each step sends; a step is identified by all visited stores and by the join it produces."""
    sent_rows = {}
    for plan in plans:
        for order in plan.probe_orders:
            prefix = [input_relation(order.start)]
            for k, store in enumerate(order.stores, 1):
                copy_count = count_copies(store.relation, store.partitioned_by, prefix, plan.join_graph, tasks)
                rows = cardinalities.estimate_sent(prefix, plan.join_graph) * copy_count
                rows += cardinalities.estimate_pair_cost(prefix, store.relation, plan.join_graph)
                prefix.append(store.relation)
                result = plan.join_graph.subgraph(name for relation in prefix for name in relation.relations)
                sent_rows[order.start, order.stores[:k], result] = rows
    return sent_rows
