"""A sliding-join plan prepared for workers: the index keys, bounds and conditions of every probe, computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.execution.multiway.stored import Keys
from headrace.execution.query_sets import QuerySets
from headrace.execution.searching import Bound, best_bounds, bound_of, is_whole
from headrace.kernels.sets import QueryBitmaps, count_words, make_bitmap
from headrace.model.expression import Call, Column, Expression, column_names, walk_expression
from headrace.sharing.multiway.asked import (
    NormalizedJoin,
    find_relations,
    relation_of_column,
    split_equality,
    time_column_of,
    to_attribute,
)
from headrace.sharing.multiway.probes import ProbeStep, SlidingJoinPlan
from headrace.sharing.multiway.relations import Attribute


@dataclass(frozen=True)
class LoadedProbe:
    """A probe with its users: the values that find matches, and the checks of each pair.

    `build_keys` are the build side of equalities; `bounds` select a range search; with neither, the probe is a cross product.
    `conditions` are evaluated on pairs, each for the queries that have it. `window_groups` are the windows of queries that
    differ in them.
    """

    probe: ProbeStep
    stored: tuple[str, ...]
    before: tuple[str, ...]
    users: QueryBitmaps
    keys: Keys
    bounds: tuple[Bound, ...]
    conditions: Mapping[Expression, QueryBitmaps]
    longest: Mapping[str, int]
    windows: tuple[tuple[Mapping[str, int], QueryBitmaps], ...]


class LoadedProbes:
    """All probes of a plan, and the query-set assigner of each relation."""

    def __init__(self, plan: SlidingJoinPlan) -> None:
        """Take a plan; its probes and assigners are prepared on first use."""
        self.plan = plan
        self.stores = {store.number: store for store in plan.stores}
        self.queries = {query.id: query for query in plan.queries}
        self.specs = {probe.number: probe for _, probe in plan.probes}
        self.starts = {probe.number: name for name, probe in plan.probes}
        self.width = count_words([query.bit for query in plan.queries])
        self._probes: dict[int, LoadedProbe] = {}
        self._tags: dict[str, tuple[list[NormalizedJoin], QuerySets]] = {}

    def probe(self, number: int) -> LoadedProbe:
        """Return a probe by its number."""
        if number not in self._probes:
            self._probes[number] = self._loaded(self.specs[number])
        return self._probes[number]

    def tags(self, relation: str) -> tuple[list[NormalizedJoin], QuerySets]:
        """Return the queries that read a relation, and the assigner of their query-sets."""
        if relation not in self._tags:
            queries = [query for query in self.plan.queries if relation in query.inputs]
            sets = QuerySets([query.inputs[relation].predicate for query in queries], [query.bit for query in queries])
            self._tags[relation] = queries, sets
        return self._tags[relation]

    def sides(self, relation: str) -> dict[Attribute, Expression]:
        """Return the sides of equalities over a relation, by attribute."""
        pairs = (split_equality(condition) or () for query in self.plan.queries for condition in query.conditions)
        return {to_attribute(side): side for pair in pairs for side in pair if find_relations(side) == {relation}}

    def columns(self, relations: frozenset[str], users: Iterable[int]) -> list[str]:
        """Return the columns of joined relations that their users still need, and the event times."""
        needed: set[str] = set()
        for query in (self.queries[number] for number in users):
            pending_conditions = [condition for condition in query.conditions if not find_relations(condition) <= relations]
            needed |= {
                name
                for expression in (*pending_conditions, *query.output)
                for name in column_names(expression)
                if relation_of_column(name) in relations
            }
        return [*sorted(needed), *sorted(map(time_column_of, relations))]

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """The type of every column that a query reads."""
        nodes = (
            node
            for query in self.plan.queries
            for expression in (*query.conditions, *query.output)
            for node in walk_expression(expression)
        )
        return {node.name: node.type for node in nodes if isinstance(node, Column)}

    def bits(self, queries: Iterable[int]) -> QueryBitmaps:
        """Return the query-set of these queries."""
        return make_bitmap([self.queries[number].bit for number in queries], self.width)

    @cached_property
    def indexes(self) -> Mapping[int, tuple[frozenset[Keys], frozenset[Expression]]]:
        """For each store, the keys and the values that probes look rows up by."""
        hashed: dict[int, set[Keys]] = defaultdict(set)
        sorted_by: dict[int, set[Expression]] = defaultdict(set)
        for number, probe in self.specs.items():
            loaded = self.probe(number)
            if loaded.keys:
                hashed[probe.store_number].add(loaded.keys)
            elif loaded.bounds:
                sorted_by[probe.store_number].add(loaded.bounds[0].stored)
        return {store.number: (frozenset(hashed[store.number]), frozenset(sorted_by[store.number])) for store in self.plan.stores}

    def _loaded(self, probe: ProbeStep) -> LoadedProbe:
        build_relations = self.stores[probe.store_number].relation.relations
        probe_relations = probe.covered_relations - build_relations
        users = [self.queries[number] for number in sorted(probe.query_ids)]
        keys = tuple(right for _, right in probe.keys)
        due_conditions: dict[Expression, list[int]] = defaultdict(list)
        for user in users:
            for condition in user.conditions:
                condition_relations = find_relations(condition)
                if (
                    condition_relations <= probe.covered_relations
                    and not condition_relations <= probe_relations
                    and not condition_relations <= build_relations
                ):
                    due_conditions[condition].append(user.id)
        if len(keys) == 1 and is_whole(keys[0].type):  # equal hashes imply equal values: the equality needs no check
            due_conditions = {condition: ids for condition, ids in due_conditions.items() if not self._is_key(condition, probe)}

        def is_stored(name: str) -> bool:
            return relation_of_column(name) in build_relations

        shared_conditions = [condition for condition, ids in due_conditions.items() if len(ids) == len(users)]
        bounds = () if keys else best_bounds(shared_conditions, is_stored)
        for bound in bounds:
            due_conditions = {
                condition: ids for condition, ids in due_conditions.items() if bound_of(condition, is_stored) != bound
            }
        max_ranges = {
            name: max(user.inputs[name].length for user in users if name in user.inputs) for name in probe.covered_relations
        }
        users_by_windows: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
        for user in users:
            users_by_windows[tuple((name, user.inputs[name].length) for name in sorted(probe.covered_relations))].append(user.id)
        is_exact = len(users_by_windows) == 1 and len(build_relations) == 1
        return LoadedProbe(
            probe,
            tuple(sorted(build_relations)),
            tuple(sorted(probe_relations)),
            self.bits(probe.query_ids),
            keys,
            bounds,
            {condition: self.bits(ids) for condition, ids in due_conditions.items()},
            max_ranges,
            () if is_exact else tuple((dict(ranges), self.bits(ids)) for ranges, ids in users_by_windows.items()),
        )

    def _is_key(self, condition: Expression, probe: ProbeStep) -> bool:
        sides = frozenset(condition.args) if isinstance(condition, Call) and condition.function == "eq" else None
        return any(frozenset(pair) == sides for pair in probe.keys)
