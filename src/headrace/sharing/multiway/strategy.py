"""Strategies, the results of the optimizer: a probe order for every query and input, and the joins materialized for them.

Equal prefixes of orders are executed once. `build_probe_trees` merges the orders: a tree for each input, whose nodes are visits
to stores and record which joins are complete there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.sharing.multiway.relations import Attribute, Join, input_relation


@dataclass(frozen=True, slots=True)
class Store:
    """A store of a relation: all its rows, partitioned by an attribute; without one, a row may lie in any partition."""

    relation: Join
    by: Attribute | None = None

    def __str__(self) -> str:
        """Return the label of the store in drawings of probe trees."""
        return f"{self.relation}[{'' if self.by is None else self.by}]"


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """The stores that rows of an input visit, in order, until a join is complete."""

    start: str
    stores: tuple[Store, ...]

    def __str__(self) -> str:
        """Return the order in angle brackets."""
        return f"⟨{', '.join([self.start, *map(str, self.stores)])}⟩"

    @property
    def covers(self) -> frozenset[str]:
        """The inputs of the joined rows at the end of the order."""
        return frozenset({self.start}).union(*(store.relation.relations for store in self.stores))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one join: a probe order for each of its inputs, by name."""

    join: Join
    orders: tuple[ProbeOrder, ...]

    def __post_init__(self) -> None:
        """Check that every input has one order that covers the complete join and visits no input twice."""
        if [order.start for order in self.orders] != sorted(self.join.relations):
            raise ValueError("a plan needs one probe order for each input of its join, in alphabetical order")
        for order in self.orders:
            visited = 1 + sum(len(store.relation.relations) for store in order.stores)
            if order.covers != self.join.relations or visited != len(self.join.relations):
                raise ValueError(f"the probe order {order} does not visit every other input of {self.join} exactly once")

    @property
    def stores(self) -> tuple[Store, ...]:
        """The visited stores, one entry for each visit."""
        return tuple(store for order in self.orders for store in order.stores)

    def order(self, start: str) -> ProbeOrder:
        """Return the order of the rows of an input."""
        return next(order for order in self.orders if order.start == start)


@dataclass(frozen=True, slots=True)
class Solved:
    """The report of the solver. `gap` is the largest fraction of the cost that a better solution might save; 1 if unknown.

    `status` is one of

    - "optimal": no solution is better by more than the gap;
    - "restricted": the same among the candidates, which are incomplete for large queries; the gap does not cover the others;
    - "time limit": the best solution found in time;
    - "greedy": no solution better than the greedy one was found in time, or none was searched for.
    """

    status: str
    gap: float
    seconds: float = 0.0
    variables: int = 0
    constraints: int = 0


@dataclass(frozen=True, slots=True)
class Strategy:
    """Plans for all queries and for the joins materialized for them.

    `probe_cost` are the rows sent to probe, `storage_cost` the rows sent to be stored, with the weight of the optimizer; every
    step and store counts once, however many queries share it.
    """

    queries: tuple[Plan, ...]
    kept: tuple[Plan, ...]
    probing: float
    storing: float
    solved: Solved = field(compare=False)

    def __post_init__(self) -> None:
        """Check that every materialized join that is probed has a plan."""
        missing = {store.relation for store in self.stores if not store.relation.is_input} - {plan.join for plan in self.kept}
        if missing:
            raise ValueError(f"no plan for the materialized join {', '.join(sorted(map(str, missing)))}, which is probed")

    @property
    def cost(self) -> float:
        """The objective: rows sent to probe or to be stored."""
        return self.probing + self.storing

    @property
    def stores(self) -> frozenset[Store]:
        """All visited stores, which must be kept."""
        return frozenset(store for plan in (*self.queries, *self.kept) for store in plan.stores)

    def plan(self, join: Join) -> Plan:
        """Return the plan of a query or of a materialized join."""
        return next(plan for plan in (*self.queries, *self.kept) if plan.join == join)


@dataclass(frozen=True, slots=True)
class Visit:
    """A node of a probe tree: rows visit a store; joined with its rows, they form `result`.

    `is_query_result` says that they are results of the query `result`; `filled_stores` are the stores that they enter. Equal rows
    may also occur elsewhere in the tree, as intermediate results; they are emitted and stored in one place only.
    """

    store: Store
    made: Join
    children: tuple[Visit, ...]
    answers: bool
    fills: tuple[Store, ...]

    def walk(self) -> Iterator[Visit]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class ProbeTree:
    """All work for new rows of an input: the stores of the input that they enter, and the visits that they start with."""

    start: str
    fills: tuple[Store, ...]
    children: tuple[Visit, ...]

    def walk(self) -> Iterator[Visit]:
        """Yield all visits, parents first."""
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _Growing:
    children: dict[tuple[Store, Join], _Growing] = field(default_factory=dict)
    ends: set[bool] = field(default_factory=set)  # True for a query, False for a materialized join


def probe_trees(strategy: Strategy) -> tuple[ProbeTree, ...]:
    """Return the orders of a strategy, merged where their prefixes are equal; one tree for each input, by name."""
    roots: dict[str, _Growing] = {}
    for plan, is_query in (
        *((query_plan, True) for query_plan in strategy.queries),
        *((join_plan, False) for join_plan in strategy.kept),
    ):
        for order in plan.orders:
            node, covered = roots.setdefault(order.start, _Growing()), frozenset({order.start})
            for store in order.stores:
                covered |= store.relation.relations
                node = node.children.setdefault((store, plan.join.within(covered)), _Growing())
            node.ends.add(is_query)
    stores = _by_relation(strategy.stores)
    trees = []
    for start, root in sorted(roots.items()):
        trees.append(ProbeTree(start, stores.get(input_relation(start), ()), _visits(root, stores)))
    return tuple(trees)


def _visits(node: _Growing, stores: dict[Join, tuple[Store, ...]]) -> tuple[Visit, ...]:
    visits = []
    for (store, result), child in node.children.items():
        fills = stores.get(result, ()) if False in child.ends else ()
        visits.append(Visit(store, result, _visits(child, stores), True in child.ends, fills))
    return tuple(visits)


def _by_relation(stores: frozenset[Store]) -> dict[Join, tuple[Store, ...]]:
    stores_by_relation: dict[Join, tuple[Store, ...]] = {}
    for store in sorted(stores, key=str):
        stores_by_relation[store.relation] = (*stores_by_relation.get(store.relation, ()), store)
    return stores_by_relation
