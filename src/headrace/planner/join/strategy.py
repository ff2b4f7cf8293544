"""Strategies, the results of the optimizer: a probe order for every query and input, and the joins materialized for them.

Equal prefixes of orders are executed once. `build_probe_trees` merges the orders: a tree for each input, whose nodes are visits
to stores and record which joins are complete there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation


@dataclass(frozen=True, slots=True)
class PartitionedStore:
    """A store of a relation: all its rows, partitioned by an attribute; without one, a row may lie in any partition."""

    relation: JoinGraph
    partitioned_by: Attribute | None = None

    def __str__(self) -> str:
        """Return the label of the store in drawings of probe trees."""
        return f"{self.relation}[{'' if self.partitioned_by is None else self.partitioned_by}]"


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """The stores that rows of an input visit, in order, until a join is complete."""

    start: str
    stores: tuple[PartitionedStore, ...]

    def __str__(self) -> str:
        """Return the order in angle brackets."""
        return f"⟨{', '.join([self.start, *map(str, self.stores)])}⟩"

    @property
    def covered_relations(self) -> frozenset[str]:
        """The inputs of the joined rows at the end of the order."""
        return frozenset({self.start}).union(*(store.relation.relations for store in self.stores))


@dataclass(frozen=True, slots=True)
class JoinProbePlan:
    """The plan of one join: a probe order for each of its inputs, by name."""

    join_graph: JoinGraph
    probe_orders: tuple[ProbeOrder, ...]

    def __post_init__(self) -> None:
        """Check that every input has one order that covers the complete join and visits no input twice."""
        if [order.start for order in self.probe_orders] != sorted(self.join_graph.relations):
            raise ValueError("a plan needs one probe order for each input of its join, in alphabetical order")
        for order in self.probe_orders:
            visited = 1 + sum(len(store.relation.relations) for store in order.stores)
            if order.covered_relations != self.join_graph.relations or visited != len(self.join_graph.relations):
                raise ValueError(f"the probe order {order} does not visit every other input of {self.join_graph} exactly once")

    @property
    def stores(self) -> tuple[PartitionedStore, ...]:
        """The visited stores, one entry for each visit."""
        return tuple(store for order in self.probe_orders for store in order.stores)

    def get_order(self, start: str) -> ProbeOrder:
        """Return the order of the rows of an input."""
        return next(order for order in self.probe_orders if order.start == start)


@dataclass(frozen=True, slots=True)
class SolverReport:
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
    variable_count: int = 0
    constraint_count: int = 0


@dataclass(frozen=True, slots=True)
class JoinStrategy:
    """Plans for all queries and for the joins materialized for them.

    `probe_cost` are the rows sent to probe, `storage_cost` the rows sent to be stored, with the weight of the optimizer; every
    step and store counts once, however many queries share it.
    """

    query_plans: tuple[JoinProbePlan, ...]
    materialized_plans: tuple[JoinProbePlan, ...]
    probe_cost: float
    storage_cost: float
    solver_report: SolverReport = field(compare=False)

    def __post_init__(self) -> None:
        """Check that every materialized join that is probed has a plan."""
        missing = {store.relation for store in self.stores if not store.relation.is_input} - {
            plan.join_graph for plan in self.materialized_plans
        }
        if missing:
            raise ValueError(f"no plan for the materialized join {', '.join(sorted(map(str, missing)))}, which is probed")

    @property
    def total_cost(self) -> float:
        """The objective: rows sent to probe or to be stored."""
        return self.probe_cost + self.storage_cost

    @property
    def stores(self) -> frozenset[PartitionedStore]:
        """All visited stores, which must be kept."""
        return frozenset(store for plan in (*self.query_plans, *self.materialized_plans) for store in plan.stores)

    def get_plan(self, join: JoinGraph) -> JoinProbePlan:
        """Return the plan of a query or of a materialized join."""
        return next(plan for plan in (*self.query_plans, *self.materialized_plans) if plan.join_graph == join)


@dataclass(frozen=True, slots=True)
class ProbeVisit:
    """A node of a probe tree: rows visit a store; joined with its rows, they form `result`.

    `is_query_result` says that they are results of the query `result`; `filled_stores` are the stores that they enter. Equal rows
    may also occur elsewhere in the tree, as intermediate results; they are emitted and stored in one place only.
    """

    store: PartitionedStore
    result: JoinGraph
    children: tuple[ProbeVisit, ...]
    is_query_result: bool
    filled_stores: tuple[PartitionedStore, ...]

    def walk(self) -> Iterator[ProbeVisit]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class ProbeTree:
    """All work for new rows of an input: the stores of the input that they enter, and the visits that they start with."""

    start: str
    filled_stores: tuple[PartitionedStore, ...]
    children: tuple[ProbeVisit, ...]

    def walk(self) -> Iterator[ProbeVisit]:
        """Yield all visits, parents first."""
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _ProbeTreeNode:
    children: dict[tuple[PartitionedStore, JoinGraph], _ProbeTreeNode] = field(default_factory=dict)
    completes_query: set[bool] = field(default_factory=set)  # True for a query, False for a materialized join


def build_probe_trees(strategy: JoinStrategy) -> tuple[ProbeTree, ...]:
    """Return the orders of a strategy, merged where their prefixes are equal; one tree for each input, by name."""
    roots: dict[str, _ProbeTreeNode] = {}
    for plan, is_query in (
        *((query_plan, True) for query_plan in strategy.query_plans),
        *((join_plan, False) for join_plan in strategy.materialized_plans),
    ):
        for order in plan.probe_orders:
            node, covered = roots.setdefault(order.start, _ProbeTreeNode()), frozenset({order.start})
            for store in order.stores:
                covered |= store.relation.relations
                node = node.children.setdefault((store, plan.join_graph.subgraph(covered)), _ProbeTreeNode())
            node.completes_query.add(is_query)
    stores = _group_by_relation(strategy.stores)
    trees = []
    for start, root in sorted(roots.items()):
        trees.append(ProbeTree(start, stores.get(input_relation(start), ()), _build_visits(root, stores)))
    return tuple(trees)


def _build_visits(node: _ProbeTreeNode, stores: dict[JoinGraph, tuple[PartitionedStore, ...]]) -> tuple[ProbeVisit, ...]:
    visits = []
    for (store, result), child in node.children.items():
        fills = stores.get(result, ()) if False in child.completes_query else ()
        visits.append(ProbeVisit(store, result, _build_visits(child, stores), True in child.completes_query, fills))
    return tuple(visits)


def _group_by_relation(stores: frozenset[PartitionedStore]) -> dict[JoinGraph, tuple[PartitionedStore, ...]]:
    stores_by_relation: dict[JoinGraph, tuple[PartitionedStore, ...]] = {}
    for store in sorted(stores, key=str):
        stores_by_relation[store.relation] = (*stores_by_relation.get(store.relation, ()), store)
    return stores_by_relation
