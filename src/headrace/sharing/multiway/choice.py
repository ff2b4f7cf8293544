"""A choice among candidates: a probe order for every query and input, and for all materialized joins that these orders probe."""

from __future__ import annotations

from headrace.sharing.multiway.candidates import Candidates, Target, targets
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.strategy import Plan, ProbeOrder, Solved, Strategy

Choice = dict[Target, int]  # the last step of the chosen order


def needed(candidate_orders: Candidates, choice: Choice) -> Choice:
    """Return the part of a complete choice that queries need, directly or for the materialized joins that they probe."""
    needed_orders: Choice = {}
    pending = [target for query in candidate_orders.queries for target in targets(query)]
    while pending:
        target = pending.pop()
        if target not in needed_orders:
            needed_orders[target] = choice[target]
            for number in candidate_orders.paths[choice[target]]:
                pending.extend(targets(candidate_orders.steps[number].store.relation))
    return needed_orders


def taken(candidate_orders: Candidates, choice: Choice) -> tuple[set[int], set[int]]:
    """Return the numbers of the steps and of the stores that a choice uses."""
    steps = {number for ending in choice.values() for number in candidate_orders.paths[ending]}
    return steps, {candidate_orders.visited[number] for number in steps}


def priced(candidate_orders: Candidates, choice: Choice) -> tuple[float, float]:
    """Return the cost of a choice in rows sent to probe and rows sent to be stored; every step and store counts once."""
    steps, stores = taken(candidate_orders, choice)
    return sum(candidate_orders.steps[number].cost for number in sorted(steps)), sum(
        candidate_orders.storing[number] for number in sorted(stores)
    )


def strategy_of(candidate_orders: Candidates, choice: Choice, solved: Solved) -> Strategy:
    """Return a choice as a strategy, without unused orders."""
    used_orders = needed(candidate_orders, choice)
    _, stores = taken(candidate_orders, used_orders)
    materialized = {
        candidate_orders.stores[number].relation: None
        for number in sorted(stores)
        if not candidate_orders.stores[number].relation.is_input
    }
    queries = tuple(_plan(candidate_orders, query, used_orders) for query in candidate_orders.queries)
    return Strategy(
        queries,
        tuple(_plan(candidate_orders, join, used_orders) for join in materialized),
        *priced(candidate_orders, used_orders),
        solved,
    )


def _plan(candidate_orders: Candidates, join: Join, choice: Choice) -> Plan:
    if join.is_input:
        return Plan(join, tuple(ProbeOrder(name, ()) for name in join.relations))
    return Plan(join, tuple(candidate_orders.order(choice[target]) for target in targets(join)))
