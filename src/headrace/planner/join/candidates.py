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
from dataclasses import dataclass, field, replace
from itertools import count

from headrace.planner.join.cost import CardinalityModel, RelationOrder
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, ProbeOrder, SolverReport

STORAGE_WEIGHT = 1.0  # storing a row costs as much as probing with one
MAX_STEPS = 12_000  # of the orders of all queries, which share them equally
_MAX_QUERY_STEPS = 2_500  # of the orders of one query
_MIN_QUERY_STEPS = 100  # that a query may have, however many queries there are
_ROUNDING_FACTOR = 1 - 1e-9  # tolerates rounding when costs are compared
OrderTarget = tuple[JoinGraph, str]  # a join, and the starting input of an order that computes it


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
    was left out that could be part of an optimal choice. `stored_rows` are the rows of each store, in all at most `budget`, and
    `hop_costs` what each step of the orders of a query costs in addition, as a hop.
    """

    queries: tuple[JoinGraph, ...]
    steps: tuple[CandidateStep, ...]
    paths: tuple[tuple[int, ...], ...]
    last_steps: Mapping[OrderTarget, tuple[int, ...]]
    stores: tuple[PartitionedStore, ...]
    step_stores: tuple[int, ...]
    storage_costs: tuple[float, ...]
    is_complete: bool
    stored_rows: tuple[float, ...] = ()
    budget: float = math.inf
    hop_costs: Mapping[OrderTarget, float] = field(default_factory=dict)

    def price_hops(self, target: OrderTarget, ending: int) -> float:
        """Return what the hops of an order cost."""
        return self.hop_costs.get(target, 0.0) * len(self.paths[ending])

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
    max_steps: int = MAX_STEPS,
    budget: float = math.inf,
    hop_weight: float = 0.0,
) -> CandidateOrders:
    """Return the candidate orders of all queries and of all materializable joins (those in `materializable`, if given).

    Exact pruning (`prune`) never removes a candidate of an optimal choice. With one task, partitionings do not differ, so one is
    kept. With more, a step that sends copies to all partitions of a store is removed if the rows determine the partition of
    another store of that relation, and the copies saved are no fewer than the rows to keep that other store: moving the step, and
    all that follow it, to that store costs no more, even if the store is kept for this step alone.

    Restriction of large queries may remove such candidates. All queries together have about `max_steps` steps, each an equal
    share of them; a query that needs more is generated again under the next of `_RESTRICTIONS`, until it fits.
    """
    distinct_queries = tuple(dict.fromkeys(queries))
    query_graphs = [_QueryGraph.from_query(query) for query in distinct_queries]
    partitionings_by_relation = _find_graph_partitionings(query_graphs)
    if prune and tasks == 1:
        partitionings_by_relation = dict.fromkeys(partitionings_by_relation, (None,))
    forest = _CandidateForest(cardinalities, tasks, storage_weight, materializable, prune)
    forest.add_stores(partitionings_by_relation)
    share = max(_MIN_QUERY_STEPS, min(_MAX_QUERY_STEPS, max_steps // max(1, len(query_graphs))))
    for query_graph in query_graphs:
        forest.add_orders(query_graph, share if prune else math.inf)
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
        tuple(cardinalities.estimate_stored(store.relation) for store in stores),
        budget,
        _weigh_hops(distinct_queries, cardinalities, hop_weight) if hop_weight else {},
    )


def _weigh_hops(queries: Sequence[JoinGraph], cardinalities: CardinalityModel, weight: float) -> dict[OrderTarget, float]:
    """Return the cost of a hop of the rows of each input, so that one hop of all rows of all queries costs `weight`."""
    costs = {}
    for query in queries:
        shares = weigh_inputs(query, cardinalities)
        costs.update({(query, start): weight * share / len(queries) for start, share in shares.items()})
    return costs


def weigh_inputs(query: JoinGraph, cardinalities: CardinalityModel) -> dict[str, float]:
    """Return the fraction of the rows of a query that arrive at each of its inputs."""
    arrivals = {name: cardinalities.estimate_arrivals(input_relation(name)) for name in sorted(query.relations)}
    total = sum(arrivals.values()) or 1.0
    return {name: rows / total for name, rows in arrivals.items()}


@dataclass(frozen=True, slots=True)
class _QueryGraph:
    """The join graph of a query: inputs are bits, by name, and its connected parts are masks, small ones first.

    A condition over several inputs connects each two of them. Where no condition connects some inputs with the others, there must
    be a cross product, which may come at any step: each of them counts as connected with each of the others.
    """

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
            between = sum(bit_of[name] for name in predicate.relations)
            for name in predicate.relations:
                neighbours[bit_of[name]] |= between & ~bit_of[name]
        components = query.list_components()
        for component in components if len(components) > 1 else ():
            others = sum(bit for name, bit in bit_of.items() if name not in component)
            for name in component:
                neighbours[bit_of[name]] |= others
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
class _Restriction:
    """A restriction of the orders of a query.

    They visit parts of at most `part_size` inputs; of the prefixes that cover the same inputs, the `prefix_count` cheapest are
    extended; and each step has at most `store_count` stores of its relation to choose from.
    """

    part_size: float = math.inf
    prefix_count: float = math.inf
    store_count: float = math.inf


_RESTRICTIONS = (
    _Restriction(),
    _Restriction(math.inf, 8, 2),
    _Restriction(3, 8, 2),
    _Restriction(2, 8, 2),
    _Restriction(2, 2, 2),
    _Restriction(1, 8, 2),
    _Restriction(1, 1, 2),
    _Restriction(1, 1, 1),
)


class _TooManyStepsError(ValueError):
    """A query has more steps than its share."""


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

    def restrict_stores(self, count: float) -> _Extension:
        """Return the extension with at most `count` stores: the first that takes one copy, and the most useful of the others."""
        if len(self.stores) <= count:
            return self
        return replace(self, stores=tuple(sorted(self.stores, key=lambda entry: entry[2] > 1)[: int(count)]))


def _round_cost(cost: float) -> float:
    """Return a figure without its last digits.

    These depend on the order in which the same numbers are multiplied, which is the iteration order of a set: equal costs must be
    equal, or equal queries would not give equal plans.
    """
    return float(f"{cost:.12g}")


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The prefix of an order; `last_steps` has one step for each partitioning of its stores (the start, if there is no step).

    `costs` are those of all steps up to each of the last ones.
    """

    order: RelationOrder
    last_steps: tuple[int | str, ...]
    costs: tuple[float, ...]

    def select(self, positions: Sequence[int]) -> _Prefix:
        """Return the prefix with some of its last steps."""
        return _Prefix(self.order, tuple(self.last_steps[k] for k in positions), tuple(self.costs[k] for k in positions))


