"""Planner of sliding joins: from chosen probe orders to an executable plan, and from one plan to the next at run time.

A change of orders moves no stored rows. A store with a different partitioning keeps its rows until they expire; rows probe the
old store for partners from before the change, the new one for those after it. A join materialized from a batch on contains the
results with at least one row of that batch or later; for partners that are all older, rows probe the stores of its inputs, as
before:

    R ──▶ S⋈T                          since batch 7
    R ──▶ S (before 7) ──▶ T (before 7)    until the last of those rows expires
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from headrace.model.expression import Expression
from headrace.sharing.multiway.asked import Asked, attribute_of, sides_of
from headrace.sharing.multiway.probes import Choice, Edge, EdgeKind, Feed, Orders, Probe, ProbePlan, StoreSpec, Target
from headrace.sharing.multiway.relations import Attribute, Join, input_relation

_LOCAL, _ALL = Edge(EdgeKind.LOCAL), Edge(EdgeKind.ALL)


@dataclass(frozen=True, slots=True)
class _Step:
    """A visit to a store, restricted to rows stored before a batch if `before_batch` is set."""

    store: int
    before: int | None


@dataclass(frozen=True, slots=True)
class _Node:
    """A probe under construction."""

    step: _Step
    keys: tuple[tuple[Expression, Expression], ...]
    covered: frozenset[str]
    users: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    feeds: set[int] = field(default_factory=set)
    children: dict[object, _Node] = field(default_factory=dict)


def plan_probes(
    queries: Sequence[Asked],
    choice: Choice,
    batch: int,
    partitions: int,
    first_batches: Mapping[int, int],
    previous: ProbePlan | None = None,
    oldest_batches: Mapping[int, int] | None = None,
) -> ProbePlan:
    """Return the plan that is valid from a batch on.

    `first_batches` maps queries to their first batch; `oldest_batches` maps each store of the previous plan that still holds rows
    to the batch of the oldest.
    """
    first_number = previous.next_store if previous is not None else 0
    keys = {attribute_of(side): side for query in queries for condition in query.conditions for side in sides_of(condition) or ()}
    ranks = _ranked(queries, choice)
    return _Planner(
        queries, choice, batch, partitions, first_batches, previous, oldest_batches or {}, keys, ranks, count(first_number)
    ).plan()


@dataclass(frozen=True, slots=True)
class _Planner:
    queries: Sequence[Asked]
    choice: Choice
    batch: int
    partitions: int
    born: Mapping[int, int]
    previous: ProbePlan | None
    oldest: Mapping[int, int]
    keys: Mapping[Attribute, Expression]
    ranks: tuple[str, ...]
    free: Iterator[int]  # unused store numbers; never reused
    stores: dict[int, StoreSpec] = field(default_factory=dict)
    at: dict[Target, int] = field(default_factory=dict)
    uses: dict[int, dict[int, int]] = field(default_factory=dict)

    def plan(self) -> ProbePlan:
        self._make_stores()
        probe_trees = {name: self._routes(name) for name in self.ranks}
        roots = _Levels(self).probes(probe_trees)
        stores = tuple(spec for spec in self.stores.values() if spec.until is None or spec.relation.is_input)
        streams = {name: join_input.stream for query in self.queries for name, join_input in query.inputs.items()}
        uses = {number: dict(sorted(batches.items())) for number, batches in self.uses.items()}
        probes = [probe for root_probes in roots.values() for root in root_probes for probe in root.walk()]
        last = max([0, *(probe.level for probe in probes), *(feed.level for probe in probes for feed in probe.feeds)])
        return ProbePlan(tuple(self.queries), self.ranks, streams, stores, roots, uses, last, next(self.free), self.choice)

    # --- stores -------------------------------------------------------------------------------------------------------

    def _make_stores(self) -> None:
        """Keep the stores that orders visit, create new ones, and stop filling the others."""
        wanted = dict.fromkeys(target for orders in self._all_orders() for order in orders.values() for target in order)
        stored_relations = {target.relation for target in wanted}
        previous_attributes = (
            {spec.relation: spec.by for spec in self.previous.stores if spec.until is None} if self.previous is not None else {}
        )
        for name in self.ranks:  # every input needs a store, even without a probe
            relation = input_relation(name)
            if relation not in stored_relations:
                by = previous_attributes.get(relation)
                wanted[Target(relation, by if by in self.keys else None)] = None
        for old in self.previous.stores if self.previous is not None else ():
            target = Target(old.relation, old.by)
            if old.until is None and target in wanted:
                self.stores[old.number], self.at[target] = old, old.number
            elif old.number in self.oldest and old.relation.relations <= set(self.ranks):
                self.stores[old.number] = replace(old, until=self.batch if old.until is None else old.until)
        for target in wanted:
            if target not in self.at:
                key = None if target.by is None else self.keys[target.by]
                self.at[target] = number = next(self.free)
                self.stores[number] = StoreSpec(number, target.relation, target.by, key, self.batch)
        previous_uses = self.previous.uses if self.previous is not None else {}
        for query, orders in self.choice.queries.items():
            for target in self._kept_targets(orders):
                number = self.at[target]
                self.uses.setdefault(number, {})[query] = previous_uses.get(number, {}).get(query, self.batch)

    def _all_orders(self) -> Iterator[Orders]:
        yield from self.choice.queries.values()
        for relation in self._kept():
            yield self.choice.kept[relation]

    def _kept(self) -> dict[Join, None]:
        """Return the materialized joins: those in orders of queries, and in orders that compute such joins."""
        joins: dict[Join, None] = {}
        pending = list(self.choice.queries.values())
        while pending:
            for order in pending.pop().values():
                for target in order:
                    if not target.relation.is_input and target.relation not in joins:
                        joins[target.relation] = None
                        pending.append(self.choice.kept[target.relation])
        return joins

    def _kept_targets(self, orders: Orders) -> dict[Target, None]:
        """Return the stores of materialized joins that a query needs, including those that compute others."""
        targets: dict[Target, None] = {}
        pending = [orders]
        while pending:
            for order in pending.pop().values():
                for target in order:
                    if not target.relation.is_input and target not in targets:
                        targets[target] = None
                        pending.append(self.choice.kept[target.relation])
        return targets

    # --- routes -------------------------------------------------------------------------------------------------------

    def _routes(self, start: str) -> dict[object, _Node]:
        """Return the tree of all probe paths of the rows of a relation."""
        roots: dict[object, _Node] = {}
        for query_id, orders in self.choice.queries.items():
            if start in orders:
                for visits in self._expanded(start, orders[start], query_id):
                    self._insert(roots, start, visits, self._query(query_id).join, query_id).ends.add(query_id)
        for store, query_ids in self.uses.items():
            relation = self.stores[store].relation
            if start in relation.relations:
                for query_id in query_ids:
                    for visits in self._expanded(start, self.choice.kept[relation][start], query_id):
                        self._insert(roots, start, visits, relation, query_id).feeds.add(store)
        return roots

    def _query(self, query_id: int) -> Asked:
        return next(query for query in self.queries if query.id == query_id)

    def _insert(self, roots: dict[object, _Node], start: str, visits: Sequence[_Step], join: Join, query_id: int) -> _Node:
        """Insert a path into the tree of probes and return its last node."""
        children, covered, node = roots, frozenset({start}), None
        for visit in visits:
            relation = self.stores[visit.store].relation.relations
            keys = self._equalities(join, covered, relation)
            covered |= relation
            node = children.setdefault((visit, keys), _Node(visit, keys, covered))
            node.users.add(query_id)
            children = node.children
        assert node is not None
        return node

    def _equalities(
        self, join: Join, covered: frozenset[str], stored: frozenset[str]
    ) -> tuple[tuple[Expression, Expression], ...]:
        equalities = []
        for predicate in sorted(join.between(covered, stored)):
            if predicate.sides:
                inside, outside = sorted(predicate.sides, key=lambda side: side.relation not in covered)
                equalities.append((self.keys[inside], self.keys[outside]))
        return tuple(equalities)

    def _expanded(self, start: str, order: Sequence[Target], query_id: int) -> Iterator[tuple[_Step, ...]]:
        """Yield the paths of an order: one, or several while the query still needs stores from before a change."""
        paths: list[tuple[_Step, ...]] = [()]
        covered = {start}
        for target in order:
            continuations = list(self._ways(target, query_id, covered))
            paths = [(*path, *continuation) for path in paths for continuation in continuations]
            covered |= target.relation.relations
        yield from paths

    def _ways(self, target: Target, query_id: int, covered: set[str]) -> Iterator[tuple[_Step, ...]]:
        """Yield the paths to the partners of a relation; together they reach every partner exactly once."""
        number = self.at[target]
        yield (_Step(number, None),)
        if target.relation.is_input:
            yield from ((visit,) for visit in self._earlier(number, query_id, None))
            return
        since = self.uses[number][query_id]
        if since <= self.born[query_id] or not self._has_older(target.relation, since):
            return
        paths: list[tuple[_Step, ...]] = [()]
        for name in self._connected(target.relation, self._query(query_id).join, covered):
            visits = list(self._earlier(self._filled(name), query_id, since))
            paths = [(*path, visit) for path in paths for visit in visits]
        yield from paths

    def _has_older(self, relation: Join, since: int) -> bool:
        """Return whether every input of a join still has rows from before a batch."""
        oldest = dict.fromkeys(relation.relations, self.batch)
        for spec in self.stores.values():
            if spec.relation.is_input and spec.relation.relations <= relation.relations:
                name = min(spec.relation.relations)
                oldest[name] = min(oldest[name], self.oldest.get(spec.number, self.batch))
        return all(batch < since for batch in oldest.values())

    def _earlier(self, number: int, query_id: int, before: int | None) -> Iterator[_Step]:
        """Yield the visits to rows of an input that were stored before a batch, or before its store was created."""
        current = self.stores[number]
        limit = current.since
        if before is not None:
            if current.since < before:
                yield _Step(number, before)
            limit = min(current.since, before)
        others = [spec for spec in self.stores.values() if spec.relation == current.relation and spec.number != number]
        while self.born[query_id] < limit:
            older = [spec for spec in others if spec.since < limit]
            adjoining = [spec for spec in older if spec.until is None or spec.until >= limit]
            if adjoining:  # of the stores that were filled until then, the one that reaches back furthest
                chosen = min(adjoining, key=lambda spec: (spec.since, spec.number))
                if self.oldest.get(chosen.number, limit) < limit:
                    yield _Step(chosen.number, limit)
                limit = chosen.since
            elif older:
                limit = max(spec.until for spec in older if spec.until is not None)
            else:
                break

    def _filled(self, relation: str) -> int:
        """Return the number of a store of an input that is being filled."""
        return next(number for target, number in self.at.items() if target.relation == input_relation(relation))

    def _connected(self, relation: Join, within: Join, covered: set[str]) -> list[str]:
        """Return the inputs of a join in an order in which each is connected to those before it, where possible."""
        order: list[str] = []
        while len(order) < len(relation.relations):
            remaining = sorted(relation.relations - set(order))
            reached = covered | set(order)
            order.append(next((name for name in remaining if any(within.between(reached, [name]))), remaining[0]))
        return order


@dataclass(frozen=True, slots=True)
class _Levels:
    """Assigns levels and routing to probes: a probe waits for the rows of materialized joins that the same batch produces.

    `ready_levels` maps (store of a materialized join, start) to the level from which the rows that the start produces are stored.
    """

    planner: _Planner
    ready: dict[tuple[int, str], int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def probes(self, probe_trees: Mapping[str, dict[object, _Node]]) -> dict[str, tuple[Probe, ...]]:
        """Return the probes of each relation, in the order of ranks: a relation sees the rows that earlier ones produce."""
        return {
            name: tuple(self._probe(name, node, None, frozenset()) for node in probe_trees[name].values())
            for name in self.planner.ranks
        }

    def _probe(self, start: str, node: _Node, parent: Probe | None, partition_values: frozenset[Expression]) -> Probe:
        store = self.planner.stores[node.step.store]
        edge = self._first_edge(start, node) if parent is None else self._edge(node, partition_values)
        arrives = 0 if parent is None else parent.level + (edge.kind is not EdgeKind.LOCAL)
        level = max(arrives, self._waits(start, node))
        values_after = self._placed(node, store, edge, partition_values)
        probe = Probe(
            next(self.numbers), node.step.store, node.step.before, node.keys, edge, level, frozenset(node.users), node.covered,
            tuple(sorted(node.ends)),
        )  # fmt: skip
        feeds = tuple(self._feed(start, number, level, values_after) for number in sorted(node.feeds))
        children = tuple(self._probe(start, child, probe, values_after) for child in node.children.values())
        return replace(probe, feeds=feeds, children=children)

    def _waits(self, start: str, node: _Node) -> int:
        """Return the level from which all rows are stored that rows of the start may see."""
        store, ranks = self.planner.stores[node.step.store], self.planner.ranks
        if store.relation.is_input or node.step.before is not None or store.until is not None:
            return 0
        seen = [name for name in store.relation.relations if ranks.index(name) < ranks.index(start)]
        return max((self.ready.get((store.number, name), 0) for name in seen), default=0)

    def _feed(self, start: str, number: int, level: int, partition_values: frozenset[Expression]) -> Feed:
        key = self.planner.stores[number].key
        edge = _LOCAL if key is None or key in partition_values or self.planner.partitions == 1 else Edge(EdgeKind.KEY, key)
        self.ready[number, start] = max(level + 1, self.ready.get((number, start), 0))
        return Feed(number, edge, level + 1)

    def _first_edge(self, start: str, node: _Node) -> Edge:
        """Return the routing of new rows to the first store; rows stored by the same value are already there."""
        value = self._told(node)
        own_stores = [
            self.planner.stores[number] for target, number in self.planner.at.items() if target.relation == input_relation(start)
        ]
        if self.planner.partitions == 1:
            return Edge(EdgeKind.STORED, store=own_stores[0].number)
        if value is None:
            return _ALL
        colocated = next((spec.number for spec in own_stores if spec.key == value), None)
        return Edge(EdgeKind.KEY, value) if colocated is None else Edge(EdgeKind.STORED, value, colocated)

    def _edge(self, node: _Node, partition_values: frozenset[Expression]) -> Edge:
        """Return the routing of joined rows to the next store: χ decides whether one partition suffices."""
        value = self._told(node)
        if self.planner.partitions == 1 or (value is not None and value in partition_values):
            return _LOCAL
        return _ALL if value is None else Edge(EdgeKind.KEY, value)

    def _told(self, node: _Node) -> Expression | None:
        """Return the value of arriving rows that determines the partition of the store, if there is one."""
        store = self.planner.stores[node.step.store]
        return next((left for left, right in node.keys if right == store.key), None)

    def _placed(self, node: _Node, store: StoreSpec, edge: Edge, values_before: frozenset[Expression]) -> frozenset[Expression]:
        """Return the values that determine the partition of rows after a probe."""
        values = values_before if edge.kind is EdgeKind.LOCAL else frozenset()
        if store.key is not None:
            values |= {store.key}
        equal = {left for left, right in node.keys if right in values} | {right for left, right in node.keys if left in values}
        return values | equal


def _ranked(queries: Sequence[Asked], choice: Choice) -> tuple[str, ...]:
    """Return the relations so that those that probe a materialized join come before its inputs, as far as possible."""
    names = sorted({name for query in queries for name in query.inputs})
    wanted_later: dict[str, set[str]] = {name: set() for name in names}  # the relations that should follow a relation
    for orders in (*choice.queries.values(), *choice.kept.values()):
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
