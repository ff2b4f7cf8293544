"""A plan of probes made ready for workers: what every probe has to look at, worked out once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.execution.multiway.stored import Keys
from headrace.execution.query_sets import QuerySets
from headrace.execution.searching import Bound, best_bounds, bound_of, is_whole
from headrace.kernels.sets import Sets, set_of, words
from headrace.model.expression import Call, Column, Expression, columns, walk
from headrace.sharing.multiway.asked import Asked, attribute_of, relation_of, relations_of, sides_of, time_of
from headrace.sharing.multiway.probes import Probe, ProbePlan
from headrace.sharing.multiway.relations import Attribute


@dataclass(frozen=True)
class LoadedProbe:
    """A probe with its users: by which values partners are found, and what is to be checked of each pair.

    `keys` are the stored side of equalities; with `bounds` partners are searched, with neither everything is tried.
    `conditions` are looked at for pairs, each for the queries that have it. `windows` are those of queries that differ in them.
    """

    probe: Probe
    stored: tuple[str, ...]
    before: tuple[str, ...]
    users: Sets
    keys: Keys
    bounds: tuple[Bound, ...]
    conditions: Mapping[Expression, Sets]
    longest: Mapping[str, int]
    windows: tuple[tuple[Mapping[str, int], Sets], ...]


class LoadedProbes:
    """All probes of a plan, and how rows of each relation are tagged."""

    def __init__(self, plan: ProbePlan) -> None:
        """Take a plan; its parts prepare themselves when first used."""
        self.plan = plan
        self.stores = {one.number: one for one in plan.stores}
        self.queries = {one.id: one for one in plan.queries}
        self.specs = {one.number: one for _, one in plan.probes}
        self.starts = {one.number: name for name, one in plan.probes}
        self.width = words([one.bit for one in plan.queries])
        self._probes: dict[int, LoadedProbe] = {}
        self._tags: dict[str, tuple[list[Asked], QuerySets]] = {}

    def probe(self, number: int) -> LoadedProbe:
        """Return a probe by its number."""
        if number not in self._probes:
            self._probes[number] = self._loaded(self.specs[number])
        return self._probes[number]

    def tags(self, relation: str) -> tuple[list[Asked], QuerySets]:
        """Return the queries that read a relation, and what makes query-sets of its rows."""
        if relation not in self._tags:
            mine = [one for one in self.plan.queries if relation in one.inputs]
            sets = QuerySets([one.inputs[relation].predicate for one in mine], [one.bit for one in mine])
            self._tags[relation] = mine, sets
        return self._tags[relation]

    def sides(self, relation: str) -> dict[Attribute, Expression]:
        """Return the sides of equalities that are about a relation."""
        every = (sides_of(condition) or () for one in self.plan.queries for condition in one.conditions)
        return {attribute_of(side): side for pair in every for side in pair if relations_of(side) == {relation}}

    def columns(self, relations: frozenset[str], users: Iterable[int]) -> list[str]:
        """Return what is still needed of rows made of some relations: columns that users will look at, and event times."""
        wanted: set[str] = set()
        for one in (self.queries[number] for number in users):
            later = [condition for condition in one.conditions if not relations_of(condition) <= relations]
            wanted |= {name for e in (*later, *one.output) for name in columns(e) if relation_of(name) in relations}
        return [*sorted(wanted), *sorted(map(time_of, relations))]

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """The type of every column that anybody looks at."""
        every = (part for one in self.plan.queries for e in (*one.conditions, *one.output) for part in walk(e))
        return {part.name: part.type for part in every if isinstance(part, Column)}

    def bits(self, queries: Iterable[int]) -> Sets:
        """Return the set of some queries."""
        return set_of([self.queries[number].bit for number in queries], self.width)

    @cached_property
    def indexes(self) -> Mapping[int, tuple[frozenset[Keys], frozenset[Expression]]]:
        """For each store, the keys and the values that probes look rows up by."""
        hashed: dict[int, set[Keys]] = defaultdict(set)
        sorted_by: dict[int, set[Expression]] = defaultdict(set)
        for number, probe in self.specs.items():
            loaded = self.probe(number)
            if loaded.keys:
                hashed[probe.store].add(loaded.keys)
            elif loaded.bounds:
                sorted_by[probe.store].add(loaded.bounds[0].stored)
        return {one.number: (frozenset(hashed[one.number]), frozenset(sorted_by[one.number])) for one in self.plan.stores}

    def _loaded(self, probe: Probe) -> LoadedProbe:
        stored = self.stores[probe.store].relation.relations
        before = probe.covered - stored
        users = [self.queries[number] for number in sorted(probe.users)]
        keys = tuple(right for _, right in probe.keys)
        due: dict[Expression, list[int]] = defaultdict(list)
        for user in users:
            for condition in user.conditions:
                needs = relations_of(condition)
                if needs <= probe.covered and not needs <= before and not needs <= stored:
                    due[condition].append(user.id)
        if len(keys) == 1 and is_whole(keys[0].type):  # equal hashes are equal values: there is nothing left to check
            due = {c: found for c, found in due.items() if not self._is_key(c, probe)}

        def is_stored(name: str) -> bool:
            return relation_of(name) in stored

        everybody = [condition for condition, found in due.items() if len(found) == len(users)]
        bounds = () if keys else best_bounds(everybody, is_stored)
        for one in bounds:
            due = {c: found for c, found in due.items() if bound_of(c, is_stored) != one}
        longest = {name: max(user.inputs[name].range for user in users if name in user.inputs) for name in probe.covered}
        windows: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
        for user in users:
            windows[tuple((name, user.inputs[name].range) for name in sorted(probe.covered))].append(user.id)
        exact = len(windows) == 1 and len(stored) == 1
        return LoadedProbe(
            probe,
            tuple(sorted(stored)),
            tuple(sorted(before)),
            self.bits(probe.users),
            keys,
            bounds,
            {condition: self.bits(found) for condition, found in due.items()},
            longest,
            () if exact else tuple((dict(found), self.bits(ids)) for found, ids in windows.items()),
        )

    def _is_key(self, condition: Expression, probe: Probe) -> bool:
        sides = frozenset(condition.args) if isinstance(condition, Call) and condition.function == "eq" else None
        return any(frozenset(pair) == sides for pair in probe.keys)