def _keep_cheapest(group: Sequence[_Prefix], count: float) -> Sequence[_Prefix]:
    """Return prefixes with, in all, the `count` cheapest last steps."""
    if sum(len(prefix.last_steps) for prefix in group) <= count:
        return group
    ranked = sorted((cost, k, j) for k, prefix in enumerate(group) for j, cost in enumerate(prefix.costs))[: int(count)]
    kept: dict[int, list[int]] = {}
    for _, k, j in ranked:
        kept.setdefault(k, []).append(j)
    return [
        replace(
            group[k], last_steps=tuple(group[k].last_steps[j] for j in chosen), costs=tuple(group[k].costs[j] for j in chosen)
        )
        for k, chosen in sorted(kept.items())
    ]


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
        """Add the orders of a query and of its parts: all of them, or as many as `max_steps` steps allow."""
        extensions = {covered: list(self._iter_extensions(query_graph, covered)) for covered in query_graph.parts}
        known_steps = len(self.steps)
        for restriction in _RESTRICTIONS:
            is_last = restriction is _RESTRICTIONS[-1]
            try:
                self._add_restricted_orders(
                    query_graph, extensions, restriction, math.inf if is_last else known_steps + max_steps
                )
            except _TooManyStepsError:
                self._drop_steps(known_steps)
                self.restricted_queries.add(query_graph.query)
            else:
                return

    def _drop_steps(self, count: int) -> None:
        """Drop all steps but the first `count`."""
        while len(self.steps) > count:
            step = self.steps.pop()
            self.paths.pop()
            self.step_stores.pop()
            self.step_numbers.popitem()
            target = (step.result, step.start)
            self.last_steps[target].pop()
            if not self.last_steps[target]:
                del self.last_steps[target]

    def _add_restricted_orders(
        self, query_graph: _QueryGraph, extensions: Mapping[int, Sequence[_Extension]], restriction: _Restriction, limit: float
    ) -> None:
        allowed = {
            covered: [
                extension.restrict_stores(restriction.store_count)
                for extension in following
                if extension.mask.bit_count() <= restriction.part_size
            ]
            for covered, following in extensions.items()
        }
        for start in query_graph.names:
            prefixes: dict[int, list[_Prefix]] = {covered: [] for covered in query_graph.parts}
            prefixes[1 << query_graph.names.index(start)].append(_Prefix((input_relation(start),), (start,), (0.0,)))
            # in order of size: all prefixes of a set are known when it is visited
            for covered, group in prefixes.items():
                if not allowed[covered]:
                    continue
                for prefix in _keep_cheapest(group, restriction.prefix_count):
                    sent = _round_cost(self.cardinalities.estimate_sent(prefix.order, query_graph.parts[covered]))
                    for extension in allowed[covered]:
                        pairs = self.cardinalities.estimate_pair_cost(prefix.order, extension.relation, query_graph.query)
                        extended = self._extend_prefix(start, prefix, extension, sent, _round_cost(pairs))
                        prefixes[covered | extension.mask].append(extended)
                        if len(self.steps) > limit:
                            raise _TooManyStepsError

    def _extend_prefix(self, start: str, prefix: _Prefix, extension: _Extension, sent: float, pairs: float) -> _Prefix:
        stores = extension.select_stores((self.task_count - 1) * sent) if self.prune else extension.stores
        heads, costs = [], []
        for last_step, cost in zip(prefix.last_steps, prefix.costs, strict=True):
            for number, store, copies in stores:
                heads.append(self._add_step(start, last_step, number, store, extension, copies * sent + pairs))
                costs.append(cost + copies * sent + pairs)
        return _Prefix((*prefix.order, extension.relation), tuple(heads), tuple(costs))

    def _iter_extensions(self, query_graph: _QueryGraph, covered: int) -> Iterator[_Extension]:
        for mask in query_graph.find_joinable(covered):
            relation, result = query_graph.parts[mask], query_graph.parts[covered | mask]
            if relation not in self.stores:
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


