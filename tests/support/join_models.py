"""Models and optimizers that tests compare those of the planner with: full histories, all orders, merged probe trees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from headrace.planner.join.candidates import (
    STORAGE_WEIGHT,
    _find_graph_partitionings,
    _QueryGraph,
    build_strategy,
    generate_candidates,
)
from headrace.planner.join.cost import CardinalityModel, RelationOrder, _iter_inputs
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate, input_relation
from headrace.planner.join.optimizer import DEFAULT_OBJECTIVE, Objective, optimize_jointly
from headrace.planner.join.strategy import JoinStrategy, PartitionedStore, SolverReport


@dataclass(frozen=True, slots=True)
class HistoryCardinality:
    """Relations of known sizes, over their complete history; a predicate without selectivity passes all pairs.

    Of the rows joined from j relations, one in j has the row of the starting relation as its latest. `last_only` counts only
    these; otherwise all rows count, whichever arrived last.
    """

    sizes: Mapping[str, float]
    selectivities: Mapping[JoinPredicate, float] = field(default_factory=dict)
    last_only: bool = True
    _known_rows: dict[JoinGraph, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the size of a relation: the product of sizes and selectivities."""
        rows = self._known_rows.get(relation)
        if rows is None:
            size = math.prod(self.sizes[name] for name in relation.relations)
            rows = size * math.prod(self.selectivities.get(predicate, 1.0) for predicate in relation.predicates)
            self._known_rows[relation] = rows
        return rows

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the size of a relation: each of its rows is computed and stored once."""
        return self.estimate_stored(relation)

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the total number of rows of the prefix whose latest row is of the first relation."""
        rows = self.estimate_stored(within.subgraph(_iter_inputs(prefix)))
        return rows / len(prefix) if self.last_only else rows

    def estimate_pair_cost(
        self,
        prefix: Sequence[JoinGraph],
        store: JoinGraph,
        within: JoinGraph,
    ) -> float:
        """Return 0: the model of complete histories counts rows that are sent."""
        return 0.0


def estimate_task_counts(
    relations: Iterable[JoinGraph], cardinalities: CardinalityModel, capacity: float
) -> dict[JoinGraph, int]:
    """Return the number of tasks that a store of each relation needs if one task holds `capacity` rows."""
    # sizes are products of fractions: round before the ceiling, or rounding errors add a task
    return {relation: max(1, math.ceil(round(cardinalities.estimate_stored(relation) / capacity, 6))) for relation in relations}


def list_intermediates(query: JoinGraph) -> tuple[JoinGraph, ...]:
    """Return the materializable joins of a query: connected proper subjoins of at least two inputs, small ones first."""
    return tuple(part for part in _QueryGraph.from_query(query).parts.values() if 1 < len(part.relations) < len(query.relations))


def enumerate_probe_orders(query: JoinGraph, start: str, *, use_intermediates: bool = True) -> Iterator[RelationOrder]:
    """Yield all probe orders for rows of an input: every step joins, and no input is visited twice (CLASH, Algorithm 4).

    With `use_intermediates`, a step may visit a materialized join instead of its inputs one by one.
    """
    query_graph = _QueryGraph.from_query(query)

    def extend(prefix: RelationOrder, covered: int) -> Iterator[RelationOrder]:
        if covered == query_graph.full_mask:
            yield prefix
        for mask in query_graph.find_joinable(covered):
            if use_intermediates or query_graph.parts[mask].is_input:
                yield from extend((*prefix, query_graph.parts[mask]), covered | mask)

    yield from extend((input_relation(start),), 1 << query_graph.names.index(start))


def find_partitionings(queries: Iterable[JoinGraph]) -> dict[JoinGraph, tuple[Attribute | None, ...]]:
    """Return the useful partitionings of the store of each input and of each materializable join.

    These are its attributes in equalities to other relations, in any query that contains it; without such attributes, rows may
    lie in any partition.
    """
    return _find_graph_partitionings(map(_QueryGraph.from_query, queries))


def enumerate_partitioned_stores(
    order: RelationOrder, partitionings_by_relation: Mapping[JoinGraph, tuple[Attribute | None, ...]]
) -> Iterator[tuple[PartitionedStore, ...]]:
    """Yield the stores that an order visits, in all combinations of their partitionings."""
    yield from product(
        *([PartitionedStore(relation, attribute) for attribute in partitionings_by_relation[relation]] for relation in order[1:])
    )


def optimize_greedily(
    queries: Sequence[JoinGraph], cardinalities: CardinalityModel, tasks: int, *, storage_weight: float = STORAGE_WEIGHT
) -> JoinStrategy:
    """Return the greedy strategy for queries."""
    candidate_orders = generate_candidates(queries, cardinalities, tasks, storage_weight=storage_weight)
    return build_strategy(candidate_orders, choose_greedily(candidate_orders), SolverReport("greedy", 1.0))


def optimize_sliding_joins(
    queries: Sequence[JoinGraph], cardinalities: CardinalityModel, tasks: int, objective: Objective = DEFAULT_OBJECTIVE
) -> JoinStrategy:
    """Return the cheapest strategy that is found for all queries together, by rows sent; see `optimize_jointly`."""
    strategies = optimize_jointly(queries, cardinalities, tasks, objective).strategies
    return min((strategies[name] for name in ("ilp", "greedy", "common") if name in strategies), key=lambda each: each.total_cost)


def make_equality(left: Attribute, right: Attribute) -> JoinPredicate:
    """Return the equality of two attributes."""
    first, second = sorted((left, right))
    return JoinPredicate((first.relation, second.relation), f"{first} = {second}", (first, second))


def make_theta_predicate(left: str, right: str, text: str) -> JoinPredicate:
    """Return a condition between two inputs that is not an equality."""
    first, second = sorted((left, right))
    return JoinPredicate((first, second), text)


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
