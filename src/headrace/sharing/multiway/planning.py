"""From probe orders that an optimizer chose to a plan that can run, and from one plan to the next while it runs.

When orders change, nothing that is stored is moved. A store that was partitioned otherwise keeps its rows until they expire,
and rows probe the old store for what came before the change, the new one for what came after. A join that is kept from a
batch on holds what has at least one row of that batch or later; for partners that are all older, rows go by the stores of its
inputs, as they did before:

    R ──▶ S⋈T                          since batch 7
    R ──▶ S (before 7) ──▶ T (before 7)    until the last of those rows has expired
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
    born: Mapping[int, int],
    previous: ProbePlan | None = None,
    oldest: Mapping[int, int] | None = None,
) -> ProbePlan:
    """Return the plan that holds from a batch on.

    `born` is the first batch of each query; `oldest` has, for each store of the previous plan that still holds rows, the batch
    of the oldest.
    """
    known = previous.next_store if previous is not None else 0
    keys = {attribute_of(side): side for one in queries for c in one.conditions for side in sides_of(c) or ()}
    ranks = _ranked(queries, choice)
    return _Planner(queries, choice, batch, partitions, born, previous, oldest or {}, keys, ranks, count(known)).plan()


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
    free: Iterator[int]  # numbers that no store ever had
    stores: dict[int, StoreSpec] = field(default_factory=dict)
    at: dict[Target, int] = field(default_factory=dict)
    uses: dict[int, dict[int, int]] = field(default_factory=dict)

    def plan(self) -> ProbePlan:
        self._make_stores()
        tries = {name: self._routes(name) for name in self.ranks}
        roots = _Levels(self).probes(tries)
        kept = tuple(one for one in self.stores.values() if one.until is None or one.relation.is_input)
        streams = {name: each.stream for one in self.queries for name, each in one.inputs.items()}
        uses = {number: dict(sorted(found.items())) for number, found in self.uses.items()}
        every = [probe for found in roots.values() for root in found for probe in root.walk()]
        last = max([0, *(probe.level for probe in every), *(feed.level for probe in every for feed in probe.feeds)])
        return ProbePlan(tuple(self.queries), self.ranks, streams, kept, roots, uses, last, next(self.free), self.choice)

    # --- stores -------------------------------------------------------------------------------------------------------

    def _make_stores(self) -> None:
        """Keep the stores that orders want, make those that are new, let the others run dry."""
        wanted = dict.fromkeys(target for orders in self._all_orders() for order in orders.values() for target in order)
        stored = {target.relation for target in wanted}
        before = {one.relation: one.by for one in self.previous.stores if one.until is None} if self.previous is not None else {}
        for name in self.ranks:  # rows must be stored somewhere, even if nobody probes them now
            relation = input_relation(name)
            if relation not in stored:
                by = before.get(relation)
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
        used = self.previous.uses if self.previous is not None else {}
        for query, orders in self.choice.queries.items():
            for target in self._kept_targets(orders):
                number = self.at[target]
                self.uses.setdefault(number, {})[query] = used.get(number, {}).get(query, self.batch)

    def _all_orders(self) -> Iterator[Orders]:
        yield from self.choice.queries.values()
        for relation in self._kept():
            yield self.choice.kept[relation]

    def _kept(self) -> dict[Join, None]:
        """Return the joins that are kept: those in orders of queries, and in orders that make such joins."""
        found: dict[Join, None] = {}
        waiting = list(self.choice.queries.values())
        while waiting:
            for order in waiting.pop().values():
                for target in order:
                    if not target.relation.is_input and target.relation not in found:
                        found[target.relation] = None
                        waiting.append(self.choice.kept[target.relation])
        return found

    def _kept_targets(self, orders: Orders) -> dict[Target, None]:
        """Return the stores of joins that a query needs, also to make others."""
        found: dict[Target, None] = {}
        waiting = [orders]
        while waiting:
            for order in waiting.pop().values():
                for target in order:
                    if not target.relation.is_input and target not in found:
                        found[target] = None
                        waiting.append(self.choice.kept[target.relation])
        return found

    # --- routes -------------------------------------------------------------------------------------------------------

    def _routes(self, start: str) -> dict[object, _Node]:
        """Return the tree of all routes that rows of a relation take."""
        roots: dict[object, _Node] = {}
        for number, orders in self.choice.queries.items():
            if start in orders:
                for steps in self._expanded(start, orders[start], number):
                    self._insert(roots, start, steps, self._query(number).join, number).ends.add(number)
        for store, users in self.uses.items():
            relation = self.stores[store].relation
            if start in relation.relations:
                for number in users:
                    for steps in self._expanded(start, self.choice.kept[relation][start], number):
                        self._insert(roots, start, steps, relation, number).feeds.add(store)
        return roots

    def _query(self, number: int) -> Asked:
        return next(one for one in self.queries if one.id == number)

    def _insert(self, roots: dict[object, _Node], start: str, steps: Sequence[_Step], join: Join, query: int) -> _Node:
        children, covered, node = roots, frozenset({start}), None
        for step in steps:
            relation = self.stores[step.store].relation.relations
            keys = self._equalities(join, covered, relation)
            covered |= relation
            node = children.setdefault((step, keys), _Node(step, keys, covered))
            node.users.add(query)
            children = node.children
        assert node is not None
        return node

    def _equalities(
        self, join: Join, covered: frozenset[str], stored: frozenset[str]
    ) -> tuple[tuple[Expression, Expression], ...]:
        found = []
        for one in sorted(join.between(covered, stored)):
            if one.sides:
                inside, outside = sorted(one.sides, key=lambda side: side.relation not in covered)
                found.append((self.keys[inside], self.keys[outside]))
        return tuple(found)

    def _expanded(self, start: str, order: Sequence[Target], query: int) -> Iterator[tuple[_Step, ...]]:
        """Yield the routes of an order: one, or several while stores from before a change are still needed by the query."""
        found: list[tuple[_Step, ...]] = [()]
        covered = {start}
        for target in order:
            ways = list(self._ways(target, query, covered))
            found = [(*steps, *way) for steps in found for way in ways]
            covered |= target.relation.relations
        yield from found

    def _ways(self, target: Target, query: int, covered: set[str]) -> Iterator[tuple[_Step, ...]]:
        """Yield the ways to partners of a relation, each of which has some of them, and together all, once."""
        number = self.at[target]
        yield (_Step(number, None),)
        if target.relation.is_input:
            yield from ((step,) for step in self._earlier(number, query, None))
            return
        since = self.uses[number][query]
        if since <= self.born[query] or not self._has_older(target.relation, since):
            return
        ways: list[tuple[_Step, ...]] = [()]
        for name in self._connected(target.relation, self._query(query).join, covered):
            stores = list(self._earlier(self._filled(name), query, since))
            ways = [(*steps, step) for steps in ways for step in stores]
        yield from ways

    def _has_older(self, relation: Join, since: int) -> bool:
        """Tell whether every input of a join still has rows of before a batch."""
        oldest = dict.fromkeys(relation.relations, self.batch)
        for one in self.stores.values():
            if one.relation.is_input and one.relation.relations <= relation.relations:
                name = min(one.relation.relations)
                oldest[name] = min(oldest[name], self.oldest.get(one.number, self.batch))
        return all(found < since for found in oldest.values())

    def _earlier(self, number: int, query: int, before: int | None) -> Iterator[_Step]:
        """Yield where rows of an input are that were stored before a batch, or before its store was there."""
        here = self.stores[number]
        limit = here.since
        if before is not None:
            if here.since < before:
                yield _Step(number, before)
            limit = min(here.since, before)
        others = [one for one in self.stores.values() if one.relation == here.relation and one.number != number]
        while self.born[query] < limit:
            older = [one for one in others if one.since < limit]
            there = [one for one in older if one.until is None or one.until >= limit]
            if there:  # of those that were filled until then, the one that goes back furthest
                chosen = min(there, key=lambda one: (one.since, one.number))
                if self.oldest.get(chosen.number, limit) < limit:
                    yield _Step(chosen.number, limit)
                limit = chosen.since
            elif older:
                limit = max(one.until for one in older if one.until is not None)
            else:
                break

    def _filled(self, relation: str) -> int:
        """Return a store of an input that is being filled."""
        return next(number for target, number in self.at.items() if target.relation == input_relation(relation))

    def _connected(self, relation: Join, within: Join, covered: set[str]) -> list[str]:
        """Return the inputs of a join in an order in which each has a predicate to those before it, where there is one."""
        found: list[str] = []
        while len(found) < len(relation.relations):
            rest = sorted(relation.relations - set(found))
            reached = covered | set(found)
            found.append(next((name for name in rest if any(within.between(reached, [name]))), rest[0]))
        return found


@dataclass(frozen=True, slots=True)
class _Levels:
    """Says when each probe happens, and how rows get there: probes wait for rows of kept joins that this batch makes.

    `ready` has, by store of a kept join and start, the level from which rows that the start makes are there.
    """

    planner: _Planner
    ready: dict[tuple[int, str], int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def probes(self, tries: Mapping[str, dict[object, _Node]]) -> dict[str, tuple[Probe, ...]]:
        """Return the probes of each relation; those ranked before it are done first: it sees what they make."""
        return {
            name: tuple(self._probe(name, node, None, frozenset()) for node in tries[name].values())
            for name in self.planner.ranks
        }

    def _probe(self, start: str, node: _Node, parent: Probe | None, here: frozenset[Expression]) -> Probe:
        store = self.planner.stores[node.step.store]
        edge = self._first_edge(start, node) if parent is None else self._edge(node, here)
        arrives = 0 if parent is None else parent.level + (edge.kind is not EdgeKind.LOCAL)
        level = max(arrives, self._waits(start, node))
        placed = self._placed(node, store, edge, here)
        probe = Probe(
            next(self.numbers), node.step.store, node.step.before, node.keys, edge, level, frozenset(node.users), node.covered,
            tuple(sorted(node.ends)),
        )  # fmt: skip
        feeds = tuple(self._feed(start, number, level, placed) for number in sorted(node.feeds))
        children = tuple(self._probe(start, child, probe, placed) for child in node.children.values())
        return replace(probe, feeds=feeds, children=children)

    def _waits(self, start: str, node: _Node) -> int:
        """Return the level from which all rows are stored that the start may see."""
        store, ranks = self.planner.stores[node.step.store], self.planner.ranks
        if store.relation.is_input or node.step.before is not None or store.until is not None:
            return 0
        seen = [name for name in store.relation.relations if ranks.index(name) < ranks.index(start)]
        return max((self.ready.get((store.number, name), 0) for name in seen), default=0)

    def _feed(self, start: str, number: int, level: int, placed: frozenset[Expression]) -> Feed:
        key = self.planner.stores[number].key
        edge = _LOCAL if key is None or key in placed or self.planner.partitions == 1 else Edge(EdgeKind.KEY, key)
        self.ready[number, start] = max(level + 1, self.ready.get((number, start), 0))
        return Feed(number, edge, level + 1)

    def _first_edge(self, start: str, node: _Node) -> Edge:
        """Return how new rows get to the first store; where they are stored by the same value, they are there already."""
        value = self._told(node)
        own = [self.planner.stores[n] for t, n in self.planner.at.items() if t.relation == input_relation(start)]
        if self.planner.partitions == 1:
            return Edge(EdgeKind.STORED, store=own[0].number)
        if value is None:
            return _ALL
        same = next((one.number for one in own if one.key == value), None)
        return Edge(EdgeKind.KEY, value) if same is None else Edge(EdgeKind.STORED, value, same)

    def _edge(self, node: _Node, here: frozenset[Expression]) -> Edge:
        """Return how rows get to the next store: χ says whether one partition is enough."""
        value = self._told(node)
        if self.planner.partitions == 1 or (value is not None and value in here):
            return _LOCAL
        return _ALL if value is None else Edge(EdgeKind.KEY, value)

    def _told(self, node: _Node) -> Expression | None:
        """Return the value of arriving rows that names the partition of the store, if they have one."""
        store = self.planner.stores[node.step.store]
        return next((left for left, right in node.keys if right == store.key), None)

    def _placed(self, node: _Node, store: StoreSpec, edge: Edge, here: frozenset[Expression]) -> frozenset[Expression]:
        """Return the values that name the partition rows are in after a probe."""
        found = here if edge.kind is EdgeKind.LOCAL else frozenset()
        if store.key is not None:
            found |= {store.key}
        equal = {left for left, right in node.keys if right in found} | {right for left, right in node.keys if left in found}
        return found | equal


def _ranked(queries: Sequence[Asked], choice: Choice) -> tuple[str, ...]:
    """Return the relations, those that look into kept joins before the inputs of these, as far as that can be."""
    names = sorted({name for one in queries for name in one.inputs})
    later: dict[str, set[str]] = {name: set() for name in names}  # whom a relation wants behind it
    for orders in (*choice.queries.values(), *choice.kept.values()):
        for start, order in orders.items():
            for target in order:
                if not target.relation.is_input and start in later:
                    later[start] |= target.relation.relations & set(names)
    found: list[str] = []
    while names:
        chosen = next((n for n in names if not any(n in later[o] for o in names if o != n)), names[0])
        found.append(chosen)
        names.remove(chosen)
    return tuple(found)
