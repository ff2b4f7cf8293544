"""A choice among candidates: an order for every query and input, and for all joins that those orders probe as a whole."""

from __future__ import annotations

from headrace.sharing.multiway.candidates import Candidates, Target, targets
from headrace.sharing.multiway.relations import Join
from headrace.sharing.multiway.strategy import Plan, ProbeOrder, Solved, Strategy

Choice = dict[Target, int]  # the last step of the order taken


def needed(among: Candidates, choice: Choice) -> Choice:
    """Return the part of a choice that queries need, for themselves or for joins that they probe; it must be complete."""
    found: Choice = {}
    waiting = [target for query in among.queries for target in targets(query)]
    while waiting:
        target = waiting.pop()
        if target not in found:
            found[target] = choice[target]
            for number in among.paths[choice[target]]:
                waiting.extend(targets(among.steps[number].store.relation))
    return found


def taken(among: Candidates, choice: Choice) -> tuple[set[int], set[int]]:
    """Return the numbers of the steps that a choice makes, and of the stores it keeps."""
    steps = {number for ending in choice.values() for number in among.paths[ending]}
    return steps, {among.visited[number] for number in steps}


def priced(among: Candidates, choice: Choice) -> tuple[float, float]:
    """Return what a choice costs, in rows sent to be probed and to be kept; every step and every store counts once."""
    steps, stores = taken(among, choice)
    return sum(among.steps[one].cost for one in sorted(steps)), sum(among.storing[one] for one in sorted(stores))


def strategy_of(among: Candidates, choice: Choice, solved: Solved) -> Strategy:
    """Return a choice as a strategy, without what nobody needs."""
    used = needed(among, choice)
    _, stores = taken(among, used)
    kept = {among.stores[number].relation: None for number in sorted(stores) if not among.stores[number].relation.is_input}
    queries = tuple(_plan(among, query, used) for query in among.queries)
    return Strategy(queries, tuple(_plan(among, join, used) for join in kept), *priced(among, used), solved)


def _plan(among: Candidates, join: Join, choice: Choice) -> Plan:
    if join.is_input:
        return Plan(join, tuple(ProbeOrder(name, ()) for name in join.relations))
    return Plan(join, tuple(among.order(choice[target]) for target in targets(join)))
