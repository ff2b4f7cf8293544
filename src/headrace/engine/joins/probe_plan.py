"""A sliding-join plan prepared for workers: the index keys, bounds and conditions of every probe, computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.engine.joins.index import IndexKeys, is_exact_key
from headrace.engine.joins.output_spec import FinishedQuery, OutputSpec
from headrace.engine.joins.pair_search import SearchPlan, StepUser, plan_search
from headrace.engine.operators.query_sets import QueryBitmaps, QuerySetAssigner, count_words, make_bitmap
from headrace.model.expression import Call, Column, Expression, column_names, walk_expression
from headrace.planner.join.join_graph import Attribute
from headrace.planner.join.normalized_join import (
    NormalizedJoin,
    find_relations,
    relation_of_column,
    split_equality,
    time_column_of,
    to_attribute,
)
from headrace.planner.join.sliding_join_plan import ProbeStep, SlidingJoinPlan


@dataclass(frozen=True)
class LoadedProbe:
    """A probe with its users: the values that find matches, and the checks of each pair.

    `build_keys` are the build side of equalities, whose `conditions` are evaluated on pairs, each for the queries that have it;
    without equalities, `search` finds the pairs. `window_groups` are the windows of queries that differ in them.
    """

    probe: ProbeStep
    build_relations: tuple[str, ...]
    probe_relations: tuple[str, ...]
    user_set: QueryBitmaps
    build_keys: IndexKeys
    search: SearchPlan | None
    conditions: Mapping[Expression, QueryBitmaps]
    max_ranges: Mapping[str, int]
    window_groups: tuple[tuple[Mapping[str, int], QueryBitmaps], ...]


class LoadedSlidingJoinPlan:
    """All probes of a plan, and the query-set assigner of each relation."""

    def __init__(self, plan: SlidingJoinPlan) -> None:
        """Take a plan; its probes and assigners are prepared on first use."""
        self.plan = plan
        self.store_specs = {store.number: store for store in plan.stores}
        self.queries = {query.id: query for query in plan.queries}
        self.finished = {
            query.id: FinishedQuery(query.id, query.bit, OutputSpec(query.output, query.schema, query.predicate))
            for query in plan.queries
        }
        self.probe_specs = {probe.number: probe for _, probe in plan.probes}
        self.unmatched_steps = {probe.number: step for step in plan.unmatched_steps for probe in step.probes}
        self.probe_specs |= {probe.number: probe for step in plan.unmatched_steps for probe in step.probes}
        self.start_relations = {probe.number: name for name, probe in plan.probes}
        self.set_width = count_words([query.bit for query in plan.queries])
        self._loaded_probes: dict[int, LoadedProbe] = {}
        self._readers: dict[str, tuple[list[NormalizedJoin], QuerySetAssigner]] = {}

    def get_probe(self, number: int) -> LoadedProbe:
        """Return a probe by its number."""
        if number not in self._loaded_probes:
            self._loaded_probes[number] = self._load_probe(self.probe_specs[number])
        return self._loaded_probes[number]

    def get_readers(self, relation: str) -> tuple[list[NormalizedJoin], QuerySetAssigner]:
        """Return the queries that read a relation, and the assigner of their query-sets."""
        if relation not in self._readers:
            queries = [query for query in self.plan.queries if relation in query.inputs]
            sets = QuerySetAssigner([query.inputs[relation].predicate for query in queries], [query.bit for query in queries])
            self._readers[relation] = queries, sets
        return self._readers[relation]

    @cached_property
    def delta_bits(self) -> Mapping[str, int]:
        """The bit of each relation in the delta masks of rows."""
        return self.plan.assign_delta_bits()

    def get_delta_mask(self, relations: Iterable[str]) -> int:
        """Return the delta mask of joined rows whose rows of these relations are new."""
        return sum(1 << bit for bit in {self.delta_bits[name] for name in relations})

    def get_visible_mask(self, number: int) -> int:
        """Return the delta mask of the new rows in the store of a probe that count for the rows that probe it."""
        stored = self.store_specs[self.probe_specs[number].store_number].relation.relations
        if number in self.unmatched_steps:
            return self.get_delta_mask(stored)
        return self.get_delta_mask(self.plan.find_visible_relations(self.start_relations[number], stored))

    def list_equality_sides(self, relation: str) -> dict[Attribute, Expression]:
        """Return the sides of equalities over a relation, by attribute."""
        pairs = (split_equality(condition) or () for query in self.plan.queries for condition in query.conditions)
        return {to_attribute(side): side for pair in pairs for side in pair if find_relations(side) == {relation}}

    def find_needed_columns(self, relations: frozenset[str], users: Iterable[int]) -> list[str]:
        """Return the columns of joined relations that their users still need, and the event times."""
        needed: set[str] = set()
        for query in (self.queries[number] for number in users):
            pending_conditions = [
                condition for condition in query.conditions if query.outer_relations or not find_relations(condition) <= relations
            ]
            needed |= {
                name
                for expression in (*pending_conditions, query.predicate, *query.output)
                for name in column_names(expression)
                if relation_of_column(name) in relations
            }
        return [*sorted(needed), *sorted(map(time_column_of, relations))]

    @cached_property
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The type of every column that a query reads."""
        nodes = (
            node
            for query in self.plan.queries
            for expression in (*query.conditions, query.predicate, *query.output)
            for node in walk_expression(expression)
        )
        return {node.name: node.type for node in nodes if isinstance(node, Column)}

    def make_query_bitmap(self, queries: Iterable[int]) -> QueryBitmaps:
        """Return the query-set of these queries."""
        return make_bitmap([self.queries[number].bit for number in queries], self.set_width)

    @cached_property
    def index_expressions(self) -> Mapping[int, tuple[frozenset[IndexKeys], frozenset[Expression]]]:
        """For each store, the keys and the values that probes look rows up by."""
        hashed: dict[int, set[IndexKeys]] = defaultdict(set)
        sorted_by: dict[int, set[Expression]] = defaultdict(set)
        for number, probe in self.probe_specs.items():
            loaded = self.get_probe(number)
            if loaded.build_keys:
                hashed[probe.store_number].add(loaded.build_keys)
            elif loaded.search is not None:
                sorted_by[probe.store_number] |= loaded.search.attributes
        return {store.number: (frozenset(hashed[store.number]), frozenset(sorted_by[store.number])) for store in self.plan.stores}

    def _load_probe(self, probe: ProbeStep) -> LoadedProbe:
        build_relations = self.store_specs[probe.store_number].relation.relations
        probe_relations = probe.covered_relations - build_relations
        users = [self.queries[number] for number in sorted(probe.query_ids)]
        keys = tuple(right for _, right in probe.keys)
        due_conditions: dict[Expression, list[int]] = defaultdict(list)
        for user in users:
            for condition in user.conditions:
                if user.is_due(condition, probe_relations, build_relations):
                    due_conditions[condition].append(user.id)
        if is_exact_key(keys):
            due_conditions = {
                condition: ids for condition, ids in due_conditions.items() if not self._is_key_equality(condition, probe)
            }

        search = None
        if not keys:
            step_users = [
                StepUser(user.id, user.bit, tuple(condition for condition, ids in due_conditions.items() if user.id in ids))
                for user in users
            ]
            search = plan_search(step_users, lambda name: relation_of_column(name) in build_relations, self.set_width)
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
            self.make_query_bitmap(probe.query_ids),
            keys,
            search,
            {condition: self.make_query_bitmap(ids) for condition, ids in due_conditions.items()} if search is None else {},
            max_ranges,
            () if is_exact else tuple((dict(ranges), self.make_query_bitmap(ids)) for ranges, ids in users_by_windows.items()),
        )

    def _is_key_equality(self, condition: Expression, probe: ProbeStep) -> bool:
        sides = frozenset(condition.args) if isinstance(condition, Call) and condition.function == "eq" else None
        return any(frozenset(pair) == sides for pair in probe.keys)
