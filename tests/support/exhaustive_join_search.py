"""The least cost of joins worked off together, by trying everything: what the integer program is judged by.

It knows orders, partitionings and the cost model; steps, the forest of them, and the program it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from headrace.planner.join.candidates import enumerate_partitioned_stores, enumerate_probe_orders, find_partitionings
from headrace.planner.join.cost import CardinalityModel, estimate_step_costs
from headrace.planner.join.join_graph import JoinGraph, input_relation
from headrace.planner.join.strategy import JoinStrategy


def priced_orders(join: JoinGraph, start: str, stores: tuple, figures: CardinalityModel, tasks: int) -> dict:
    """The steps of an order, told apart by all that makes them different, with what each costs."""
    order = (input_relation(start), *(store.relation for store in stores))
    costs = estimate_step_costs(order, join, figures, dict.fromkeys(order, tasks), {store.relation: store.partitioned_by for store in stores})
    found = {}
    for k, cost in enumerate(costs, 1):
        made = join.subgraph(name for relation in order[: k + 1] for name in relation.relations)
        found[start, stores[:k], made] = cost
    return found


def cost_of(strategy: JoinStrategy, figures: CardinalityModel, tasks: int, storage_weight: float = 1.0) -> tuple[float, float]:
    """What a strategy costs, counted anew from its orders: rows to be probed, rows to be kept."""
    steps: dict = {}
    for plan in (*strategy.query_plans, *strategy.materialized_plans):
        for order in plan.probe_orders:
            steps.update(priced_orders(plan.join_graph, order.start, order.stores, figures, tasks))
    return sum(steps.values()), storage_weight * sum(figures.estimate_arrivals(store.relation) for store in strategy.stores)


def least_cost(
    queries: Sequence[JoinGraph], figures: CardinalityModel, tasks: int, *, storage_weight: float = 1.0, keeping: bool = True
) -> float:
    """Try all orders for all targets, those of kept joins as they come to be needed; give up what is dearer already."""
    by = find_partitionings(queries)
    best = math.inf

    @cache
    def options(join: JoinGraph, start: str) -> list:
        found = []
        for order in enumerate_probe_orders(join, start, use_intermediates=keeping):
            found += [
                (priced_orders(join, start, stores, figures, tasks), stores) for stores in enumerate_partitioned_stores(order, by)
            ]
        return sorted(found, key=lambda one: sum(one[0].values()))

    def search(waiting: tuple, done: frozenset, steps: frozenset, stores: frozenset, cost: float) -> None:
        nonlocal best
        if cost >= best:
            return
        if not waiting:
            best = cost
            return
        (join, start), rest = waiting[0], waiting[1:]
        for costs, visited in options(join, start):
            more = sum(price for step, price in costs.items() if step not in steps)
            new = [store for store in visited if store not in stores]
            more += storage_weight * sum(figures.estimate_arrivals(store.relation) for store in new)
            joins = {store.relation for store in new if not store.relation.is_input}
            targets = tuple((one, name) for one in joins for name in sorted(one.relations) if (one, name) not in done)
            search(rest + targets, done | set(targets), steps | costs.keys(), stores | set(new), cost + more)

    wanted = tuple((query, name) for query in queries for name in sorted(query.relations))
    search(wanted, frozenset(wanted), frozenset(), frozenset(), 0.0)
    return best
