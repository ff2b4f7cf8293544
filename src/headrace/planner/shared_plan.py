"""The shared plan of one stream: a pure function of the set of live queries.

A `StreamPlan` covers one epoch of one stream. Each operator works once for all its subscribers: `SharedAggregation` keeps shared
partial aggregates, `SessionAggregation` aggregates session windows, `StatelessRouter` routes rows of stateless queries,
`JoinBuffer` buffers rows for window joins. Equal inputs give equal plans: adding a query and removing it again restores the
previous plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from headrace.model.expression import Expression, column_names
from headrace.model.record import record
from headrace.model.time import MIN_TIME
from headrace.model.window import HopWindow, SessionWindow, Window, WindowEnds
from headrace.plan.derived import RowStream
from headrace.plan.logical import AggregateQuery, LogicalQuery, StatelessQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery, split_joined_name
from headrace.planner.components import Component, derive_branch_components
from headrace.planner.group_members import Cluster, GroupMember, MemberTable, build_predicate_index
from headrace.planner.join.window_join_plan import JoinOrderVersion, count_extra_shuffles, find_needed_columns, iter_buffer_keys
from headrace.planner.operator_grouping import MemberGroup, group_members
from headrace.planner.predicate_index import CellLayout, PredicateIndex
from headrace.planner.query_bits import FormerBit
from headrace.planner.slicing import derive_progressions
from headrace.planner.statistics import DEFAULT_STATISTICS, StreamStatistics


@record("backfill")
@dataclass(frozen=True, slots=True)
class Backfill:
    """Rows of a relation stored for query `query_id` under its bit, from `first_batch` on, with event times from `since` on.

    The bits are those of the query when its rows were borrowed: it may be removed since.
    """

    relation: str
    query_id: int
    bit: int
    first_batch: int
    since: int
    former_bits: tuple[FormerBit, ...] = ()


@record("live-query")
@dataclass(frozen=True, slots=True)
class LiveQuery:
    """A query in the pipeline: it sees rows from event time `since` on (T of its semantics) and owns `bit` in query-sets."""

    id: int
    name: str
    plan: LogicalQuery
    since: int = MIN_TIME
    bit: int = 0
    order_versions: tuple[JoinOrderVersion, ...] = ()  # of a window join: versions of its join order
    output_stream: str = ""  # the derived stream of its results, read by other queries
    backfills: tuple[Backfill, ...] = ()  # earlier rows, taken from the state of other queries
    unnested: tuple[RowStream, ...] = ()  # unnested streams that it reads
    former_bits: tuple[FormerBit, ...] = ()  # of a sliding join: bits in query-sets that earlier batches defined

    @property
    def signature(self) -> str:
        """What a plan depends on: the query id, the bit in join buffers, and the join order versions."""
        bit = f"/{self.bit}" if isinstance(self.plan, WindowJoinQuery) else ""
        return f"{self.id}{bit}{''.join(f';{version.order},{version.since}' for version in self.order_versions)}"

    @property
    def extra_shuffles(self) -> int:
        """The number of shuffles after that of its input streams."""
        return count_extra_shuffles(self.plan, self.order_versions) if isinstance(self.plan, WindowJoinQuery) else 0


@record("subscriber")
@dataclass(frozen=True, slots=True)
class Subscriber:
    """One query branch's use of a shared operator; `components` are its aggregates, `outputs` those of a stateless query."""

    query_id: int
    branch: int
    predicate: Expression
    keys: tuple[Expression, ...]
    window: Window | None
    since: int
    streams: tuple[str, ...]  # all streams of the query; together they decide its watermark
    components: tuple[Component, ...] = ()
    outputs: tuple[Expression, ...] = ()
    window_ends: WindowEnds | None = None  # window ends, where they differ from those of `window`
    longest_window: int = 0  # time from the earliest start to the common end of windows that end together
    is_counted_elsewhere: bool = False  # the input has another join buffer, which counts its rows

    @property
    def sharing_key(self) -> Hashable:
        """Branches share within one kind of operator over the same group keys."""
        return type(self.window).__name__, self.keys


