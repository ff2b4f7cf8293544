"""Orders of window joins, chosen for all queries together (AJoin: join reordering by iterative dynamic programming).

An order is found by dynamic programming over sets of inputs, a block of inputs at a time: for up to a block this is an
exhaustive search over left-deep trees. An order has as few steps without an equality as possible, regardless of cost, because
the selectivity of other conditions is assumed, not measured.

Queries that could share a join divide its cost, so each tends to begin with what others need, too. The search iterates: in the
first pass, queries that have no order yet count wherever they could share; those that have one count only for the steps on it. In
the following passes, each order is searched again beside the orders of all others, until none changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.planner.join.window_join_cost import (
    JoinPrefix,
    JoinTemplate,
    SelectedRows,
    StepLoad,
    StepLoads,
    WindowSizes,
    merge_loads,
    merge_rows,
)
from headrace.planner.join.window_join_groups import JoiningQuery, Order, PlanningEffort
from headrace.planner.join.window_join_plan import get_written_order

_MAX_PASSES = 3
_MAX_PARTNERS = 16  # classes that may share a step, of which the cost is divided

StepCost = Callable[[JoinPrefix], float]


@dataclass(frozen=True, slots=True, order=True)
class _RankedOrder:
    """An order, or a prefix of one: fewer cross products come first, then the lower cost."""

    cross_products: int
    cost: float
    order: Order


def find_best_order(template: JoinTemplate, step_cost: StepCost, block_inputs: int) -> Order:
    """Return the cheapest order by dynamic programming over sets of inputs, `block_inputs` inputs at a time."""
    if not template.is_reorderable:
        return get_written_order(template.plan)
    count = len(template.inputs)
    beginnings = [_RankedOrder(0, 0.0, (index,)) for index in range(count)]
    while True:
        size = len(beginnings[0].order)
        frontier = beginnings
        for _ in range(size, min(count, size + block_inputs - (1 if size == 1 else 0))):
            following: dict[int, _RankedOrder] = {}
            for ranked in frontier:
                for index in range(count):
                    if index not in ranked.order:
                        prefix = template.get_prefix((*ranked.order, index))
                        extended = _RankedOrder(prefix.cross_products, ranked.cost + step_cost(prefix), prefix.order)
                        following[prefix.state] = min(following.get(prefix.state, extended), extended)
            frontier = list(following.values())
        best = min(frontier)
        if len(best.order) == count:
            break
        beginnings = [best]
    written = get_written_order(template.plan)
    fewest = template.get_prefix(written).cross_products
    return best.order if best.cross_products <= fewest else written


def estimate_order_cost(template: JoinTemplate, order: Order, rows: Sequence[SelectedRows]) -> float:
    """Return the cost of an order for a query alone, in nanoseconds per second of event time."""
    return sum(p.estimate_work(template.make_load(p, rows)).nanoseconds for p in template.list_prefixes(order))


@dataclass(frozen=True, slots=True, eq=False)
class QueryClass:
    """Queries with one template that select about as many rows: they get the same order."""

    template: JoinTemplate
    queries: tuple[JoiningQuery, ...]
    rows: tuple[SelectedRows, ...]

    @staticmethod
    def of(queries: Sequence[JoiningQuery]) -> QueryClass:
        """Return the class of queries with one template."""
        template = queries[0].template
        rows = tuple(merge_rows(query.rows[index] for query in queries) for index in range(len(template.inputs)))
        return QueryClass(template, tuple(queries), rows)

    def charge_alone(self, effort: PlanningEffort) -> StepCost:
        """Return the cost of steps for this class alone."""
        return lambda prefix: effort.estimate_cost(prefix, self.make_load(prefix))

    def make_load(self, prefix: JoinPrefix) -> StepLoads:
        """Return the load of all queries of the class at one of its own steps."""
        return self.template.make_load(prefix, self.rows, len(self.queries))

    def make_load_at(self, prefix: JoinPrefix, inputs: Sequence[tuple[str, int]]) -> StepLoads:
        """Return the load at a step of another class that joins these inputs."""
        positions = [self.template.inputs.index(each) for each in inputs]
        rows = tuple(self.rows[position] for position in positions)
        sizes = tuple(self.template.windows.sizes[position] for position in positions)
        count = len(self.queries)
        joined = prefix.joined_selectivity * count
        reached = prefix.reached_selectivity * count
        for number, (rate, size, each) in enumerate(zip(prefix.rates, sizes, rows, strict=True)):
            mean = rate * size * each.total / count
            joined *= mean if number < len(rows) - 1 else 1.0
            reached *= mean
        return {WindowSizes(self.template.windows.step, sizes): StepLoad(rows, joined, reached)}


def choose_common_orders(classes: Sequence[QueryClass], block_inputs: int, effort: PlanningEffort) -> dict[QueryClass, Order]:
    """Return an order for each class, such that classes begin with common joins where this costs less in total."""
    search = _CommonSearch.over(classes, block_inputs, effort)
    orders: dict[QueryClass, Order] = {}
    ranking = sorted(classes, key=lambda c: (len(c.template.inputs), -len(c.queries), c.queries[0].id))
    for number in range(_MAX_PASSES):
        is_changed = False
        for query_class in ranking:
            if effort.is_exhausted:
                return orders
            search.withdraw(query_class)
            order = search.find_order(query_class, is_hopeful=number == 0)
            search.commit(query_class, order)
            is_changed |= orders.get(query_class) != order
            orders[query_class] = order
        if not is_changed:
            break
    return orders


def choose_own_orders(classes: Sequence[QueryClass], block_inputs: int, effort: PlanningEffort) -> dict[QueryClass, Order]:
    """Return the order of each class that is best for it alone."""
    orders = {}
    for query_class in classes:
        if effort.is_exhausted:
            break
        orders[query_class] = find_best_order(query_class.template, query_class.charge_alone(effort), block_inputs)
    return orders


@dataclass(frozen=True, slots=True, eq=False)
class _CommonSearch:
    """Orders that are chosen so far, by the steps on them, and the classes that have none, by the inputs that they join."""

    block_inputs: int
    effort: PlanningEffort
    by_inputs: Mapping[frozenset[tuple[str, int]], Sequence[QueryClass]]
    open: dict[QueryClass, None]
    committed: dict[int, dict[QueryClass, StepLoads]] = field(default_factory=dict)
    order_of: dict[QueryClass, Order] = field(default_factory=dict)

    @staticmethod
    def over(classes: Sequence[QueryClass], block_inputs: int, effort: PlanningEffort) -> _CommonSearch:
        by_inputs: dict[frozenset[tuple[str, int]], list[QueryClass]] = {}
        for query_class in classes:
            by_inputs.setdefault(frozenset(query_class.template.inputs), []).append(query_class)
        return _CommonSearch(block_inputs, effort, by_inputs, dict.fromkeys(classes))

    def find_order(self, query_class: QueryClass, *, is_hopeful: bool) -> Order:
        """Return the best order of a class beside the others; if `is_hopeful`, those without an order may follow it."""
        template, effort = query_class.template, self.effort
        partners: dict[frozenset[int], list[QueryClass]] = {}

        def charge(prefix: JoinPrefix) -> float:
            load = query_class.make_load(prefix)
            costs = [effort.estimate_cost(prefix, load)]
            committed = self.committed.get(prefix.path_id)
            if committed:
                others = _merge_all(committed.values())
                together = effort.estimate_cost(prefix, merge_loads(others, load))
                costs.append(together - effort.estimate_cost(prefix, others))
            if is_hopeful:
                among = frozenset(prefix.order)
                if among not in partners:
                    partners[among] = self._find_partners(query_class, among)
                if partners[among]:
                    inputs = [template.inputs[index] for index in prefix.order]
                    hoped = _merge_all([load, *(other.make_load_at(prefix, inputs) for other in partners[among])])
                    count = len(query_class.queries)
                    whole = count + sum(len(other.queries) for other in partners[among])
                    costs.append(effort.estimate_cost(prefix, hoped) * count / whole)
            return min(costs)

        return find_best_order(template, charge, self.block_inputs)

    def _find_partners(self, query_class: QueryClass, among: frozenset[int]) -> list[QueryClass]:
        """Return classes without an order that have the same join of these inputs."""
        template = query_class.template
        wanted, inputs = template.find_subjoin(among), {template.inputs[index] for index in among}
        found = []
        for names, classes in self.by_inputs.items():
            for other in classes if inputs <= names else ():
                if other is not query_class and other in self.open:
                    same = frozenset(index for index, each in enumerate(other.template.inputs) if each in inputs)
                    if other.template.find_subjoin(same) == wanted:
                        found.append(other)
                        if len(found) == _MAX_PARTNERS:
                            return found
        return found

    def withdraw(self, query_class: QueryClass) -> None:
        """Forget the order of a class."""
        self.open.pop(query_class, None)
        for prefix in query_class.template.list_prefixes(self.order_of.pop(query_class, ())):
            del self.committed[prefix.path_id][query_class]

    def commit(self, query_class: QueryClass, order: Order) -> None:
        """Remember the order of a class."""
        self.order_of[query_class] = order
        for prefix in query_class.template.list_prefixes(order):
            self.committed.setdefault(prefix.path_id, {})[query_class] = query_class.make_load(prefix)


def _merge_all(loads: Iterable[StepLoads]) -> StepLoads:
    merged: StepLoads = {}
    for load in loads:
        merged = merge_loads(merged, load)
    return merged
