"""Probe orders of one operator: the order in which rows of each relation visit the stores of the others.

Fewer rows in the first steps are not the only criterion: a store of many tasks receives as many copies of a row that does not
determine the partition, so a larger intermediate result may be cheaper. The greedy search therefore looks two steps ahead, at
rows and copies. Steps without a predicate are taken only if no other step remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.planner.join.cost import CardinalityModel, RelationOrder, count_copies, estimate_step_costs
from headrace.planner.join.join_graph import Attribute, JoinGraph

Partitioning = Mapping[JoinGraph, Attribute | None]


@dataclass(frozen=True, slots=True)
class JoinCostModel:
    """A join and everything that its cost depends on. By default, a store has one task and no partition attribute."""

    join_graph: JoinGraph
    cardinalities: CardinalityModel
    task_counts: Mapping[JoinGraph, int] = field(default_factory=dict)
    partitioning: Partitioning = field(default_factory=dict)
    _known_costs: dict[tuple[tuple[JoinGraph, ...], OrderSearch], float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def subgraph(self, names: Iterable[str]) -> JoinGraph:
        """Return the subjoin over some inputs: the relation of a store of them."""
        return self.join_graph.subgraph(names)

    def list_inputs(self) -> tuple[JoinGraph, ...]:
        """Return the inputs as relations, by name."""
        return tuple(self.subgraph({name}) for name in sorted(self.join_graph.relations))

    def estimate_sent(self, prefix: RelationOrder, store: JoinGraph) -> float:
        """Return the cost of a step: the rows of a prefix sent to a store, including all copies, and the pairs tried there."""
        by, tasks = self.partitioning.get(store), self.task_counts.get(store, 1)
        copies = count_copies(store, by, prefix, self.join_graph, tasks)
        pairs = self.cardinalities.estimate_pair_cost(prefix, store, self.join_graph)
        return self.cardinalities.estimate_sent(prefix, self.join_graph) * copies + pairs

    def estimate_order_cost(self, order: RelationOrder) -> float:
        """Return the number of rows that an order sends in all its steps."""
        return sum(estimate_step_costs(order, self.join_graph, self.cardinalities, self.task_counts, self.partitioning))

    def estimate_operator_cost(self, relations: tuple[JoinGraph, ...], search: OrderSearch) -> float:
        """Return the number of rows that an operator sends with the orders that the search finds; many trees ask for it."""
        cost = self._known_costs.get((relations, search))
        if cost is None:
            orders = find_probe_orders(relations, self, search)
            cost = sum(self.estimate_order_cost(order) for order in orders.values())
            self._known_costs[relations, search] = cost
        return cost


OrderSearch = Callable[[JoinGraph, Iterable[JoinGraph], JoinCostModel], RelationOrder]


def find_greedy_order(start: JoinGraph, others: Iterable[JoinGraph], cost_model: JoinCostModel) -> RelationOrder:
    """Return a greedy order for the rows of one relation: each step is the first of the cheapest two. Ties go by name."""
    order: RelationOrder = (start,)
    remaining = set(others)
    while remaining:
        costs = {
            relation: _estimate_two_steps(order, relation, remaining, cost_model)
            for relation in find_joinable(order, remaining, cost_model.join_graph)
        }
        chosen = min(costs, key=lambda relation: (costs[relation], str(relation)))
        remaining.remove(chosen)
        order = (*order, chosen)
    return order


def _estimate_two_steps(order: RelationOrder, relation: JoinGraph, remaining: set[JoinGraph], cost_model: JoinCostModel) -> float:
    """Return the cost of a step to a store and of the cheapest step after it."""
    reached = (*order, relation)
    after = find_joinable(reached, remaining - {relation}, cost_model.join_graph)
    return cost_model.estimate_sent(order, relation) + min(
        (cost_model.estimate_sent(reached, following) for following in after), default=0.0
    )


def find_joinable(prefix: Iterable[JoinGraph], others: Iterable[JoinGraph], join: JoinGraph) -> list[JoinGraph]:
    """Return the relations connected with the prefix by a predicate; all, if only a cross product remains."""
    prefix_inputs = frozenset(name for relation in prefix for name in relation.relations)
    candidates = sorted(others, key=str)
    return [relation for relation in candidates if any(join.predicates_between(relation.relations, prefix_inputs))] or candidates


def find_probe_orders(
    relations: Iterable[JoinGraph], cost_model: JoinCostModel, search: OrderSearch = find_greedy_order
) -> dict[JoinGraph, RelationOrder]:
    """Return an order for each relation of an operator, found by the given search."""
    sorted_relations = sorted(relations, key=str)
    return {
        start: search(start, [other for other in sorted_relations if other != start], cost_model) for start in sorted_relations
    }
