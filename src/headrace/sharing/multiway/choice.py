"""A choice among candidates: a probe order for every query and input, and for all materialized joins that these orders probe."""

from __future__ import annotations

from headrace.sharing.multiway.candidates import CandidateOrders, OrderTarget, list_targets
from headrace.sharing.multiway.relations import JoinGraph
from headrace.sharing.multiway.strategy import JoinProbePlan, JoinStrategy, ProbeOrder, SolverReport

OrderChoice = dict[OrderTarget, int]  # the last step of the chosen order


def prune_choice(candidate_orders: CandidateOrders, choice: OrderChoice) -> OrderChoice:
    """Return the part of a complete choice that queries need, directly or for the materialized joins that they probe."""
    needed_orders: OrderChoice = {}
    pending = [target for query in candidate_orders.queries for target in list_targets(query)]
    while pending:
        target = pending.pop()
        if target not in needed_orders:
            needed_orders[target] = choice[target]
            for number in candidate_orders.paths[choice[target]]:
                pending.extend(list_targets(candidate_orders.steps[number].store.relation))
    return needed_orders


def collect_steps_and_stores(candidate_orders: CandidateOrders, choice: OrderChoice) -> tuple[set[int], set[int]]:
    """Return the numbers of the steps and of the stores that a choice uses."""
    steps = {number for ending in choice.values() for number in candidate_orders.paths[ending]}
    return steps, {candidate_orders.step_stores[number] for number in steps}


def price_choice(candidate_orders: CandidateOrders, choice: OrderChoice) -> tuple[float, float]:
    """Return the cost of a choice in rows sent to probe and rows sent to be stored; every step and store counts once."""
    steps, stores = collect_steps_and_stores(candidate_orders, choice)
    return sum(candidate_orders.steps[number].cost for number in sorted(steps)), sum(
        candidate_orders.storage_costs[number] for number in sorted(stores)
    )


def build_strategy(candidate_orders: CandidateOrders, choice: OrderChoice, solved: SolverReport) -> JoinStrategy:
    """Return a choice as a strategy, without unused orders."""
    used_orders = prune_choice(candidate_orders, choice)
    _, stores = collect_steps_and_stores(candidate_orders, used_orders)
    materialized = {
        candidate_orders.stores[number].relation: None
        for number in sorted(stores)
        if not candidate_orders.stores[number].relation.is_input
    }
    queries = tuple(_build_probe_plan(candidate_orders, query, used_orders) for query in candidate_orders.queries)
    return JoinStrategy(
        queries,
        tuple(_build_probe_plan(candidate_orders, join, used_orders) for join in materialized),
        *price_choice(candidate_orders, used_orders),
        solved,
    )


def _build_probe_plan(candidate_orders: CandidateOrders, join: JoinGraph, choice: OrderChoice) -> JoinProbePlan:
    if join.is_input:
        return JoinProbePlan(join, tuple(ProbeOrder(name, ()) for name in join.relations))
    return JoinProbePlan(join, tuple(candidate_orders.get_order(choice[target]) for target in list_targets(join)))
