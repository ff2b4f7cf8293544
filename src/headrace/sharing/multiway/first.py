"""Initial probe orders of a new query, until the optimizer runs: along equalities, with the partitioning of existing stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.sharing.multiway.probes import Orders, ProbePlan, Target
from headrace.sharing.multiway.relations import Attribute, Join, input_relation


def first_orders(join: Join, existing: Mapping[str, Attribute | None]) -> Orders:
    """Return an order for each relation of a join; `existing` maps relations to the partitioning of their stores."""
    stores = {name: existing[name] if name in existing else most_used(join, input_relation(name)) for name in join.relations}
    return {start: tuple(Target(input_relation(n), stores[n]) for n in _order(join, start)) for start in sorted(join.relations)}


def stores_of(plan: ProbePlan | None) -> dict[str, Attribute | None]:
    """Return the partitioning of the input stores that a plan fills."""
    filled = [store for store in plan.stores if store.until is None and store.relation.is_input] if plan is not None else []
    return {min(store.relation.relations): store.by for store in reversed(filled)}


def _order(join: Join, start: str) -> list[str]:
    order = [start]
    while len(order) < len(join.relations):
        remaining = sorted(join.relations - set(order))
        between = {name: list(join.between(order, [name])) for name in remaining}
        order.append(min(remaining, key=lambda name: (not any(p.sides for p in between[name]), not between[name], name)))
    return order[1:]


def most_used(join: Join, relation: Join) -> Attribute | None:
    """Return the attribute of a relation that most equalities to other relations use; None if there is none."""
    predicates = sorted(join.between(relation.relations, join.relations - relation.relations))
    used = Counter(side for predicate in predicates for side in predicate.sides if side.relation in relation.relations)
    return used.most_common(1)[0][0] if used else None
