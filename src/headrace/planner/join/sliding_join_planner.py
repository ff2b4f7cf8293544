"""Planner of sliding joins: from chosen probe orders to an executable plan, and from one plan to the next at run time.

A change of orders moves no stored rows. A store with a different partitioning keeps its rows until they expire; rows probe the
old store for partners from before the change, the new one for those after it. A join materialized from a batch on contains the
results with at least one row of that batch or later; for partners that are all older, rows probe the stores of its inputs, as
before:

    R ──▶ S⋈T                          since batch 7
    R ──▶ S (before 7) ──▶ T (before 7)    until the last of those rows expires

Until the optimizer runs, a new query gets initial probe orders: along equalities, with the partitioning of existing stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from headrace.model.expression import Expression
from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.normalized_join import NormalizedJoin, split_equality, to_attribute
from headrace.planner.join.sliding_join_plan import (
    OrdersByRelation,
    ProbeOrderChoice,
    ProbeRouting,
    ProbeStep,
    ProbeTarget,
    RoutingKind,
    SlidingJoinPlan,
    StoreFeed,
    StoreSpec,
    UnmatchedStep,
)


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


_LOCAL, _BROADCAST = ProbeRouting(RoutingKind.LOCAL), ProbeRouting(RoutingKind.BROADCAST)


@dataclass(frozen=True, slots=True)
class _StoreVisit:
    """A visit to a store, restricted to rows stored before a batch if `before_batch` is set."""

    store_number: int
    before_batch: int | None


@dataclass(frozen=True, slots=True)
class _ProbeNode:
    """A probe under construction."""

    visit: _StoreVisit
    keys: tuple[tuple[Expression, Expression], ...]
    covered_relations: frozenset[str]
    query_ids: set[int] = field(default_factory=set)
    completed_queries: set[int] = field(default_factory=set)
    fed_stores: set[int] = field(default_factory=set)
    children: dict[object, _ProbeNode] = field(default_factory=dict)


def plan_sliding_joins(
    queries: Sequence[NormalizedJoin],
    choice: ProbeOrderChoice,
    batch: int,
    partitions: int,
    first_batches: Mapping[int, int],
    previous: SlidingJoinPlan | None = None,
    oldest_batches: Mapping[int, int] | None = None,
) -> SlidingJoinPlan:
    """Return the plan that is valid from a batch on.

    `first_batches` maps queries to their first batch; `oldest_batches` maps each store of the previous plan that still holds rows
    to the batch of the oldest.
    """
    first_number = previous.next_store_number if previous is not None else 0
    keys = {
        to_attribute(side): side
        for query in queries
        for condition in query.conditions
        for side in split_equality(condition) or ()
    }
    ranks = _rank_relations(queries, choice)
    return _SlidingJoinPlanner(
        queries, choice, batch, partitions, first_batches, previous, oldest_batches or {}, keys, ranks, count(first_number)
    ).plan()


@dataclass(frozen=True, slots=True)
class _SlidingJoinPlanner:
    queries: Sequence[NormalizedJoin]
    choice: ProbeOrderChoice
    batch: int
    partitions: int
    first_batches: Mapping[int, int]
    previous: SlidingJoinPlan | None
    oldest_batches: Mapping[int, int]
    key_expressions: Mapping[Attribute, Expression]
    ranked_relations: tuple[str, ...]
    store_numbers: Iterator[int]  # unused store numbers; never reused
    stores: dict[int, StoreSpec] = field(default_factory=dict)
    number_by_target: dict[ProbeTarget, int] = field(default_factory=dict)
    used_since: dict[int, dict[int, int]] = field(default_factory=dict)

    def plan(self) -> SlidingJoinPlan:
        self._plan_stores()
        probe_trees = {name: self._build_probe_tree(name) for name in self.ranked_relations}
        levels = _LevelAssigner(self)
        roots = levels.build_probes(probe_trees)
        unmatched_steps = levels.build_unmatched_steps(self._find_unmatched_probes())
        stores = tuple(spec for spec in self.stores.values() if spec.until_batch is None or spec.relation.is_input)
        streams = {name: join_input.stream for query in self.queries for name, join_input in query.inputs.items()}
        uses = {number: dict(sorted(batches.items())) for number, batches in self.used_since.items()}
        probes = [probe for root_probes in roots.values() for root in root_probes for probe in root.walk()]
        levels_used = [probe.level for probe in probes] + [feed.level for probe in probes for feed in probe.feeds]
        last = max([0, *levels_used, *(step.collect_level for step in unmatched_steps)])
        return SlidingJoinPlan(
            tuple(self.queries),
            self.ranked_relations,
            streams,
            stores,
            roots,
            uses,
            last,
            next(self.store_numbers),
            self.choice,
            unmatched_steps,
        )

    # --- stores -------------------------------------------------------------------------------------------------------

    def _plan_stores(self) -> None:
        """Keep the stores that orders visit, create new ones, and stop filling the others."""
        wanted = dict.fromkeys(target for orders in self._iter_all_orders() for order in orders.values() for target in order)
        stored_relations = {target.relation for target in wanted}
        previous_attributes = (
            {spec.relation: spec.partitioned_by for spec in self.previous.stores if spec.until_batch is None}
            if self.previous is not None
            else {}
        )
        for name in self.ranked_relations:  # every input needs a store, even without a probe
            relation = input_relation(name)
            if relation not in stored_relations:
                by = previous_attributes.get(relation)
                wanted[ProbeTarget(relation, by if by in self.key_expressions else None)] = None
        for old in self.previous.stores if self.previous is not None else ():
            target = ProbeTarget(old.relation, old.partitioned_by)
            if old.until_batch is None and target in wanted:
                self.stores[old.number], self.number_by_target[target] = old, old.number
            elif old.number in self.oldest_batches and old.relation.relations <= set(self.ranked_relations):
                self.stores[old.number] = replace(old, until_batch=self.batch if old.until_batch is None else old.until_batch)
        for target in wanted:
            if target not in self.number_by_target:
                key = None if target.partitioned_by is None else self.key_expressions[target.partitioned_by]
                self.number_by_target[target] = number = next(self.store_numbers)
                self.stores[number] = StoreSpec(number, target.relation, target.partitioned_by, key, self.batch)
        previous_uses = self.previous.used_since if self.previous is not None else {}
        for query, orders in self.choice.queries.items():
            for target in self._find_materialized_targets(orders):
                number = self.number_by_target[target]
                self.used_since.setdefault(number, {})[query] = previous_uses.get(number, {}).get(query, self.batch)

    def _iter_all_orders(self) -> Iterator[OrdersByRelation]:
        yield from self.choice.queries.values()
        for relation in self._find_materialized_joins():
            yield self.choice.materialized[relation]

    def _find_materialized_joins(self) -> dict[JoinGraph, None]:
        """Return the materialized joins: those in orders of queries, and in orders that compute such joins."""
        joins: dict[JoinGraph, None] = {}
        pending = list(self.choice.queries.values())
        while pending:
            for order in pending.pop().values():
                for target in order:
                    if not target.relation.is_input and target.relation not in joins:
                        joins[target.relation] = None
                        pending.append(self.choice.materialized[target.relation])
        return joins

    def _find_materialized_targets(self, orders: OrdersByRelation) -> dict[ProbeTarget, None]:
        """Return the stores of materialized joins that a query needs, including those that compute others."""
        targets: dict[ProbeTarget, None] = {}
        pending = [orders]
        while pending:
            for order in pending.pop().values():
                for target in order:
                    if not target.relation.is_input and target not in targets:
                        targets[target] = None
                        pending.append(self.choice.materialized[target.relation])
        return targets

    # --- routes -------------------------------------------------------------------------------------------------------

    def _build_probe_tree(self, start: str) -> dict[object, _ProbeNode]:
        """Return the tree of all probe paths of the rows of a relation."""
        roots: dict[object, _ProbeNode] = {}
        for query_id, orders in self.choice.queries.items():
            if start in orders and self._get_query(query_id).emits_matches:
                for visits in self._expand_order(start, orders[start], query_id):
                    self._insert_path(roots, start, visits, self._get_query(query_id).join_graph, query_id).completed_queries.add(
                        query_id
                    )
        for store, query_ids in self.used_since.items():
            relation = self.stores[store].relation
            if start in relation.relations:
                for query_id in query_ids:
                    for visits in self._expand_order(start, self.choice.materialized[relation][start], query_id):
                        self._insert_path(roots, start, visits, relation, query_id).fed_stores.add(store)
        return roots

    def _find_unmatched_probes(self) -> dict[tuple[str, _StoreVisit], dict[object, _ProbeNode]]:
        """Return the probes by which rows of outer relations look for partners, by the rows of a store that are looked up."""
        steps: dict[tuple[str, _StoreVisit], dict[object, _ProbeNode]] = {}
        for query in self.queries:
            for relation in query.outer_relations:
                partner, orders = query.get_partner(relation), self.choice.queries[query.id]
                (to_partner,), (to_rows,) = orders[relation], orders[partner]
                for (rows_visit,) in self._iter_paths(to_rows, query.id, set()):
                    for visits in self._iter_paths(to_partner, query.id, {relation}):
                        probes = steps.setdefault((relation, rows_visit), {})
                        self._insert_path(probes, relation, visits, query.join_graph, query.id)
        return steps

    def _get_query(self, query_id: int) -> NormalizedJoin:
        return next(query for query in self.queries if query.id == query_id)

    def _insert_path(
        self, roots: dict[object, _ProbeNode], start: str, visits: Sequence[_StoreVisit], join: JoinGraph, query_id: int
    ) -> _ProbeNode:
        """Insert a path into the tree of probes and return its last node."""
        children, covered, node = roots, frozenset({start}), None
        for visit in visits:
            relation = self.stores[visit.store_number].relation.relations
            keys = self._find_equalities(join, covered, relation)
            covered |= relation
            node = children.setdefault((visit, keys), _ProbeNode(visit, keys, covered))
            node.query_ids.add(query_id)
            children = node.children
        assert node is not None
        return node

    def _find_equalities(
        self, join: JoinGraph, covered: frozenset[str], stored: frozenset[str]
    ) -> tuple[tuple[Expression, Expression], ...]:
        equalities = []
        for predicate in sorted(join.predicates_between(covered, stored)):
            if predicate.sides:
                inside, outside = sorted(predicate.sides, key=lambda side: side.relation not in covered)
                equalities.append((self.key_expressions[inside], self.key_expressions[outside]))
        return tuple(equalities)

    def _expand_order(self, start: str, order: Sequence[ProbeTarget], query_id: int) -> Iterator[tuple[_StoreVisit, ...]]:
        """Yield the paths of an order: one, or several while the query still needs stores from before a change."""
        paths: list[tuple[_StoreVisit, ...]] = [()]
        covered = {start}
        for target in order:
            continuations = list(self._iter_paths(target, query_id, covered))
            paths = [(*path, *continuation) for path in paths for continuation in continuations]
            covered |= target.relation.relations
        yield from paths

    def _iter_paths(self, target: ProbeTarget, query_id: int, covered: set[str]) -> Iterator[tuple[_StoreVisit, ...]]:
        """Yield the paths to the partners of a relation; together they reach every partner exactly once."""
        number = self.number_by_target[target]
        yield (_StoreVisit(number, None),)
        if target.relation.is_input:
            yield from ((visit,) for visit in self._iter_older_visits(number, query_id, None))
            return
        since = self.used_since[number][query_id]
        if since <= self.first_batches[query_id] or not self._has_older_rows(target.relation, since):
            return
        paths: list[tuple[_StoreVisit, ...]] = [()]
        for name in self._order_connected(target.relation, self._get_query(query_id).join_graph, covered):
            visits = list(self._iter_older_visits(self._get_filled_store(name), query_id, since))
            paths = [(*path, visit) for path in paths for visit in visits]
        yield from paths

    def _has_older_rows(self, relation: JoinGraph, since: int) -> bool:
        """Return whether every input of a join still has rows from before a batch."""
        oldest = dict.fromkeys(relation.relations, self.batch)
        for spec in self.stores.values():
            if spec.relation.is_input and spec.relation.relations <= relation.relations:
                name = min(spec.relation.relations)
                oldest[name] = min(oldest[name], self.oldest_batches.get(spec.number, self.batch))
        return all(batch < since for batch in oldest.values())

    def _iter_older_visits(self, number: int, query_id: int, before: int | None) -> Iterator[_StoreVisit]:
        """Yield the visits to rows of an input that were stored before a batch, or before its store was created."""
        current = self.stores[number]
        limit = current.from_batch
        if before is not None:
            if current.from_batch < before:
                yield _StoreVisit(number, before)
            limit = min(current.from_batch, before)
        others = [spec for spec in self.stores.values() if spec.relation == current.relation and spec.number != number]
        while self.first_batches[query_id] < limit:
            older = [spec for spec in others if spec.from_batch < limit]
            adjoining = [spec for spec in older if spec.until_batch is None or spec.until_batch >= limit]
            if adjoining:  # of the stores that were filled until then, the one that reaches back furthest
                chosen = min(adjoining, key=lambda spec: (spec.from_batch, spec.number))
                if self.oldest_batches.get(chosen.number, limit) < limit:
                    yield _StoreVisit(chosen.number, limit)
                limit = chosen.from_batch
            elif older:
                limit = max(spec.until_batch for spec in older if spec.until_batch is not None)
            else:
                break

    def _get_filled_store(self, relation: str) -> int:
        """Return the number of a store of an input that is being filled."""
        return next(number for target, number in self.number_by_target.items() if target.relation == input_relation(relation))

    def _order_connected(self, relation: JoinGraph, within: JoinGraph, covered: set[str]) -> list[str]:
        """Return the inputs of a join in an order in which each is connected to those before it, where possible."""
        order: list[str] = []
        while len(order) < len(relation.relations):
            remaining = sorted(relation.relations - set(order))
            reached = covered | set(order)
            order.append(next((name for name in remaining if any(within.predicates_between(reached, [name]))), remaining[0]))
        return order


@dataclass(frozen=True, slots=True)
class _LevelAssigner:
    """Assigns levels and routing to probes: a probe waits for the rows of materialized joins that the same batch produces.

    `ready_levels` maps (store of a materialized join, start) to the level from which the rows that the start produces are stored.
    """

    planner: _SlidingJoinPlanner
    ready_levels: dict[tuple[int, str], int] = field(default_factory=dict)
    probe_numbers: Iterator[int] = field(default_factory=count)

    def build_probes(self, probe_trees: Mapping[str, dict[object, _ProbeNode]]) -> dict[str, tuple[ProbeStep, ...]]:
        """Return the probes of each relation, in the order of ranks: a relation sees the rows that earlier ones produce."""
        return {
            name: tuple(self._build_probe(name, node, None, frozenset()) for node in probe_trees[name].values())
            for name in self.planner.ranked_relations
        }

    def _build_probe(
        self, start: str, node: _ProbeNode, parent: ProbeStep | None, partition_values: frozenset[Expression]
    ) -> ProbeStep:
        store = self.planner.stores[node.visit.store_number]
        edge = self._route_new_rows(start, node) if parent is None else self._route_joined_rows(node, partition_values)
        arrives = 0 if parent is None else parent.level + (edge.kind is not RoutingKind.LOCAL)
        level = max(arrives, self._find_ready_level(start, node))
        values_after = self._find_partition_values(node, store, edge, partition_values)
        probe = ProbeStep(
            next(self.probe_numbers),
            node.visit.store_number,
            node.visit.before_batch,
            node.keys,
            edge,
            level,
            frozenset(node.query_ids),
            node.covered_relations,
            tuple(sorted(node.completed_queries)),
        )
        feeds = tuple(self._build_feed(start, number, level, values_after) for number in sorted(node.fed_stores))
        children = tuple(self._build_probe(start, child, probe, values_after) for child in node.children.values())
        return replace(probe, feeds=feeds, children=children)

    def build_unmatched_steps(
        self, steps: Mapping[tuple[str, _StoreVisit], dict[object, _ProbeNode]]
    ) -> tuple[UnmatchedStep, ...]:
        """Return the steps that find rows of outer relations without a partner."""
        return tuple(
            self._build_unmatched_step(number, relation, visit, nodes.values())
            for number, ((relation, visit), nodes) in enumerate(steps.items())
        )

    def _build_unmatched_step(self, number: int, relation: str, visit: _StoreVisit, nodes: Iterable[_ProbeNode]) -> UnmatchedStep:
        key = self.planner.stores[visit.store_number].partition_key
        known_values = frozenset() if key is None else frozenset({key})
        probes = []
        for node in nodes:
            edge = self._route_joined_rows(node, known_values)
            probes.append(
                ProbeStep(
                    next(self.probe_numbers),
                    node.visit.store_number,
                    node.visit.before_batch,
                    node.keys,
                    edge,
                    int(edge.kind is not RoutingKind.LOCAL),
                    frozenset(node.query_ids),
                    node.covered_relations,
                )
            )
        query_ids = frozenset().union(*(probe.query_ids for probe in probes))
        collect_level = 2 * max(probe.level for probe in probes)
        return UnmatchedStep(number, relation, visit.store_number, visit.before_batch, query_ids, tuple(probes), collect_level)

    def _find_ready_level(self, start: str, node: _ProbeNode) -> int:
        """Return the level from which all rows are stored that rows of the start may see."""
        store, ranks = self.planner.stores[node.visit.store_number], self.planner.ranked_relations
        if store.relation.is_input or node.visit.before_batch is not None or store.until_batch is not None:
            return 0
        seen = [name for name in store.relation.relations if ranks.index(name) < ranks.index(start)]
        return max((self.ready_levels.get((store.number, name), 0) for name in seen), default=0)

    def _build_feed(self, start: str, number: int, level: int, partition_values: frozenset[Expression]) -> StoreFeed:
        key = self.planner.stores[number].partition_key
        edge = (
            _LOCAL
            if key is None or key in partition_values or self.planner.partitions == 1
            else ProbeRouting(RoutingKind.KEY, key)
        )
        self.ready_levels[number, start] = max(level + 1, self.ready_levels.get((number, start), 0))
        return StoreFeed(number, edge, level + 1)

    def _route_new_rows(self, start: str, node: _ProbeNode) -> ProbeRouting:
        """Return the routing of new rows to the first store; rows stored by the same value are already there."""
        value = self._find_partition_value(node)
        own_stores = [
            self.planner.stores[number]
            for target, number in self.planner.number_by_target.items()
            if target.relation == input_relation(start)
        ]
        if self.planner.partitions == 1:
            return ProbeRouting(RoutingKind.STORED, colocated_store=own_stores[0].number)
        if value is None:
            return _BROADCAST
        colocated = next((spec.number for spec in own_stores if spec.partition_key == value), None)
        return ProbeRouting(RoutingKind.KEY, value) if colocated is None else ProbeRouting(RoutingKind.STORED, value, colocated)

    def _route_joined_rows(self, node: _ProbeNode, partition_values: frozenset[Expression]) -> ProbeRouting:
        """Return the routing of joined rows to the next store: χ decides whether one partition suffices."""
        value = self._find_partition_value(node)
        if self.planner.partitions == 1 or (value is not None and value in partition_values):
            return _LOCAL
        return _BROADCAST if value is None else ProbeRouting(RoutingKind.KEY, value)

    def _find_partition_value(self, node: _ProbeNode) -> Expression | None:
        """Return the value of arriving rows that determines the partition of the store, if there is one."""
        store = self.planner.stores[node.visit.store_number]
        return next((left for left, right in node.keys if right == store.partition_key), None)

    def _find_partition_values(
        self, node: _ProbeNode, store: StoreSpec, edge: ProbeRouting, values_before: frozenset[Expression]
    ) -> frozenset[Expression]:
        """Return the values that determine the partition of rows after a probe."""
        values = values_before if edge.kind is RoutingKind.LOCAL else frozenset()
        if store.partition_key is not None:
            values |= {store.partition_key}
        equal = {left for left, right in node.keys if right in values} | {right for left, right in node.keys if left in values}
        return values | equal


def _rank_relations(queries: Sequence[NormalizedJoin], choice: ProbeOrderChoice) -> tuple[str, ...]:
    """Return the relations so that those that probe a materialized join come before its inputs, as far as possible."""
    names = sorted({name for query in queries for name in query.inputs})
    wanted_later: dict[str, set[str]] = {name: set() for name in names}  # the relations that should follow a relation
    for orders in (*choice.queries.values(), *choice.materialized.values()):
        for start, order in orders.items():
            for target in order:
                if not target.relation.is_input and start in wanted_later:
                    wanted_later[start] |= target.relation.relations & set(names)
    ranked: list[str] = []
    while names:
        chosen = next(
            (name for name in names if not any(name in wanted_later[other] for other in names if other != name)), names[0]
        )
        ranked.append(chosen)
        names.remove(chosen)
    return tuple(ranked)
