"""Candidates of the optimizer: joins worth materializing, probe orders that compute a join, and partitionings of stores.

All candidate orders of all queries form a forest: a tree for each starting input, a node for each *step*; the path from a root to
a node is an order, or a prefix of one. Two orders share a step where their prefixes are equal: the same starting input, the same
visited stores with the same partitioning, and the same predicates on the result. A node at which a query is complete ends an
order of that query; a node at which a materializable join is complete ends an order of that join. One traversal for each query
therefore finds the orders of its subjoins as well.

A choice has a probe order for every query and input, and for all materialized joins that these orders probe.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product

from headrace.planner.join.cost import CardinalityModel, RelationOrder
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, ProbeOrder, SolverReport

STORAGE_WEIGHT = 1.0  # storing a row costs as much as probing with one
MAX_STEPS = 2000  # of all orders of a query, without partitionings
MAX_PARTITIONINGS = 32  # of the stores of one order
_ROUNDING_FACTOR = 1 - 1e-9  # tolerates rounding when costs are compared
_SMALL_QUERY_INPUTS = 4  # queries of up to this many inputs are never restricted
OrderTarget = tuple[JoinGraph, str]  # a join, and the starting input of an order that computes it


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


def _find_graph_partitionings(query_graphs: Iterable[_QueryGraph]) -> dict[JoinGraph, tuple[Attribute | None, ...]]:
    attributes_by_part: dict[JoinGraph, set[Attribute]] = {}
    for query_graph in query_graphs:
        for mask, part in query_graph.parts.items():
            if mask != query_graph.full_mask:
                attributes = attributes_by_part.setdefault(part, set())
                attributes.update(_iter_outgoing_attributes(query_graph.query, part))
    return {part: tuple(sorted(attributes)) or (None,) for part, attributes in attributes_by_part.items()}


def _iter_outgoing_attributes(query: JoinGraph, part: JoinGraph) -> Iterator[Attribute]:
    for predicate in query.predicates:
        inside = [side for side in predicate.sides if side.relation in part.relations]
        if len(inside) == 1:
            yield from inside


def enumerate_partitioned_stores(
    order: RelationOrder, partitionings_by_relation: Mapping[JoinGraph, tuple[Attribute | None, ...]]
) -> Iterator[tuple[PartitionedStore, ...]]:
    """Yield the stores that an order visits, in all combinations of their partitionings."""
    yield from product(
        *([PartitionedStore(relation, attribute) for attribute in partitionings_by_relation[relation]] for relation in order[1:])
    )


@dataclass(frozen=True, slots=True)
class CandidateStep:
    """A probe step: rows of an input, joined in the previous steps, visit a store; the join with its rows is `result`.

    `previous` is the number of the previous step, `cost` the number of rows sent, including all copies.
    """

    start: str
    previous: int | None
    store: PartitionedStore
    result: JoinGraph
    cost: float


@dataclass(frozen=True, slots=True)
class CandidateOrders:
    """All steps of candidate orders and their costs; steps and stores are identified by number.

    `last_steps` maps a target to the last steps of its orders, `paths` a step to all steps from the start including itself,
    `step_stores` a step to the number of its store, and `storage_costs` a store to its cost. `is_complete` says that no candidate
    was left out that could be part of an optimal choice.
    """

    queries: tuple[JoinGraph, ...]
    steps: tuple[CandidateStep, ...]
    paths: tuple[tuple[int, ...], ...]
    last_steps: Mapping[OrderTarget, tuple[int, ...]]
    stores: tuple[PartitionedStore, ...]
    step_stores: tuple[int, ...]
    storage_costs: tuple[float, ...]
    is_complete: bool

    def get_order(self, ending: int) -> ProbeOrder:
        """Return the order with this last step."""
        path = [self.steps[number] for number in self.paths[ending]]
        return ProbeOrder(path[0].start, tuple(step.store for step in path))


def list_targets(join: JoinGraph) -> list[OrderTarget]:
    """Return the targets of a join: one probe order for each input, by name."""
    return [] if join.is_input else [(join, start) for start in sorted(join.relations)]


def generate_candidates(
    queries: Sequence[JoinGraph],
    cardinalities: CardinalityModel,
    tasks: int,
    *,
    storage_weight: float = STORAGE_WEIGHT,
    materializable: Container[JoinGraph] | None = None,
    prune: bool = True,
) -> CandidateOrders:
    """Return the candidate orders of all queries and of all materializable joins (those in `materializable`, if given).

    Exact pruning (`prune`) never removes a candidate of an optimal choice. With one task, partitionings do not differ, so one is
    kept. With more, a step that sends copies to all partitions of a store is removed if the rows determine the partition of
    another store of that relation, and the copies saved are no fewer than the rows to keep that other store: moving the step, and
    all that follow it, to that store costs no more, even if the store is kept for this step alone.

    Restriction of large queries may remove such candidates. Where orders have more than `MAX_STEPS` steps, from about six inputs
    on, they visit only subjoins up to the size that this number allows; if inputs alone are too many, only the cheapest prefix is
    extended of all prefixes that join the same inputs. There, and where the stores of an order have more than `MAX_PARTITIONINGS`
    partitionings, rows are copied to all partitions only if they do not determine one.
    """
    distinct_queries = tuple(dict.fromkeys(queries))
    for query in distinct_queries:
        if not query.is_connected():
            raise ValueError(
                f"the join of {query} is not connected: cross products are not supported, connect every input by a predicate"
            )
    query_graphs = [_QueryGraph.from_query(query) for query in distinct_queries]
    partitionings_by_relation = _find_graph_partitionings(query_graphs)
    if prune and tasks == 1:
        partitionings_by_relation = dict.fromkeys(partitionings_by_relation, (None,))
    forest = _CandidateForest(cardinalities, tasks, storage_weight, materializable, prune)
    forest.add_stores(partitionings_by_relation)
    for query_graph in query_graphs:
        forest.add_orders(query_graph, MAX_STEPS if prune else math.inf)
    endings = {target: tuple(last_steps) for target, last_steps in forest.last_steps.items()}
    stores, storing = tuple(forest.storage_costs), tuple(forest.storage_costs.values())
    return CandidateOrders(
        distinct_queries,
        tuple(forest.steps),
        tuple(forest.paths),
        endings,
        stores,
        tuple(forest.step_stores),
        storing,
        not forest.restricted_queries,
    )


@dataclass(frozen=True, slots=True)
class _QueryGraph:
    """The join graph of a query: inputs are bits, by name, and its connected parts are masks, small ones first."""

    query: JoinGraph
    names: tuple[str, ...]
    parts: dict[int, JoinGraph]
    neighbours: dict[int, int]

    @staticmethod
    def from_query(query: JoinGraph) -> _QueryGraph:
        names = tuple(sorted(query.relations))
        bit_of = {name: 1 << position for position, name in enumerate(names)}
        neighbours = dict.fromkeys(bit_of.values(), 0)
        for predicate in query.predicates:
            first, second = bit_of[predicate.relations[0]], bit_of[predicate.relations[1]]
            neighbours[first] |= second
            neighbours[second] |= first
        layer = list(neighbours)
        while layer:
            layer = _grow_connected_masks(layer, neighbours)
        parts = {mask: query.subgraph(name for name in names if bit_of[name] & mask) for mask in neighbours}
        return _QueryGraph(query, names, parts, neighbours)

    @property
    def full_mask(self) -> int:
        return (1 << len(self.names)) - 1

    def find_joinable(self, covered: int) -> list[int]:
        """Return the parts that are disjoint from the covered inputs and connected with them by a predicate."""
        border = self.neighbours[covered]
        return [mask for mask in self.parts if mask & border and not mask & covered]

    def count_steps(self, size: int) -> int:
        """Return the number of steps of all orders that visit parts of at most `size` inputs, without partitionings."""
        steps_after = dict.fromkeys(self.parts, 0)
        for covered in reversed(self.parts):
            steps_after[covered] = sum(
                1 + steps_after[covered | mask] for mask in self.find_joinable(covered) if mask.bit_count() <= size
            )
        return sum(steps_after[1 << position] for position in range(len(self.names)))

    def limit_part_size(self, max_steps: float) -> int:
        """Return the largest part size (at least 1) for which orders have at most `max_steps` steps."""
        input_count = len(self.names)
        if input_count <= _SMALL_QUERY_INPUTS:
            return input_count
        return next((size for size in range(input_count, 1, -1) if self.count_steps(size) <= max_steps), 1)


def _grow_connected_masks(layer: list[int], neighbours: dict[int, int]) -> list[int]:
    """Return the connected masks with one more input, and record their neighbours."""
    larger = []
    for mask in layer:
        border = neighbours[mask]
        while border:
            bit = border & -border
            border ^= bit
            if mask | bit not in neighbours:
                neighbours[mask | bit] = (neighbours[mask] | neighbours[bit]) & ~(mask | bit)
                larger.append(mask | bit)
    return larger


@dataclass(frozen=True, slots=True)
class _Extension:
    """A step that may follow wherever the same inputs are covered: the stores to visit, and the number of copies for each.

    Stores and results also have numbers, because step tables are looked up by them very often.
    """

    mask: int
    relation: JoinGraph
    result: JoinGraph
    result_number: int
    stores: tuple[tuple[int, PartitionedStore, int], ...]  # number, store, copies
    storage_cost: float  # of another store of the relation

    def select_stores(self, saved: float) -> Sequence[tuple[int, PartitionedStore, int]]:
        """Return the stores to consider if sending one copy instead of one per partition saves `saved` rows."""
        if saved < self.storage_cost * _ROUNDING_FACTOR:
            return self.stores
        return [entry for entry in self.stores if entry[2] == 1] or self.stores


def _round_cost(cost: float) -> float:
    """Return a figure without its last digits.

    These depend on the order in which the same numbers are multiplied, which is the iteration order of a set: equal costs must be
    equal, or equal queries would not give equal plans.
    """
    return float(f"{cost:.12g}")


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The prefix of an order; `last_steps` has one step for each partitioning of its stores (the start, if there is no step)."""

    order: RelationOrder
    last_steps: tuple[int | str, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class _CandidateForest:
    """The steps generated so far; `step_numbers` maps (previous step or start, store number, result number) to a step number.

    `restricted_queries` are the queries whose candidates are incomplete.
    """

    cardinalities: CardinalityModel
    task_count: int
    storage_weight: float
    materializable: Container[JoinGraph] | None
    prune: bool
    steps: list[CandidateStep] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    step_stores: list[int] = field(default_factory=list)
    last_steps: dict[OrderTarget, list[int]] = field(default_factory=dict)
    storage_costs: dict[PartitionedStore, float] = field(default_factory=dict)
    restricted_queries: set[JoinGraph] = field(default_factory=set)
    step_numbers: dict[tuple[int | str, int, int], int] = field(default_factory=dict)
    result_numbers: dict[JoinGraph, int] = field(default_factory=dict)
    stores: dict[JoinGraph, tuple[tuple[int, PartitionedStore], ...]] = field(default_factory=dict)

    def add_stores(self, partitionings_by_relation: Mapping[JoinGraph, tuple[Attribute | None, ...]]) -> None:
        """Add the stores of each relation, one for each partitioning."""
        store_numbers = count()
        for relation, attributes in partitionings_by_relation.items():
            if relation.is_input or self.materializable is None or relation in self.materializable:
                cost = _round_cost(self.storage_weight * self.cardinalities.estimate_arrivals(relation))
                self.stores[relation] = tuple(
                    (next(store_numbers), PartitionedStore(relation, attribute)) for attribute in attributes
                )
                self.storage_costs.update((store, cost) for _, store in self.stores[relation])

    def add_orders(self, query_graph: _QueryGraph, max_steps: float) -> None:
        """Add the orders of a query and of its parts, with at most `max_steps` steps if a restriction achieves that."""
        size = query_graph.limit_part_size(max_steps)
        if size < len(query_graph.names):
            self.restricted_queries.add(query_graph.query)
        extensions = {covered: list(self._iter_extensions(query_graph, covered, size)) for covered in query_graph.parts}
        cheapest_only = size == 1 and query_graph.count_steps(size) > max_steps
        for start in query_graph.names:
            self._add_orders_from(start, query_graph, extensions, cheapest_only)

    def _add_orders_from(
        self, start: str, query_graph: _QueryGraph, extensions: Mapping[int, Sequence[_Extension]], cheapest_only: bool
    ) -> None:
        prefixes: dict[int, list[_Prefix]] = {covered: [] for covered in query_graph.parts}
        prefixes[1 << query_graph.names.index(start)].append(_Prefix((input_relation(start),), (start,), 0.0))
        # in order of size: all prefixes of a set are known when it is visited
        for covered, group in prefixes.items():
            for prefix in [min(group, key=lambda each: each.cost)] if cheapest_only and group else group:
                sent = (
                    _round_cost(self.cardinalities.estimate_sent(prefix.order, query_graph.parts[covered]))
                    if extensions[covered]
                    else 0.0
                )
                for extension in extensions[covered]:
                    prefixes[covered | extension.mask].append(
                        self._extend_prefix(start, query_graph.query, prefix, extension, sent)
                    )

    def _extend_prefix(self, start: str, query: JoinGraph, prefix: _Prefix, extension: _Extension, sent: float) -> _Prefix:
        stores = self._select_stores(query, prefix, extension, sent)
        heads = tuple(
            self._add_step(start, last_step, number, store, extension, copies * sent)
            for last_step in prefix.last_steps
            for number, store, copies in stores
        )
        cost = prefix.cost + sent * min(copies for _, _, copies in stores)
        return _Prefix((*prefix.order, extension.relation), heads, cost)

    def _select_stores(
        self, query: JoinGraph, prefix: _Prefix, extension: _Extension, sent: float
    ) -> Sequence[tuple[int, PartitionedStore, int]]:
        if not self.prune:
            return extension.stores
        stores = extension.select_stores((self.task_count - 1) * sent)
        if len(prefix.last_steps) * len(stores) > (1 if query in self.restricted_queries else MAX_PARTITIONINGS):
            self.restricted_queries.add(query)
            return extension.select_stores(math.inf)
        return stores

    def _iter_extensions(self, query_graph: _QueryGraph, covered: int, size: int) -> Iterator[_Extension]:
        for mask in query_graph.find_joinable(covered):
            relation, result = query_graph.parts[mask], query_graph.parts[covered | mask]
            if mask.bit_count() > size or relation not in self.stores:
                continue
            known_attributes = {
                side
                for predicate in query_graph.query.predicates_between(query_graph.parts[covered].relations, relation.relations)
                for side in predicate.sides
            }
            stores = tuple(
                (number, store, 1 if self.task_count == 1 or store.partitioned_by in known_attributes else self.task_count)
                for number, store in self.stores[relation]
            )
            number = self.result_numbers.setdefault(result, len(self.result_numbers))
            yield _Extension(mask, relation, result, number, stores, self.storage_costs[stores[0][1]])

    def _add_step(
        self, start: str, last_step: int | str, store_number: int, store: PartitionedStore, extension: _Extension, cost: float
    ) -> int:
        key = (last_step, store_number, extension.result_number)
        number = self.step_numbers.get(key)
        if number is None:
            number = self.step_numbers[key] = len(self.steps)
            previous = last_step if isinstance(last_step, int) else None
            self.steps.append(CandidateStep(start, previous, store, extension.result, cost))
            self.step_stores.append(store_number)
            self.paths.append((number,) if previous is None else (*self.paths[previous], number))
            self.last_steps.setdefault((extension.result, start), []).append(number)
        return number


OrderChoice = dict[OrderTarget, int]  # the last step of the chosen order


def prune_choice(candidate_orders: CandidateOrders, choice: OrderChoice) -> OrderChoice:
    """Return the part of a complete choice that queries need, directly or for the materialized joins that they probe."""
    needed_orders: OrderChoice = {}
    pending = [target for query in candidate_orders.queries for target in list_targets(query)]
    while pending:
        target = pending.pop()
        if target not in needed_orders:
            needed_orders[target] = choice[target]
            for number in candidate_orders.paths[choice[target]]:
                pending.extend(list_targets(candidate_orders.steps[number].store.relation))
    return needed_orders


def collect_steps_and_stores(candidate_orders: CandidateOrders, choice: OrderChoice) -> tuple[set[int], set[int]]:
    """Return the numbers of the steps and of the stores that a choice uses."""
    steps = {number for ending in choice.values() for number in candidate_orders.paths[ending]}
    return steps, {candidate_orders.step_stores[number] for number in steps}


def price_choice(candidate_orders: CandidateOrders, choice: OrderChoice) -> tuple[float, float]:
    """Return the cost of a choice in rows sent to probe and rows sent to be stored; every step and store counts once."""
    steps, stores = collect_steps_and_stores(candidate_orders, choice)
    return sum(candidate_orders.steps[number].cost for number in sorted(steps)), sum(
        candidate_orders.storage_costs[number] for number in sorted(stores)
    )


def build_strategy(candidate_orders: CandidateOrders, choice: OrderChoice, solved: SolverReport) -> JoinStrategy:
    """Return a choice as a strategy, without unused orders."""
    used_orders = prune_choice(candidate_orders, choice)
    _, stores = collect_steps_and_stores(candidate_orders, used_orders)
    materialized = {
        candidate_orders.stores[number].relation: None
        for number in sorted(stores)
        if not candidate_orders.stores[number].relation.is_input
    }
    queries = tuple(_build_probe_plan(candidate_orders, query, used_orders) for query in candidate_orders.queries)
    return JoinStrategy(
        queries,
        tuple(_build_probe_plan(candidate_orders, join, used_orders) for join in materialized),
        *price_choice(candidate_orders, used_orders),
        solved,
    )


def _build_probe_plan(candidate_orders: CandidateOrders, join: JoinGraph, choice: OrderChoice) -> JoinProbePlan:
    if join.is_input:
        return JoinProbePlan(join, tuple(ProbeOrder(name, ()) for name in join.relations))
    return JoinProbePlan(join, tuple(candidate_orders.get_order(choice[target]) for target in list_targets(join)))
