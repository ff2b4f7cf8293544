"""A plan of probes made ready for workers: what every probe has to look at, worked out once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headrace.execution.multiway.stored import Keys
from headrace.execution.query_sets import QuerySets
from headrace.kernels.sets import Sets, set_of, words
from headrace.model.expression import Call, Column, Expression, walk
from headrace.sharing.multiway.asked import Asked, attribute_of, relations_of, sides_of, time_of
from headrace.sharing.multiway.probes import Probe, ProbePlan
from headrace.sharing.multiway.relations import Attribute

_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison that partners can be searched by: stored value, operator, arriving value."""

    stored: Expression
    operator: str
    arriving: Expression


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

    def columns(self, relations: Iterable[str]) -> list[str]:
        """Return the columns of relations that travel and are kept: those that anybody looks at, and event times."""
        chosen = frozenset(relations)
        return [*sorted(self.plan.columns(chosen)), *sorted(map(time_of, chosen))]

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
        everybody = [condition for condition, found in due.items() if len(found) == len(users)]
        bounds = () if keys else _best_bounds(everybody, before, stored)
        for one in bounds:
            due = {c: found for c, found in due.items() if _bound(c, before, stored) != one}
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


def is_whole(kind: pa.DataType) -> bool:
    """Tell whether values of a type are integers to the kernels."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= 18)
    )


def _bound(condition: Expression, before: frozenset[str], stored: frozenset[str]) -> Bound | None:
    """Return a comparison with stored values on one side and arriving ones on the other, if it can be searched by."""
    if not isinstance(condition, Call) or condition.function not in _MIRRORED:
        return None
    one, two = condition.args
    if not (is_whole(one.type) or pa.types.is_floating(one.type)):
        return None
    first, second = relations_of(one), relations_of(two)
    if first and second and first <= stored and second <= before:
        return Bound(one, condition.function, two)
    if first and second and first <= before and second <= stored:
        return Bound(two, _MIRRORED[condition.function], one)
    return None


def _best_bounds(conditions: Iterable[Expression], before: frozenset[str], stored: frozenset[str]) -> tuple[Bound, ...]:
    """Return the comparisons of the stored value that most are about: two make a band."""
    by_value: dict[Expression, list[Bound]] = defaultdict(list)
    for condition in conditions:
        found = _bound(condition, before, stored)
        if found is not None:
            by_value[found.stored].append(found)
    most = max(map(len, by_value.values()), default=0)
    return tuple(next((found for found in by_value.values() if len(found) == most), ()))
