"""What ALL live queries mean together, for one stream: a pure function of the set of live queries.

A `StreamPlan` is one epoch of one stream. Its operators each work once for all their members: `Store` keeps shared
partial aggregates, `Sessions` session windows, `Router` passes rows of stateless queries, `Buckets` keeps rows for joins.
Equal inputs give equal plans, so adding a query and removing it again gives back the plan there was.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from headrace.model.expression import Expression, columns
from headrace.model.window import Ends, SessionGap, Sliding, Window
from headrace.plan.join import JoinQuery, owner
from headrace.plan.logical import AggregateQuery, LogicalQuery, StatelessQuery
from headrace.plan.multiway import MultiwayQuery
from headrace.plan.unfolded import Unfolded
from headrace.sharing.aggregation import Component, components_of
from headrace.sharing.arrangement import Arrangement
from headrace.sharing.grouping import group
from headrace.sharing.joining import leaves, levels, needed_columns
from headrace.sharing.multiway.loan import Loan
from headrace.sharing.selection import Selection, select
from headrace.sharing.slicing import NEVER, progressions
from headrace.sharing.statistics import GUESS, Statistics


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """A query that is in the pipeline: since which event time (T of the meaning), and its bit in query-sets."""

    id: int
    name: str
    plan: LogicalQuery
    since: int = NEVER
    bit: int = 0
    arrangements: tuple[Arrangement, ...] = ()  # of a join: how it is worked off, from which windows on
    feeds: str = ""  # the stream its results are, which other queries read
    lent: tuple[Loan, ...] = ()  # rows of before it came, that others had stored
    unfolded: tuple[Unfolded, ...] = ()  # streams it reads that are made of declared ones

    @property
    def signature(self) -> str:
        """What a plan depends on: the query, and how a join is arranged."""
        return f"{self.id}{''.join(f';{one.order},{one.since}' for one in self.arrangements)}"

    @property
    def levels(self) -> int:
        """How many exchanges it needs after that of its streams."""
        return levels(self.plan, self.arrangements) if isinstance(self.plan, JoinQuery) else 0


@dataclass(frozen=True, slots=True)
class Member:
    """One branch of one query inside a shared operator; `needs` are its components, `outputs` a stateless one's."""

    query: int
    branch: int
    predicate: Expression
    keys: tuple[Expression, ...]
    window: Window | None
    since: int
    streams: tuple[str, ...]  # all the query reads: together they decide its watermark
    needs: tuple[Component, ...] = ()
    outputs: tuple[Expression, ...] = ()
    ends: Ends | None = None  # of windows, where they are not simply those of `window`
    longest: int = 0  # from the earliest start of windows that end together, to that end
    again: bool = False  # the same input is in other buckets, too: there its rows are counted

    @property
    def sharing_key(self) -> Hashable:
        """Members share within one kind of operator over the same group keys."""
        return type(self.window).__name__, self.keys


