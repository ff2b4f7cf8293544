"""Members of shared operators: query branches, with what planning derives from each of them.

A `MemberTable` keeps that from plan to plan. Where thousands of queries are live and one is added, only its branches are
analysed: parts of a plan are compared by the identity of these objects, and put together by loops that evaluate no expression.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headrace.model.expression import Expression, column_names
from headrace.model.window import HopWindow, Window
from headrace.planner.components import Component
from headrace.planner.predicate_index import CellLayout, Dimension, PredicateIndex, combine_dimensions, derive_dimensions


class Groupable(Protocol):
    """A query branch with a predicate that can share a selection with others of the same `sharing_key`."""

    @property
    def query_id(self) -> int:
        """The query."""

    @property
    def branch(self) -> int:
        """The number of the branch in its query."""

    @property
    def predicate(self) -> Expression:
        """The rows that it selects."""

    @property
    def window(self) -> Window | None:
        """The window that decides its slices, if any."""

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The group keys."""

    @property
    def components(self) -> tuple[Component, ...]:
        """What is kept of its rows."""

    @property
    def outputs(self) -> tuple[Expression, ...]:
        """What a stateless query emits."""

    @property
    def sharing_key(self) -> Hashable:
        """Only branches with equal sharing keys may share."""


GroupableT = TypeVar("GroupableT", bound=Groupable)
_MEMBERS_KEPT = 64  # of earlier plans


@dataclass(frozen=True, slots=True, eq=False)
class SharedPredicate:
    """A predicate with its dimensions. Equal predicates are one object."""

    expression: Expression
    dimensions: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """What branches have in common that always share a selection; `order` sorts clusters. Equal clusters are one object."""

    sharing_key: Hashable
    keys: tuple[Expression, ...]
    expressions: frozenset[Expression]
    order: tuple[int, str, tuple[str, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class GroupMember(Generic[GroupableT]):
    """A query branch with what planning derives from it; `position` sorts the members of a group.

    Equal tuples of components are one object.
    """

    subscriber: GroupableT
    position: tuple[int, int]
    predicate: SharedPredicate
    cluster: Cluster
    components: tuple[Component, ...]
    columns: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable(Generic[GroupableT]):
    """The members of recent plans of a stream: a memo, which influences no plan."""

    members: dict[int, GroupMember[GroupableT]] = field(default_factory=dict)
    """By identity of the subscriber, which the member keeps alive."""
    predicates: dict[Expression, SharedPredicate] = field(default_factory=dict)
    clusters: dict[Hashable, Cluster] = field(default_factory=dict)
    component_sets: dict[tuple[Component, ...], tuple[Component, ...]] = field(default_factory=dict)

    def find_members(self, subscribers: Iterable[GroupableT]) -> list[GroupMember[GroupableT]]:
        """Return the members for these subscribers; those that the table knows are the same objects as before."""
        known = self.members
        return [known.get(id(subscriber)) or self._analyze(subscriber) for subscriber in subscribers]

    def forget_others(self, subscribers: Iterable[GroupableT]) -> None:
        """Forget what none of these subscribers needs, once that may be more than they need."""
        used = {id(subscriber) for subscriber in subscribers}
        if len(self.members) <= 2 * len(used) + _MEMBERS_KEPT:
            return
        kept = {key: member for key, member in self.members.items() if key in used}
        for memo in (self.members, self.predicates, self.clusters, self.component_sets):
            memo.clear()
        self.members.update(kept)
        for member in kept.values():
            self.predicates[member.predicate.expression] = member.predicate
            self.clusters[_make_cluster_key(member.subscriber, member.predicate)] = member.cluster
            self.component_sets[member.components] = member.components

    def _analyze(self, subscriber: GroupableT) -> GroupMember[GroupableT]:
        predicate = self.predicates.get(subscriber.predicate)
        if predicate is None:
            predicate = SharedPredicate(subscriber.predicate, derive_dimensions((subscriber.predicate,)))
            self.predicates[subscriber.predicate] = predicate
        key = _make_cluster_key(subscriber, predicate)
        cluster = self.clusters.get(key)
        if cluster is None:
            cluster = self.clusters[key] = _make_cluster(subscriber, predicate)
        components = self.component_sets.setdefault(subscriber.components, subscriber.components)
        position = subscriber.query_id, subscriber.branch
        member = GroupMember(subscriber, position, predicate, cluster, components, _find_columns(subscriber))
        self.members[id(subscriber)] = member
        return member


def build_predicate_index(predicates: Sequence[SharedPredicate], layout: CellLayout) -> PredicateIndex:
    """Return the predicate index of distinct predicates in a layout."""
    expressions = tuple(predicate.expression for predicate in predicates)
    if layout is CellLayout.PER_QUERY:
        return PredicateIndex(expressions, tuple(Dimension(expression, None) for expression in expressions), layout)
    return PredicateIndex(expressions, combine_dimensions(predicate.dimensions for predicate in predicates), layout)


def _make_cluster_key(subscriber: Groupable, predicate: SharedPredicate) -> Hashable:
    expressions = frozenset(dimension.expression for dimension in predicate.dimensions)
    return subscriber.sharing_key, expressions, _classify_granularity(subscriber.window)


def _make_cluster(subscriber: Groupable, predicate: SharedPredicate) -> Cluster:
    expressions = frozenset(dimension.expression for dimension in predicate.dimensions)
    texts = tuple(sorted(map(str, expressions)))
    order = -len(expressions), str(subscriber.sharing_key), texts, _classify_granularity(subscriber.window)
    return Cluster(subscriber.sharing_key, subscriber.keys, expressions, order)


def _classify_granularity(window: Window | None) -> int:
    """Return a granularity class: within one class, slice lengths differ so little that slices are always shared."""
    return math.gcd(window.size, window.slide).bit_length() // 3 if isinstance(window, HopWindow) else 0


def _find_columns(subscriber: Groupable) -> frozenset[str]:
    """Return the names of the columns that a branch reads."""
    arguments = [argument for component in subscriber.components for argument in component.args]
    expressions = (subscriber.predicate, *subscriber.keys, *subscriber.outputs, *arguments)
    return frozenset(name for expression in expressions for name in column_names(expression))
