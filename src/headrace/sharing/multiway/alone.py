"""What sharing is measured by: the best strategy for each query by itself, and those put together as they are."""

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
    queries: Sequence[Join], figures: Figures, tasks: int, *, storage_weight: float = STORAGE_WEIGHT, time_limit: float = 2.0
) -> tuple[Strategy, ...]:
    """Return the best strategy for each query as if it were the only one; without sharing, the sum of their costs is due."""
    found = []
    for query in dict.fromkeys(queries):
        among = candidates([query], figures, tasks, storage_weight=storage_weight)
        found.append(strategy_of(among, *solve(program(among), among, greedy(among), time_limit=time_limit, gap=0.0)))
    return tuple(found)


def common_subplans(
    alone: Sequence[Strategy], figures: Figures, tasks: int, *, storage_weight: float = STORAGE_WEIGHT
) -> Strategy:
    """Return the strategies of single queries put together as they are, where equal beginnings are made once.

    A join that several keep is made as the first of them makes it.
    """
    plans: dict[Join, Plan] = {}
    for one in alone:
        for plan in one.kept:
            plans.setdefault(plan.join, plan)
    queries = tuple(plan for one in alone for plan in one.queries)
    kept = _probed(queries, plans)
    sent = _sent((*queries, *kept), figures, tasks)
    stores = {store: storage_weight * figures.arriving(store.relation) for plan in (*queries, *kept) for store in plan.stores}
    return Strategy(queries, kept, math.fsum(sent.values()), math.fsum(stores.values()), Solved("greedy", 1.0))


def _probed(queries: Sequence[Plan], plans: Mapping[Join, Plan]) -> tuple[Plan, ...]:
    """Return the plans of all joins that queries probe, or that those joins do."""
    found: dict[Join, Plan] = {}
    waiting = list(queries)
    while waiting:
        for store in waiting.pop().stores:
            if not store.relation.is_input and store.relation not in found:
                found[store.relation] = plans[store.relation]
                waiting.append(plans[store.relation])
    return tuple(found.values())


def _sent(plans: Sequence[Plan], figures: Figures, tasks: int) -> dict[tuple[str, tuple[Store, ...], Join], float]:
    """Return the rows that each step of plans sends; steps are told apart by all that was visited, and by what they make."""
    found = {}
    for plan in plans:
        for order in plan.orders:
            prefix = [input_relation(order.start)]
            for k, store in enumerate(order.stores, 1):
                copied = copies(store.relation, store.by, prefix, plan.join, tasks)
                rows = figures.sent(prefix, plan.join) * copied
                prefix.append(store.relation)
                made = plan.join.within(name for one in prefix for name in one.relations)
                found[order.start, order.stores[:k], made] = rows
    return found
