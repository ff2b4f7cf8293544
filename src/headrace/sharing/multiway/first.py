"""Probe orders for a query that has just come, before the optimizer has looked at it: along equalities, by stores that exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.sharing.multiway.probes import Orders, ProbePlan, Target
from headrace.sharing.multiway.relations import Attribute, Join, input_relation


def first_orders(join: Join, existing: Mapping[str, Attribute | None]) -> Orders:
    """Return an order for each relation of a join; `existing` has how stores of relations are partitioned."""
    stores = {name: existing[name] if name in existing else most_used(join, input_relation(name)) for name in join.relations}
    return {start: tuple(Target(input_relation(n), stores[n]) for n in _order(join, start)) for start in sorted(join.relations)}


def stores_of(plan: ProbePlan | None) -> dict[str, Attribute | None]:
    """Return how the stores of inputs are partitioned that a plan fills."""
    filled = [one for one in plan.stores if one.until is None and one.relation.is_input] if plan is not None else []
    return {min(one.relation.relations): one.by for one in reversed(filled)}


def _order(join: Join, start: str) -> list[str]:
    found = [start]
    while len(found) < len(join.relations):
        rest = sorted(join.relations - set(found))
        between = {name: list(join.between(found, [name])) for name in rest}
        found.append(min(rest, key=lambda name: (not any(p.sides for p in between[name]), not between[name], name)))
    return found[1:]


def most_used(join: Join, relation: Join) -> Attribute | None:
    """Return the attribute of a relation by which it is tied most often to others in a join; None if it never is."""
    outside = sorted(join.between(relation.relations, join.relations - relation.relations))
    used = Counter(side for one in outside for side in one.sides if side.relation in relation.relations)
    return used.most_common(1)[0][0] if used else None
