"""Derived streams: results of windows as the input of nested queries, unnested lists, and unions that are joined.

A nested query reads the results of inner queries, which form a derived stream. A result has the event time
window_end − 1 µs, the last time in its window; a row joined in SLIDING windows has that of its newest input. Results appear
when the watermark has passed window_end, or in the batch of the newest input, so none is ever late unless the join allows
late rows, and the outer query uses the watermarks of the declared streams. Besides the columns of the inner query, the derived
stream has three hidden columns that no query can name: the window bounds and that event time. An aggregation of results
within the windows that produced them has these bounds as group keys, in windows each of which holds the results of a single
inner window.

An unnested stream has a row for each element of a list, made before any query processes the rows.

    tweets   ──(text: 'a b')──(text: NULL)──(text: 'c')──▶
    words       a, b                          c              at the event time of their tweet

It has all columns and the watermark of its base stream, and one more column for the element. Its name is a hash of its
definition, so that all queries that unnest the same list read the same stream, and it is made once for them.

A united stream has the rows of several streams that a union selects, with the columns of the union, as one input of a join. It is
made where rows are read, like an unnested stream, and has a hash as its name; its watermark is the lowest of its streams. Only
unions that are joined become streams: others are pushed down into their branches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard, TypeVar

import pyarrow as pa

from headrace.model.expression import TRUE, Call, Column, Expression, Literal
from headrace.model.record import record, render_record
from headrace.model.stream import Stream
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.model.window import HopWindow, ends_of_window
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery, LogicalQuery, key_column
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery

HIDDEN_START, HIDDEN_END, HIDDEN_TIME = "#start", "#end", "#time"
HIDDEN_BOUNDS = (Column(HIDDEN_START, TIMESTAMP), Column(HIDDEN_END, TIMESTAMP))
HIDDEN_COLUMN_COUNT = 3  # hidden columns after those of the inner query
MAX_INNER_QUERIES = 16  # per query

WindowedQuery: TypeAlias = AggregateQuery | WindowJoinQuery
InnerQuery: TypeAlias = WindowedQuery | SlidingJoinQuery
_PlanT = TypeVar("_PlanT", bound=LogicalQuery)


@dataclass(frozen=True, slots=True)
class DerivedStream:
    """An inner query and the stream of its results; the last outputs are the window bounds and the window end.

    The engine sets the event time from the window end. A row joined in SLIDING windows counts as a window of one microsecond,
    at the time of its newest input.
    """

    stream: Stream
    plan: InnerQuery

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name


@dataclass(frozen=True, slots=True)
class NestedQuery:
    """A query over the results of inner queries.

    Each of `inner` reads declared streams and earlier inner queries; `outer` reads any of them. `unnested` are the unnested and
    united streams that they read, each after the streams that it is based on.
    """

    inner: tuple[DerivedStream, ...]
    outer: LogicalQuery
    unnested: tuple[RowStream, ...] = ()

    @property
    def schema(self) -> Schema:
        """The schema of the emitted rows."""
        return self.outer.schema

    @property
    def streams(self) -> tuple[str, ...]:
        """The declared streams that the query reads, each once."""
        derived_names, unnested = {source.name for source in self.inner}, {source.name: source for source in self.unnested}
        names = (name for plan in (*(source.plan for source in self.inner), self.outer) for name in plan.streams)
        declared = (resolve_declared_names(name, unnested) for name in names if name not in derived_names)
        return tuple(dict.fromkeys(name for resolved in declared for name in resolved))


AnyQuery: TypeAlias = LogicalQuery | NestedQuery


def derive_stream(plan: WindowedQuery, lag: int = 0) -> DerivedStream:
    """Return the results of a query as a stream; equal queries give equal streams. `lag` is that of the streams it reads."""
    schema = Schema((*plan.schema.fields, *(Field(name, TIMESTAMP) for name in (HIDDEN_START, HIDDEN_END, HIDDEN_TIME))))
    extended = replace(plan, output=(*plan.output, *result_bounds(plan), WINDOW_END), schema=schema)
    name = f"~{hashlib.sha256(render_record(extended).encode()).hexdigest()[:12]}"
    return DerivedStream(Stream(name, schema, HIDDEN_TIME, lag=lag), extended)


def derive_joined_stream(plan: SlidingJoinQuery, times: Sequence[str]) -> DerivedStream:
    """Return the rows of a join in SLIDING windows as a stream; `times` are the event-time columns of its inputs."""
    columns = tuple(Column(f"{index}.{name}", TIMESTAMP) for index, name in enumerate(times))
    newest = Call("greatest", columns, TIMESTAMP)
    end = Call("time_add", (newest, Literal(1, pa.int64())), TIMESTAMP)
    schema = Schema((*plan.schema.fields, *(Field(name, TIMESTAMP) for name in (HIDDEN_START, HIDDEN_END, HIDDEN_TIME))))
    extended = replace(plan, output=(*plan.output, newest, end, end), schema=schema)
    name = f"~{hashlib.sha256(render_record(extended).encode()).hexdigest()[:12]}"
    return DerivedStream(Stream(name, schema, HIDDEN_TIME, lag=plan.lag), extended)


def result_bounds(plan: WindowedQuery) -> tuple[Column, Column]:
    """Return the window bounds of a result, as columns after its aggregation."""
    if has_inner_window_keys(plan):
        keys = plan.branches[0].keys
        return key_column(len(keys) - 2, TIMESTAMP), key_column(len(keys) - 1, TIMESTAMP)
    return WINDOW_START, WINDOW_END


def has_inner_window_keys(plan: WindowedQuery) -> TypeGuard[AggregateQuery]:
    """Return whether the query aggregates results within their own windows: their bounds are its last keys."""
    return isinstance(plan, AggregateQuery) and plan.branches[0].keys[-2:] == HIDDEN_BOUNDS


def isolate_inner_queries(query: NestedQuery, number: int) -> NestedQuery:
    """Rename the inner streams that must not be shared with other queries.

    Results of tumbling and hopping aggregations are, from some time on, the same for all queries. Sessions depend on the start
    of the query, and a join may emit its rows in another order.
    """
    names: dict[str, str] = {}
    inner = []
    for source in query.inner:
        is_shared = isinstance(source.plan, AggregateQuery) and isinstance(source.plan.window, HopWindow)
        if not is_shared or any(name in names for name in source.plan.streams):
            names[source.name] = f"{source.name}-{number}"
            stream = replace(source.stream, name=names[source.name])
            inner.append(DerivedStream(stream, rename_streams(source.plan, names)))
        else:
            inner.append(source)
    return NestedQuery(tuple(inner), rename_streams(query.outer, names), query.unnested)


def rename_streams(plan: _PlanT, names: Mapping[str, str]) -> _PlanT:
    """Return the plan with streams renamed."""
    if isinstance(plan, WindowJoinQuery | SlidingJoinQuery):
        return replace(plan, inputs=tuple(replace(side, stream=names.get(side.stream, side.stream)) for side in plan.inputs))  # type: ignore[arg-type]
    return replace(plan, branches=tuple(replace(part, stream=names.get(part.stream, part.stream)) for part in plan.branches))  # type: ignore[arg-type]


def compute_start_times(query: NestedQuery, since: int | None) -> tuple[int | None, ...]:
    """Return the event time from which each inner query, and last the outer query, sees rows if the query starts at `since`.

    An outer window is complete if all inner windows that end in it start at or after that time. None means −∞.
    """
    stream_starts: dict[str, int] = {}
    starts: list[int | None] = []
    for plan in (*(source.plan for source in query.inner), query.outer):
        if since is None:
            starts.append(None)
            continue
        start = _compute_start_time(plan, {name: stream_starts.get(name, since) for name in plan.streams})
        starts.append(start)
        if len(starts) <= len(query.inner):
            assert isinstance(plan, AggregateQuery | WindowJoinQuery | SlidingJoinQuery)
            stream_starts[query.inner[len(starts) - 1].name] = _last_incomplete_end(plan, start)
    return tuple(starts)


def _compute_start_time(plan: LogicalQuery, stream_starts: Mapping[str, int]) -> int:
    if not isinstance(plan, WindowJoinQuery):
        return max(stream_starts.values())
    # shorter windows start later
    return max(stream_starts[side.stream] - (plan.longest_window - side.window.size) for side in plan.inputs)


def _last_incomplete_end(plan: InnerQuery, since: int) -> int:
    """Return the end of the last window that started before `since`: the results of later windows are complete.

    A join in SLIDING windows has found all results whose newest row is later by at least its longest range.
    """
    if isinstance(plan, SlidingJoinQuery):
        return since + max(join_input.length for join_input in plan.inputs)
    if isinstance(plan, WindowJoinQuery):
        ends, size = plan.ends, plan.longest_window
    elif isinstance(plan.window, HopWindow):
        ends, size = ends_of_window(plan.window), plan.window.size
    else:
        return since
    first_complete = since + size  # no complete window ends before this time
    last_incomplete = (first_complete - 1 - ends.offset) // ends.step * ends.step + ends.offset
    return max(since, last_incomplete)


@record("unnested-stream")
@dataclass(frozen=True, slots=True)
class UnnestedStream:
    """A stream with a row for each element of `list_expression`, a list over columns of `base`.

    A row whose list is NULL or empty yields no rows.
    """

    stream: Stream
    base: str
    list_expression: Expression

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def bases(self) -> tuple[str, ...]:
        """The streams that it is based on."""
        return (self.base,)

    @property
    def element(self) -> Column:
        """The element column, which is the last one."""
        last = self.stream.schema.fields[-1]
        return Column(last.name, last.type)


def unnest_stream(base: Stream, values: Expression) -> UnnestedStream:
    """Return the unnested stream of a list expression; equal lists of one stream give equal streams."""
    element = Field(f"#{len(base.schema)}", values.type.value_type)
    name = f"{base.name}*{hashlib.sha256(render_record(values).encode()).hexdigest()[:12]}"
    stream = Stream(name, Schema((*base.schema.fields, element)), base.time, base.delay, lag=base.lag)
    return UnnestedStream(stream, base.name, values)


@record("union-branch")
@dataclass(frozen=True, slots=True)
class UnionBranch:
    """The rows of stream `base` that a union selects, and its columns over them, the event time among them."""

    base: str
    columns: tuple[Expression, ...]
    predicate: Expression = TRUE


@record("united-stream")
@dataclass(frozen=True, slots=True)
class UnitedStream:
    """The rows of several streams as one stream."""

    stream: Stream
    branches: tuple[UnionBranch, ...]

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def bases(self) -> tuple[str, ...]:
        """The streams that it is based on."""
        return tuple(dict.fromkeys(branch.base for branch in self.branches))


RowStream: TypeAlias = UnnestedStream | UnitedStream
"""A stream that is derived from rows as they are read."""


def unite_streams(fields: Sequence[Field], times: Sequence[Column], branches: Sequence[UnionBranch]) -> UnitedStream:
    """Return a union as a stream; equal unions are equal streams. `times` has the event time of each branch.

    Its event-time column is the first one that has the event time in all branches, or a hidden one.
    """
    values = zip(*(branch.columns for branch in branches), strict=True)
    time = next((field.name for field, of_branch in zip(fields, values, strict=True) if of_branch == tuple(times)), None)
    if time is None:
        fields = [*fields, Field(HIDDEN_TIME, TIMESTAMP)]
        branches = [replace(branch, columns=(*branch.columns, at)) for branch, at in zip(branches, times, strict=True)]
    name = f"union*{hashlib.sha256(render_record((tuple(fields), tuple(branches))).encode()).hexdigest()[:12]}"
    return UnitedStream(Stream(name, Schema(tuple(fields)), time or HIDDEN_TIME), tuple(branches))


def collect_unnested(names: Iterable[str], known: Mapping[str, RowStream]) -> tuple[RowStream, ...]:
    """Return the unnested and united streams among `names`, each after those that it is based on."""
    collected: dict[str, RowStream] = {}
    for name in names:
        source = known.get(name)
        if source is not None and name not in collected:
            collected |= {base.name: base for base in collect_unnested(source.bases, known)} | {name: source}
    return tuple(collected.values())


def resolve_declared_names(name: str, known: Mapping[str, RowStream]) -> tuple[str, ...]:
    """Return the declared streams that an unnested or united stream is based on; of any other name, the name itself."""
    if name not in known:
        return (name,)
    return tuple(dict.fromkeys(found for base in known[name].bases for found in resolve_declared_names(base, known)))
