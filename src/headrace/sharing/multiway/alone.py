"""Unshared baselines: the best strategy for each query alone, and the union of these strategies without further optimization."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace.sharing.multiway.candidates import STORAGE_WEIGHT, candidates
from headrace.sharing.multiway.choice import strategy_of
from headrace.sharing.multiway.cost import Figures, copies
from headrace.sharing.multiway.greedy import greedy
from headrace.sharing.multiway.program import program
from headrace.sharing.multiway.relations import Join, input_relation
from headrace.sharing.multiway.solve import solve
from headrace.sharing.multiway.strategy import Plan, Solved, Store, Strategy


def individually(
    queries: Sequence[Join],
    cardinalities: Figures,
    tasks: int,
    *,
    storage_weight: float = STORAGE_WEIGHT,
    time_limit: float = 2.0,
) -> tuple[Strategy, ...]:
    """Return the best strategy for each query alone (integer program); without sharing, the total cost is the sum of theirs."""
    strategies = []
    for query in dict.fromkeys(queries):
        candidate_orders = candidates([query], cardinalities, tasks, storage_weight=storage_weight)
        strategies.append(
            strategy_of(
                candidate_orders,
                *solve(program(candidate_orders), candidate_orders, greedy(candidate_orders), time_limit=time_limit, gap=0.0),
            )
        )
    return tuple(strategies)


def common_subplans(
    strategies: Sequence[Strategy], cardinalities: Figures, tasks: int, *, storage_weight: float = STORAGE_WEIGHT
) -> Strategy:
    """Return the union of the strategies of single queries, where equal prefixes of probe orders are executed once.

    A join that several strategies materialize is computed as in the first of them.
    """
    plans: dict[Join, Plan] = {}
    for strategy in strategies:
        for plan in strategy.kept:
            plans.setdefault(plan.join, plan)
    queries = tuple(plan for strategy in strategies for plan in strategy.queries)
    materialized = _probed(queries, plans)
    sent_rows = _sent((*queries, *materialized), cardinalities, tasks)
    storage_costs = {
        store: storage_weight * cardinalities.arriving(store.relation)
        for plan in (*queries, *materialized)
        for store in plan.stores
    }
    return Strategy(
        queries, materialized, math.fsum(sent_rows.values()), math.fsum(storage_costs.values()), Solved("greedy", 1.0)
    )


def _probed(queries: Sequence[Plan], plans: Mapping[Join, Plan]) -> tuple[Plan, ...]:
    """Return the plans of all materialized joins that the queries probe, directly or through other such joins."""
    probed: dict[Join, Plan] = {}
    pending = list(queries)
    while pending:
        for store in pending.pop().stores:
            if not store.relation.is_input and store.relation not in probed:
                probed[store.relation] = plans[store.relation]
                pending.append(plans[store.relation])
    return tuple(probed.values())


def _sent(plans: Sequence[Plan], cardinalities: Figures, tasks: int) -> dict[tuple[str, tuple[Store, ...], Join], float]:
    """Return the rows that each step sends; a step is identified by all visited stores and by the join it produces."""
    sent_rows = {}
    for plan in plans:
        for order in plan.orders:
            prefix = [input_relation(order.start)]
            for k, store in enumerate(order.stores, 1):
                copy_count = copies(store.relation, store.by, prefix, plan.join, tasks)
                rows = cardinalities.sent(prefix, plan.join) * copy_count
                prefix.append(store.relation)
                result = plan.join.within(name for relation in prefix for name in relation.relations)
                sent_rows[order.start, order.stores[:k], result] = rows
    return sent_rows
