"""Initial probe orders of a new query, until the optimizer runs: along equalities, with the partitioning of existing stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.sharing.multiway.probes import OrdersByRelation, ProbeTarget, SlidingJoinPlan
from headrace.sharing.multiway.relations import Attribute, JoinGraph, input_relation


def choose_initial_orders(join: JoinGraph, existing: Mapping[str, Attribute | None]) -> OrdersByRelation:
    """Return an order for each relation of a join; `existing` maps relations to the partitioning of their stores."""
    stores = {
        name: existing[name] if name in existing else choose_partition_attribute(join, input_relation(name))
        for name in join.relations
    }
    return {
        start: tuple(ProbeTarget(input_relation(n), stores[n]) for n in _order_by_equalities(join, start))
        for start in sorted(join.relations)
    }


def find_input_partitioning(plan: SlidingJoinPlan | None) -> dict[str, Attribute | None]:
    """Return the partitioning of the input stores that a plan fills."""
    filled = [store for store in plan.stores if store.until_batch is None and store.relation.is_input] if plan is not None else []
    return {min(store.relation.relations): store.partitioned_by for store in reversed(filled)}


def _order_by_equalities(join: JoinGraph, start: str) -> list[str]:
    order = [start]
    while len(order) < len(join.relations):
        remaining = sorted(join.relations - set(order))
        between = {name: list(join.predicates_between(order, [name])) for name in remaining}
        order.append(min(remaining, key=lambda name: (not any(p.sides for p in between[name]), not between[name], name)))
    return order[1:]


def choose_partition_attribute(join: JoinGraph, relation: JoinGraph) -> Attribute | None:
    """Return the attribute of a relation that most equalities to other relations use; None if there is none."""
    predicates = sorted(join.predicates_between(relation.relations, join.relations - relation.relations))
    used = Counter(side for predicate in predicates for side in predicate.sides if side.relation in relation.relations)
    return used.most_common(1)[0][0] if used else None
