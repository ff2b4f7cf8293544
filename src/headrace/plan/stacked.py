"""Windows over the results of other windows: the results of an inner query are a stream, and have an event time.

A row of it has the event time window_end − 1 µs: of all times in its window the last. Since results come when the watermark
has passed window_end, none is ever late, and the outer query goes by the watermarks of the streams that were declared.

Besides the columns of the inner query the stream has three that no query can name: the bounds of the window, and that time.

An aggregation of results in the very windows they are results of is one by these bounds, too, in windows each of which holds
the results of just one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard, TypeVar

from headrace.model.expression import Column
from headrace.model.schema import TIMESTAMP, Field, Schema
from headrace.model.stream import Stream
from headrace.model.window import Sliding, ends_of
from headrace.plan.join import JoinQuery
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery, LogicalQuery, key_column
from headrace.plan.multiway import MultiwayQuery
from headrace.plan.unfolded import Unfolded, declared

START, END, TIME = "#start", "#end", "#time"
BOUNDS = (Column(START, TIMESTAMP), Column(END, TIMESTAMP))
HIDDEN = 3  # so many columns come after those of the inner query
MAX_PARTS = 16  # inner queries of one query

Windowed: TypeAlias = AggregateQuery | JoinQuery
_Plan = TypeVar("_Plan", bound=LogicalQuery)


@dataclass(frozen=True, slots=True)
class Derived:
    """An inner query, with the bounds and the end of windows as its last outputs, and the stream its results are.

    What is to be the event time comes as the end of the window.
    """

    stream: Stream
    plan: Windowed

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name


@dataclass(frozen=True, slots=True)
class StackedQuery:
    """`inner` are in an order in which each reads declared streams and those before it; `outer` reads any of them.

    `unfolded` are streams that they read, too, made of declared ones; those that others are made of come before these.
    """

    inner: tuple[Derived, ...]
    outer: LogicalQuery
    unfolded: tuple[Unfolded, ...] = ()

    @property
    def schema(self) -> Schema:
        """What is emitted."""
        return self.outer.schema

    @property
    def streams(self) -> tuple[str, ...]:
        """The declared streams that are read, each once."""
        made, unfolds = {one.name for one in self.inner}, {one.name: one for one in self.unfolded}
        read = (name for plan in (*(one.plan for one in self.inner), self.outer) for name in plan.streams)
        return tuple(dict.fromkeys(declared(name, unfolds) for name in read if name not in made))


AnyQuery: TypeAlias = LogicalQuery | StackedQuery


def derived(plan: Windowed) -> Derived:
    """Return the results of a query as a stream; equal queries give equal streams."""
    schema = Schema((*plan.schema.fields, *(Field(name, TIMESTAMP) for name in (START, END, TIME))))
    whole = replace(plan, output=(*plan.output, *bounds(plan), WINDOW_END), schema=schema)
    name = f"~{hashlib.sha256(repr(whole).encode()).hexdigest()[:12]}"
    return Derived(Stream(name, schema, TIME), whole)


def bounds(plan: Windowed) -> tuple[Column, Column]:
    """Return start and end of the window that a result of a query is of, as columns after its aggregation."""
    if in_inner_windows(plan):
        keys = plan.branches[0].keys
        return key_column(len(keys) - 2, TIMESTAMP), key_column(len(keys) - 1, TIMESTAMP)
    return WINDOW_START, WINDOW_END


def in_inner_windows(plan: Windowed) -> TypeGuard[AggregateQuery]:
    """Tell whether a query aggregates results in the windows they are results of: their bounds are its last keys."""
    return isinstance(plan, AggregateQuery) and plan.branches[0].keys[-2:] == BOUNDS


def own(query: StackedQuery, number: int) -> StackedQuery:
    """Return a query whose inner results are shared with other queries only where they are the same for all.

    Those of tumbling and hopping aggregations are, from some time on. Sessions depend on when a query began, and rows of a
    join may leave in another order of work.
    """
    names: dict[str, str] = {}
    found = []
    for one in query.inner:
        shared = isinstance(one.plan, AggregateQuery) and isinstance(one.plan.window, Sliding)
        if not shared or any(name in names for name in one.plan.streams):
            names[one.name] = f"{one.name}-{number}"
            stream = replace(one.stream, name=names[one.name])
            found.append(Derived(stream, reading(one.plan, names)))
        else:
            found.append(one)
    return StackedQuery(tuple(found), reading(query.outer, names), query.unfolded)


def reading(plan: _Plan, names: Mapping[str, str]) -> _Plan:
    """Return a plan that reads streams by other names."""
    if isinstance(plan, JoinQuery | MultiwayQuery):
        return replace(plan, inputs=tuple(replace(one, stream=names.get(one.stream, one.stream)) for one in plan.inputs))  # type: ignore[arg-type]
    return replace(plan, branches=tuple(replace(one, stream=names.get(one.stream, one.stream)) for one in plan.branches))  # type: ignore[arg-type]


def beginnings(query: StackedQuery, since: int | None) -> tuple[int | None, ...]:
    """Return from which event time each inner query, and last the outer one, sees rows, if the whole does so from `since`.

    An outer window counts when all inner windows that end in it have begun by then. None stands for −∞.
    """
    streams: dict[str, int] = {}
    found: list[int | None] = []
    for plan in (*(one.plan for one in query.inner), query.outer):
        if since is None:
            found.append(None)
            continue
        begin = _begin(plan, {name: streams.get(name, since) for name in plan.streams})
        found.append(begin)
        if len(found) <= len(query.inner):
            assert isinstance(plan, AggregateQuery | JoinQuery)
            streams[query.inner[len(found) - 1].name] = _first_result(plan, begin)
    return tuple(found)


def _begin(plan: LogicalQuery, streams: Mapping[str, int]) -> int:
    if not isinstance(plan, JoinQuery):
        return max(streams.values())
    return max(streams[one.stream] - (plan.size - one.window.size) for one in plan.inputs)  # shorter windows begin later


def _first_result(plan: Windowed, since: int) -> int:
    """Return the end of the last window that began too early: results of later ones are all there."""
    if isinstance(plan, JoinQuery):
        ends, size = plan.ends, plan.size
    elif isinstance(plan.window, Sliding):
        ends, size = ends_of(plan.window), plan.window.size
    else:
        return since
    complete = since + size  # the first end that is not before
    last = (complete - 1 - ends.offset) // ends.step * ends.step + ends.offset
    return max(since, last)