@dataclass(frozen=True, slots=True)
class SharedOperator:
    """An operator whose subscribers share a predicate index.

    `predicate_numbers[i]` is the position of subscriber i's predicate in the index.
    """

    predicate_index: PredicateIndex
    subscribers: tuple[Subscriber, ...]
    predicate_numbers: tuple[int, ...]

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The group keys, equal for all subscribers."""
        return self.subscribers[0].keys

    @property
    def arguments(self) -> frozenset[Expression]:
        """The keys and aggregate arguments: all expressions that are evaluated for selected rows."""
        return frozenset((*self.keys, *(arg for m in self.subscribers for need in m.components for arg in need.args)))


@record("shared-aggregation")
@dataclass(frozen=True, slots=True)
class SharedAggregation(SharedOperator):
    """Shared partial aggregates by slice, key and cell."""

    components: tuple[Component, ...]
    component_numbers: tuple[tuple[int, ...], ...]  # for each subscriber, the positions of its components
    slice_progressions: tuple[tuple[int, int], ...]
    retention: int  # the longest window: no query needs rows that are further behind the watermark

    @property
    def arguments(self) -> frozenset[Expression]:
        """The keys and aggregate arguments, derived from the components, which are few."""
        return frozenset((*self.keys, *(arg for component in self.components for arg in component.args)))


@record("session-aggregation")
@dataclass(frozen=True, slots=True)
class SessionAggregation(SharedOperator):
    """Session windows by key; subscribers with equal predicate, gap and components share one computation."""


@record("stateless-router")
@dataclass(frozen=True, slots=True)
class StatelessRouter(SharedOperator):
    """Routes rows of stateless queries: a row is copied only to the queries that select it."""


AnyOperator: TypeAlias = SharedAggregation | SessionAggregation | StatelessRouter


@record("join-buffer")
@dataclass(frozen=True, slots=True)
class JoinBuffer:
    """Rows buffered for window joins by slice and key: each row once, with its query-set (over the bits in `query_bits`).

    A query that reads the stream twice by the same keys uses a second join buffer, with the next `slot`, for the other input.

    A buffer with a `home` has references to the rows of the buffer with this index, and only some of their columns; a home buffer
    `has_row_ids` (see `join.row_storage`).
    """

    slot: int
    subscribers: tuple[Subscriber, ...]
    query_bits: tuple[int, ...]
    columns: tuple[str, ...]
    slice_progressions: tuple[tuple[int, int], ...]
    retention: int
    home: int | None = None
    has_row_ids: bool = False

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The join keys, equal for all subscribers."""
        return self.subscribers[0].keys


