"""In which order rows of each relation of an operator visit the stores of the others: greedily, or by trying all orders.

Fewer rows in the first steps are not all that counts: a store of many tasks that a row cannot choose among gets as many copies
of it, so a larger intermediate result may be the cheaper one. The greedy search therefore looks two steps ahead, at rows and
copies. Steps without a predicate are taken only where nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.sharing.multiway.cost import Figures, Order, copies, step_costs
from headrace.sharing.multiway.relations import Attribute, Join

Partitioning = Mapping[Join, Attribute | None]


@dataclass(frozen=True, slots=True)
class Setting:
    """A join, and all that decides what working it off costs. A store has one task and no attribute, unless told otherwise."""

    join: Join
    figures: Figures
    tasks: Mapping[Join, int] = field(default_factory=dict)
    partitioning: Partitioning = field(default_factory=dict)

    def part(self, names: Iterable[str]) -> Join:
        """Return the part of the join over some inputs: the relation that a store of them has."""
        return self.join.within(names)

    def inputs(self) -> tuple[Join, ...]:
        """Return the inputs as relations, by name."""
        return tuple(self.part({name}) for name in sorted(self.join.relations))

    def sent(self, prefix: Order, store: Join) -> float:
        """Return how many rows of a prefix go to a store, all copies counted."""
        by, tasks = self.partitioning.get(store), self.tasks.get(store, 1)
        return self.figures.sent(prefix, self.join) * copies(store, by, prefix, self.join, tasks)

    def order_cost(self, order: Order) -> float:
        """Return how many rows an order sends in all its steps."""
        return sum(step_costs(order, self.join, self.figures, self.tasks, self.partitioning))


Search = Callable[[Join, Iterable[Join], Setting], Order]


def greedy_order(start: Join, others: Iterable[Join], setting: Setting) -> Order:
    """Return an order for the rows of one relation: each step is the first of the cheapest two. Of equals, the first by name."""
    order: Order = (start,)
    left = set(others)
    while left:
        costs = {one: _two_steps(order, one, left, setting) for one in joinable(order, left, setting.join)}
        chosen = min(costs, key=lambda one: (costs[one], str(one)))
        left.remove(chosen)
        order = (*order, chosen)
    return order


def _two_steps(order: Order, one: Join, left: set[Join], setting: Setting) -> float:
    """Return the cost of going on to a store and from there to that which is then the cheapest."""
    reached = (*order, one)
    after = joinable(reached, left - {one}, setting.join)
    return setting.sent(order, one) + min((setting.sent(reached, then) for then in after), default=0.0)


def joinable(prefix: Iterable[Join], others: Iterable[Join], join: Join) -> list[Join]:
    """Return those that a predicate ties to the prefix; all, where there is none and a cross product cannot be avoided."""
    known = frozenset(name for one in prefix for name in one.relations)
    candidates = sorted(others, key=str)
    return [one for one in candidates if any(join.between(one.relations, known))] or candidates


def every_order(start: Join, others: Iterable[Join], join: Join) -> Iterator[Order]:
    """Yield every order for the rows of one relation that has no avoidable cross product."""
    yield from _continued((start,), frozenset(others), join)


def _continued(order: Order, left: frozenset[Join], join: Join) -> Iterator[Order]:
    if not left:
        yield order
        return
    for one in joinable(order, left, join):
        yield from _continued((*order, one), left - {one}, join)


def best_order(start: Join, others: Iterable[Join], setting: Setting) -> Order:
    """Return the cheapest of all orders. For few relations: there are up to (n - 1)! of them."""
    return min(
        every_order(start, others, setting.join), key=lambda order: (setting.order_cost(order), [str(one) for one in order])
    )


def probe_orders(relations: Iterable[Join], setting: Setting, search: Search = greedy_order) -> dict[Join, Order]:
    """Return an order for each relation of an operator, found by the given search."""
    among = sorted(relations, key=str)
    return {start: search(start, [one for one in among if one != start], setting) for start in among}
