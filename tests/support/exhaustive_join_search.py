"""The least cost of a shared plan of sliding joins, found by exhaustive search, to check the integer program against.

It uses the engine's probe orders, partitionings and cost model, but not its steps, its probe trees or its integer program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from headrace.planner.join.cost import CardinalityModel, estimate_step_costs
from headrace.planner.join.join_graph import JoinGraph, input_relation
from headrace.planner.join.strategy import JoinStrategy
from support.join_models import enumerate_partitioned_stores, enumerate_probe_orders, find_partitionings


def price_steps(join: JoinGraph, start: str, stores: tuple, statistics: CardinalityModel, tasks: int) -> dict:
    """Return the cost of each step of a probe order; equal steps of several orders have equal keys."""
    order = (input_relation(start), *(store.relation for store in stores))
    costs = estimate_step_costs(
        order, join, statistics, dict.fromkeys(order, tasks), {store.relation: store.partitioned_by for store in stores}
    )
    priced = {}
    for k, cost in enumerate(costs, 1):
        joined = join.subgraph(name for relation in order[: k + 1] for name in relation.relations)
        priced[start, stores[:k], joined] = cost
    return priced


def compute_cost(
    strategy: JoinStrategy, statistics: CardinalityModel, tasks: int, storage_weight: float = 1.0
) -> tuple[float, float]:
    """Return the probe cost and the storage cost of a strategy, computed from its probe orders."""
    steps: dict = {}
    for plan in (*strategy.query_plans, *strategy.materialized_plans):
        for order in plan.probe_orders:
            steps.update(price_steps(plan.join_graph, order.start, order.stores, statistics, tasks))
    return sum(steps.values()), storage_weight * sum(statistics.estimate_arrivals(store.relation) for store in strategy.stores)


def find_least_cost(
    queries: Sequence[JoinGraph],
    statistics: CardinalityModel,
    tasks: int,
    *,
    storage_weight: float = 1.0,
    use_intermediates: bool = True,
) -> float:
    """Try all orders of all targets, with those of intermediate results as they become necessary; prune by the best cost."""
    partitionings = find_partitionings(queries)
    best = math.inf

    @cache
    def options(join: JoinGraph, start: str) -> list:
        priced_orders = []
        for order in enumerate_probe_orders(join, start, use_intermediates=use_intermediates):
            priced_orders += [
                (price_steps(join, start, stores, statistics, tasks), stores)
                for stores in enumerate_partitioned_stores(order, partitionings)
            ]
        return sorted(priced_orders, key=lambda option: sum(option[0].values()))

    def search(pending: tuple, planned: frozenset, steps: frozenset, stores: frozenset, cost: float) -> None:
        nonlocal best
        if cost >= best:
            return
        if not pending:
            best = cost
            return
        (join, start), rest = pending[0], pending[1:]
        for costs, visited in options(join, start):
            added_cost = sum(price for step, price in costs.items() if step not in steps)
            new_stores = [store for store in visited if store not in stores]
            added_cost += storage_weight * sum(statistics.estimate_arrivals(store.relation) for store in new_stores)
            joins = {store.relation for store in new_stores if not store.relation.is_input}
            targets = tuple((join, name) for join in joins for name in sorted(join.relations) if (join, name) not in planned)
            search(rest + targets, planned | set(targets), steps | costs.keys(), stores | set(new_stores), cost + added_cost)

    wanted = tuple((query, name) for query in queries for name in sorted(query.relations))
    search(wanted, frozenset(wanted), frozenset(), frozenset(), 0.0)
    return best