@record("stream-plan")
@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The shared operators over one stream during one epoch, the columns they read, and the statistics used for planning."""

    stream: str
    aggregations: tuple[SharedAggregation, ...]
    sessions: tuple[SessionAggregation, ...]
    routers: tuple[StatelessRouter, ...]
    join_buffers: tuple[JoinBuffer, ...]
    columns: frozenset[str]
    stats: StreamStatistics

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """All subscribers of all operators and join buffers."""
        shared = [member for operator in self.operators for member in operator.subscribers]
        return (*shared, *(member for buckets in self.join_buffers for member in buckets.subscribers))

    @property
    def operators(self) -> tuple[AnyOperator, ...]:
        """All operators with a predicate index, in the order in which they process a row."""
        return (*self.aggregations, *self.sessions, *self.routers)


@dataclass(frozen=True, slots=True, eq=False)
class PlanMemo:
    """What planning a stream has derived, kept for its next plan: then only what has changed is planned.

    A plan is equal with any memo, and has the subscribers and operators of the plan before where they are the same.
    """

    table: MemberTable[Subscriber] = field(default_factory=MemberTable)
    subscribers: dict[int, tuple[LogicalQuery, int, tuple[Subscriber, ...]]] = field(default_factory=dict)
    operators: dict[Cluster, tuple[MemberGroup[Subscriber], AnyOperator]] = field(default_factory=dict)

    def list_members(self, stream: str, queries: Iterable[LiveQuery]) -> list[GroupMember[Subscriber]]:
        """Return the branches of queries over a stream, by query."""
        before = dict(self.subscribers)
        self.subscribers.clear()
        for query in queries:
            known = before.get(query.id)
            if known is None or known[0] is not query.plan or known[1] != query.since:
                known = query.plan, query.since, tuple(_iter_subscribers(stream, query))
            self.subscribers[query.id] = known
        return self.table.find_members(chain.from_iterable(known[2] for known in self.subscribers.values()))

    def build_operators(self, groups: Iterable[MemberGroup[Subscriber]]) -> list[AnyOperator]:
        """Return an operator for each group: the one that was returned before if nothing of the group has changed."""
        before = dict(self.operators)
        self.operators.clear()
        for group in groups:
            known = before.get(group.cluster)
            if known is None or known[0].members != group.members or known[0].layout is not group.layout:
                known = group, build_operator(group.layout, group.members)
            self.operators[group.cluster] = known
        return [operator for _, operator in self.operators.values()]


def plan_stream(
    stream: str, queries: Iterable[LiveQuery], stats: StreamStatistics = DEFAULT_STATISTICS, memo: PlanMemo | None = None
) -> StreamPlan:
    """Return the shared plan of one stream for a set of live queries."""
    memo = PlanMemo() if memo is None else memo
    ordered = sorted(queries, key=lambda q: q.id)
    members = memo.list_members(stream, ordered)
    operators = memo.build_operators(group_members(members, stats))
    memo.table.forget_others(member.subscriber for member in members)
    join_buffers = plan_join_buffers(stream, ordered)
    join_columns = [name for buffer in join_buffers for name in buffer.columns]
    join_columns += [name for buffer in join_buffers for m in buffer.subscribers for name in column_names(m.predicate)]
    join_columns += [
        name
        for query in ordered
        if isinstance(query.plan, SlidingJoinQuery)
        for name in _iter_sliding_join_columns(stream, query.plan)
    ]
    needed = frozenset(join_columns).union(*{member.columns for member in members})
    return assemble_plan(stream, operators, join_buffers, needed, stats)


def assemble_plan(
    stream: str,
    operators: Sequence[AnyOperator],
    join_buffers: tuple[JoinBuffer, ...],
    columns: frozenset[str],
    stats: StreamStatistics,
) -> StreamPlan:
    """Return the plan with these operators."""
    aggregations = tuple(operator for operator in operators if isinstance(operator, SharedAggregation))
    sessions = tuple(operator for operator in operators if isinstance(operator, SessionAggregation))
    routers = tuple(operator for operator in operators if isinstance(operator, StatelessRouter))
    return StreamPlan(stream, aggregations, sessions, routers, join_buffers, columns, stats)


def build_operator(layout: CellLayout, members: Sequence[GroupMember[Subscriber]]) -> AnyOperator:
    """Return the operator that these members share, in the order of their positions; it depends on nothing else."""
    predicates = dict.fromkeys(member.predicate for member in members)
    numbers = {predicate: number for number, predicate in enumerate(predicates)}
    subscribers = tuple(member.subscriber for member in members)
    predicate_numbers = tuple(numbers[member.predicate] for member in members)
    base = (build_predicate_index(tuple(predicates), layout), subscribers, predicate_numbers)
    window = subscribers[0].window
    if window is None:
        return StatelessRouter(*base)
    if isinstance(window, SessionWindow):
        return SessionAggregation(*base)
    distinct = {id(m.components): m.components for m in members}
    needs = tuple(dict.fromkeys(need for components in distinct.values() for need in components))
    positions = {need: i for i, need in enumerate(needs)}
    places = {key: tuple(positions[need] for need in components) for key, components in distinct.items()}
    windows = {id(m.subscriber.window): m.subscriber.window for m in members}
    hops = {window for window in windows.values() if isinstance(window, HopWindow)}
    component_numbers = tuple(places[id(member.components)] for member in members)
    return SharedAggregation(*base, needs, component_numbers, derive_progressions(hops), max(hop.size for hop in hops))


def plan_join_buffers(stream: str, queries: Iterable[LiveQuery]) -> tuple[JoinBuffer, ...]:
    """Return the join buffers of a stream: one for each set of join keys."""
    subscribers_by_key: dict[tuple[tuple[Expression, ...], int], list[tuple[Subscriber, int, frozenset[str]]]] = {}
    for query in queries:
        if isinstance(query.plan, WindowJoinQuery):
            seen_inputs: set[int] = set()
            for index, slot, keys in iter_buffer_keys(query.plan, query.order_versions, stream):
                plan, join_input = query.plan, query.plan.inputs[index]
                base = (query.id, index, join_input.predicate, keys, join_input.window, query.since, plan.streams)
                subscriber = Subscriber(
                    *base, window_ends=plan.ends, longest_window=plan.longest_window, is_counted_elsewhere=index in seen_inputs
                )
                seen_inputs.add(index)
                subscribers_by_key.setdefault((keys, slot), []).append((subscriber, query.bit, find_needed_columns(plan, index)))
    return tuple(
        JoinBuffer(
            slot,
            tuple(subscriber for subscriber, _, _ in subscribers),
            tuple(bit for _, bit, _ in subscribers),
            tuple(sorted(frozenset().union(*(names for *_, names in subscribers)))),
            derive_progressions({m.window for m, *_ in subscribers if isinstance(m.window, HopWindow)}),
            max(m.window.size for m, *_ in subscribers if isinstance(m.window, HopWindow)),
        )
        for (_, slot), subscribers in subscribers_by_key.items()
    )


def _iter_subscribers(stream: str, query: LiveQuery) -> Iterable[Subscriber]:
    plan = query.plan
    if isinstance(plan, StatelessQuery):
        for index, select_branch in enumerate(plan.branches):
            if select_branch.stream == stream:
                yield Subscriber(
                    query.id, index, select_branch.predicate, (), None, query.since, plan.streams, outputs=select_branch.outputs
                )
    elif isinstance(plan, AggregateQuery):
        branch_components = derive_branch_components([branch.aggregates for branch in plan.branches])
        for index, branch in enumerate(plan.branches):
            if branch.stream == stream:
                needs = tuple(component[index] for component in branch_components)
                yield Subscriber(
                    query.id, index, branch.predicate, branch.keys, plan.window, query.since, plan.streams, components=needs
                )


def _iter_sliding_join_columns(stream: str, plan: SlidingJoinQuery) -> Iterable[str]:
    """Yield the columns of a stream that a sliding join reads."""
    input_indexes = {index for index, join_input in enumerate(plan.inputs) if join_input.stream == stream}
    for index in input_indexes:
        yield from column_names(plan.inputs[index].predicate)
    for expression in (*plan.conditions, plan.predicate, *plan.output):
        yield from (name for number, name in map(split_joined_name, column_names(expression)) if number in input_indexes)