@dataclass(frozen=True, slots=True)
class Operator:
    """Members that share a selection; `predicate_of[i]` is the place of member i's predicate in the selection."""

    selection: Selection
    members: tuple[Member, ...]
    predicate_of: tuple[int, ...]

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The group keys, the same for all members."""
        return self.members[0].keys

    @property
    def arguments(self) -> frozenset[Expression]:
        """The keys and whatever is aggregated: what is evaluated for rows that were selected."""
        return frozenset((*self.keys, *(arg for m in self.members for need in m.needs for arg in need.args)))


@dataclass(frozen=True, slots=True)
class Store(Operator):
    """Shared partial aggregates per slice, key and cell."""

    components: tuple[Component, ...]
    places: tuple[tuple[int, ...], ...]  # for each member, where its needs are among the components
    steps: tuple[tuple[int, int], ...]
    reach: int  # the longest window: rows older than the watermark by more than this matter to nobody

    @property
    def arguments(self) -> frozenset[Expression]:
        """The keys and whatever is aggregated; from the components, which are few."""
        return frozenset((*self.keys, *(arg for component in self.components for arg in component.args)))


@dataclass(frozen=True, slots=True)
class Sessions(Operator):
    """Session windows per key; members with equal predicate, gap and needs share one computation."""


@dataclass(frozen=True, slots=True)
class Router(Operator):
    """Rows of stateless queries, copied only for the queries that want them."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Rows kept for joins, per slice and key: each once, with the set of queries it matters to (the bits of `bits`).

    A query that reads the stream twice by the same keys has buckets of its own, the next `slot`, for the other input.
    """

    slot: int
    members: tuple[Member, ...]
    bits: tuple[int, ...]
    columns: tuple[str, ...]
    steps: tuple[tuple[int, int], ...]
    reach: int

    @property
    def keys(self) -> tuple[Expression, ...]:
        """What rows are joined by, the same for all members."""
        return self.members[0].keys


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The shared operators over one stream during one epoch, the columns they read, and what was known when planning."""

    stream: str
    stores: tuple[Store, ...]
    sessions: tuple[Sessions, ...]
    routers: tuple[Router, ...]
    buckets: tuple[Buckets, ...]
    columns: frozenset[str]
    stats: Statistics

    @property
    def members(self) -> tuple[Member, ...]:
        """All members of all operators."""
        shared = [member for operator in self.operators for member in operator.members]
        return (*shared, *(member for buckets in self.buckets for member in buckets.members))

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators that share a selection, in the order a row meets them."""
        return (*self.stores, *self.sessions, *self.routers)


def plan_stream(stream: str, queries: Iterable[LiveQuery], stats: Statistics = GUESS) -> StreamPlan:
    """Return the shared plan of one stream for a set of live queries."""
    ordered = sorted(queries, key=lambda q: q.id)
    members = [m for query in ordered for m in _members(stream, query)]
    stores, sessions, routers = [], [], []
    for layout, found in group(members, stats):
        found.sort(key=lambda m: (m.query, m.branch))
        selection = select([m.predicate for m in found], layout)
        places = {p: i for i, p in enumerate(selection.predicates)}
        base = (selection, tuple(found), tuple(places[m.predicate] for m in found))
        if found[0].window is None:
            routers.append(Router(*base))
        elif isinstance(found[0].window, SessionGap):
            sessions.append(Sessions(*base))
        else:
            stores.append(_store(*base))
    buckets = plan_buckets(stream, ordered)
    joining = [name for each in buckets for name in each.columns]
    joining += [name for each in buckets for m in each.members for name in columns(m.predicate)]
    joining += [name for query in ordered if isinstance(query.plan, MultiwayQuery) for name in _multiway(stream, query.plan)]
    needed = frozenset(name for m in members for e in _expressions(m) for name in columns(e)).union(joining)
    return StreamPlan(stream, tuple(stores), tuple(sessions), tuple(routers), buckets, needed, stats)


def plan_buckets(stream: str, queries: Iterable[LiveQuery]) -> tuple[Buckets, ...]:
    """Return the buckets that joins need of a stream: one for each set of keys it is joined by."""
    found: dict[tuple[tuple[Expression, ...], int], list[tuple[Member, int, frozenset[str]]]] = {}
    for query in queries:
        if isinstance(query.plan, JoinQuery):
            known: set[int] = set()
            for index, slot, keys in leaves(query.plan, query.arrangements, stream):
                plan, each = query.plan, query.plan.inputs[index]
                base = (query.id, index, each.predicate, keys, each.window, query.since, plan.streams)
                member = Member(*base, ends=plan.ends, longest=plan.size, again=index in known)
                known.add(index)
                found.setdefault((keys, slot), []).append((member, query.bit, needed_columns(plan, index)))
    return tuple(
        Buckets(
            slot,
            tuple(member for member, _, _ in members),
            tuple(bit for _, bit, _ in members),
            tuple(sorted(frozenset().union(*(names for *_, names in members)))),
            progressions({m.window for m, *_ in members if isinstance(m.window, Sliding)}),
            max(m.window.size for m, *_ in members if isinstance(m.window, Sliding)),
        )
        for (_, slot), members in found.items()
    )


def _store(selection: Selection, members: tuple[Member, ...], predicate_of: tuple[int, ...]) -> Store:
    windows = [m.window for m in members if isinstance(m.window, Sliding)]
    needs = tuple(dict.fromkeys(need for m in members for need in m.needs))
    at = {need: i for i, need in enumerate(needs)}
    places = tuple(tuple(at[need] for need in m.needs) for m in members)
    return Store(selection, members, predicate_of, needs, places, progressions(set(windows)), max(w.size for w in windows))


def _members(stream: str, query: LiveQuery) -> Iterable[Member]:
    plan = query.plan
    if isinstance(plan, StatelessQuery):
        for index, select_branch in enumerate(plan.branches):
            if select_branch.stream == stream:
                yield Member(
                    query.id, index, select_branch.predicate, (), None, query.since, plan.streams, outputs=select_branch.outputs
                )
    elif isinstance(plan, AggregateQuery):
        parts = components_of([branch.aggregates for branch in plan.branches])
        for index, branch in enumerate(plan.branches):
            if branch.stream == stream:
                needs = tuple(one[index] for one in parts)
                yield Member(query.id, index, branch.predicate, branch.keys, plan.window, query.since, plan.streams, needs=needs)


def _multiway(stream: str, plan: MultiwayQuery) -> Iterable[str]:
    """Yield the columns of a stream that a multi-way join looks at."""
    mine = {index for index, one in enumerate(plan.inputs) if one.stream == stream}
    for index in mine:
        yield from columns(plan.inputs[index].predicate)
    for expression in (*plan.conditions, *plan.output):
        yield from (name for number, name in map(owner, columns(expression)) if number in mine)


def _expressions(member: Member) -> Iterable[Expression]:
    yield member.predicate
    yield from member.keys
    yield from member.outputs
    for need in member.needs:
        yield from need.args