def find_choice(candidate_orders: CandidateOrders, strategy: JoinStrategy) -> OrderChoice | None:
    """Return a strategy as a choice; None if some of its orders are no candidates."""
    endings = {
        (target, candidate_orders.get_order(ending)): ending
        for target, last_steps in candidate_orders.last_steps.items()
        for ending in last_steps
    }
    choice: OrderChoice = {}
    for plan in (*strategy.query_plans, *strategy.materialized_plans):
        for order in plan.probe_orders if not plan.join_graph.is_input else ():
            ending = endings.get(((plan.join_graph, order.start), order))
            if ending is None:
                return None
            choice[plan.join_graph, order.start] = ending
    return choice


def price_choice(candidate_orders: CandidateOrders, choice: OrderChoice) -> tuple[float, float]:
    """Return the cost of a choice in rows sent to probe and rows sent to be stored; every step and store counts once."""
    steps, stores = collect_steps_and_stores(candidate_orders, choice)
    return sum(candidate_orders.steps[number].cost for number in sorted(steps)), sum(
        candidate_orders.storage_costs[number] for number in sorted(stores)
    )


def price_objective(candidate_orders: CandidateOrders, choice: OrderChoice) -> float:
    """Return what is minimized: rows sent to probe and to be stored, and weighted hops; infinite above the storage budget."""
    _, stores = collect_steps_and_stores(candidate_orders, choice)
    if candidate_orders.budget != math.inf and sum(candidate_orders.stored_rows[k] for k in stores) > candidate_orders.budget:
        return math.inf
    hops = sum(candidate_orders.price_hops(target, ending) for target, ending in choice.items())
    return sum(price_choice(candidate_orders, choice)) + hops


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
