"""Probe orders of one operator: the order in which rows of each relation visit the stores of the others, greedy or exhaustive.

Fewer rows in the first steps are not the only criterion: a store of many tasks receives as many copies of a row that does not
determine the partition, so a larger intermediate result may be cheaper. The greedy search therefore looks two steps ahead, at
rows and copies. Steps without a predicate are taken only if no other step remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.sharing.multiway.cost import Figures, Order, copies, step_costs
from headrace.sharing.multiway.relations import Attribute, Join

Partitioning = Mapping[Join, Attribute | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """A join and everything that its cost depends on. By default, a store has one task and no partition attribute."""

    join: Join
    figures: Figures
    tasks: Mapping[Join, int] = field(default_factory=dict)
    partitioning: Partitioning = field(default_factory=dict)

    def part(self, names: Iterable[str]) -> Join:
        """Return the subjoin over some inputs: the relation of a store of them."""
        return self.join.within(names)

    def inputs(self) -> tuple[Join, ...]:
        """Return the inputs as relations, by name."""
        return tuple(self.part({name}) for name in sorted(self.join.relations))

    def sent(self, prefix: Order, store: Join) -> float:
        """Return the number of rows of a prefix that are sent to a store, including all copies."""
        by, tasks = self.partitioning.get(store), self.tasks.get(store, 1)
        return self.figures.sent(prefix, self.join) * copies(store, by, prefix, self.join, tasks)

    def order_cost(self, order: Order) -> float:
        """Return the number of rows that an order sends in all its steps."""
        return sum(step_costs(order, self.join, self.figures, self.tasks, self.partitioning))


Search = Callable[[Join, Iterable[Join], Setting], Order]


def greedy_order(start: Join, others: Iterable[Join], cost_model: Setting) -> Order:
    """Return a greedy order for the rows of one relation: each step is the first of the cheapest two. Ties go by name."""
    order: Order = (start,)
    remaining = set(others)
    while remaining:
        costs = {
            relation: _two_steps(order, relation, remaining, cost_model)
            for relation in joinable(order, remaining, cost_model.join)
        }
        chosen = min(costs, key=lambda relation: (costs[relation], str(relation)))
        remaining.remove(chosen)
        order = (*order, chosen)
    return order


def _two_steps(order: Order, relation: Join, remaining: set[Join], cost_model: Setting) -> float:
    """Return the cost of a step to a store and of the cheapest step after it."""
    reached = (*order, relation)
    after = joinable(reached, remaining - {relation}, cost_model.join)
    return cost_model.sent(order, relation) + min((cost_model.sent(reached, following) for following in after), default=0.0)


def joinable(prefix: Iterable[Join], others: Iterable[Join], join: Join) -> list[Join]:
    """Return the relations connected with the prefix by a predicate; all, if only a cross product remains."""
    prefix_inputs = frozenset(name for relation in prefix for name in relation.relations)
    candidates = sorted(others, key=str)
    return [relation for relation in candidates if any(join.between(relation.relations, prefix_inputs))] or candidates


def every_order(start: Join, others: Iterable[Join], join: Join) -> Iterator[Order]:
    """Yield every order for the rows of one relation without avoidable cross products."""
    yield from _continued((start,), frozenset(others), join)


def _continued(order: Order, remaining: frozenset[Join], join: Join) -> Iterator[Order]:
    if not remaining:
        yield order
        return
    for relation in joinable(order, remaining, join):
        yield from _continued((*order, relation), remaining - {relation}, join)


def best_order(start: Join, others: Iterable[Join], cost_model: Setting) -> Order:
    """Return the cheapest of all orders. For few relations only: there are up to (n - 1)! orders."""
    return min(
        every_order(start, others, cost_model.join),
        key=lambda order: (cost_model.order_cost(order), [str(relation) for relation in order]),
    )


def probe_orders(relations: Iterable[Join], cost_model: Setting, search: Search = greedy_order) -> dict[Join, Order]:
    """Return an order for each relation of an operator, found by the given search."""
    sorted_relations = sorted(relations, key=str)
    return {
        start: search(start, [other for other in sorted_relations if other != start], cost_model) for start in sorted_relations
    }
