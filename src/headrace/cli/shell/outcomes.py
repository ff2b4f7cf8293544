"""The outcomes of statements as values, which views render; among them what one query shares with all others.

That sharing is found by planning the queries together without touching the session. This plan uses no statistics, so a running
session may have grouped queries differently where that is cheaper; the session's own explanation shows its current plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.cli.explain import SharedPlans, plan_queries
from headrace.cli.shell.parser import StopCondition
from headrace.cli.shell.target import QuerySummary, StreamSummary
from headrace.errors import HeadraceError
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.plan.derived import AnyQuery
from headrace.planner.changelog import root_query_id
from headrace.planner.explain.plan_diagram import get_operator_kind
from headrace.planner.explain.text import describe_stores
from headrace.sql import Catalog, bind_query


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator that a query uses, and the other queries that use it."""

    operator: str
    shared_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuerySharing:
    """The output columns of a query and the operators it uses; `name` is empty if the query is not added.

    `uses` is empty if it is unknown: the query is valid, but calls UDFs that only its session has.
    """

    name: str
    columns: Mapping[str, str]
    uses: tuple[OperatorUse, ...]


def find_uses(sql: str, streams: Sequence[Stream], others: Mapping[str, str]) -> tuple[OperatorUse, ...]:
    """Return the operators that a valid query would use together with other queries, given as name → text."""
    plans = _bind_queries({**others, "": sql}, Catalog.of(streams))
    if "" not in plans:
        return ()
    names, query_index = list(plans), len(plans) - 1
    sharing = plan_queries(streams, plans)
    uses: dict[str, dict[str, None]] = {}
    for operator, users in _list_shared_parts(sharing):
        if query_index in users:
            uses.setdefault(operator, {}).update(dict.fromkeys(names[user] for user in sorted(users) if user != query_index))
    return tuple(OperatorUse(operator, tuple(shared_with)) for operator, shared_with in uses.items())


def _bind_queries(queries: Mapping[str, str], catalog: Catalog) -> dict[str, AnyQuery]:
    """Bind the queries; skip those that fail, for example because only the session has their UDFs."""
    plans = {}
    for name, sql in queries.items():
        try:
            plans[name] = bind_query(sql, catalog)
        except HeadraceError:
            continue
    return plans


def _list_shared_parts(sharing: SharedPlans) -> Iterator[tuple[str, set[int]]]:
    """Yield the text of every shared operator and state store with the ids of the queries that use it."""
    for plan in sharing.plans:
        stream = "results of an inner query" if plan.stream.startswith("~") else plan.stream
        for operator in plan.operators:
            yield (
                f"{get_operator_kind(operator)}{_format_keys(operator.keys)} of {stream}",
                {root_query_id(member.query_id) for member in operator.subscribers},
            )
        for buckets in plan.join_buffers:
            yield (
                f"join buffer of {stream}{_format_keys(buckets.keys)}",
                {root_query_id(member.query_id) for member in buckets.subscribers},
            )
    if sharing.probe_plan is not None:
        for store_text, users in describe_stores(sharing.probe_plan).values():
            yield store_text.partition(" · ")[0], {root_query_id(query_id) for query_id in users}


def _format_keys(keys: Sequence[Expression]) -> str:
    return f" by {', '.join(str(key) for key in keys)}" if keys else ""


@dataclass(frozen=True, slots=True)
class QueryChanged:
    """A query was added, replaced, changed or removed (`verb`); `is_temporary` if it is the temporary query of a SELECT."""

    verb: str
    query: QuerySummary
    is_temporary: bool = False


@dataclass(frozen=True, slots=True)
class QueryList:
    """All queries."""

    queries: tuple[QuerySummary, ...]


@dataclass(frozen=True, slots=True)
class StreamList:
    """All streams."""

    streams: tuple[StreamSummary, ...]


@dataclass(frozen=True, slots=True)
class StreamCreated:
    """A stream was declared."""

    name: str


@dataclass(frozen=True, slots=True)
class StreamDropped:
    """A stream was dropped."""

    name: str


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """The number of key partitions before, and from the next micro-batch on; `is_auto` if it follows parallelism and load."""

    partitions: int
    next: int
    is_auto: bool


@dataclass(frozen=True, slots=True)
class PlanText:
    """The shared plan as text."""

    text: str


@dataclass(frozen=True, slots=True)
class ColumnList:
    """The columns of a stream or query (`kind`)."""

    kind: str
    name: str
    columns: tuple[tuple[str, str], ...]
    sql: str = ""


@dataclass(frozen=True, slots=True)
class SinkList:
    """The sinks of all queries, as SHOW SINKS returns them."""

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class ResultRows:
    """The last rows of a query, and the total number it has emitted."""

    name: str
    rows: pa.Table
    emitted: int


@dataclass(frozen=True, slots=True)
class FollowedQuery:
    """A query to follow until `stop`; `open(back)` calls the target's `follow`.

    With `from_beginning` earlier rows count as results; otherwise a view may show them, but does not count them.
    """

    query: QuerySummary
    stop: StopCondition
    from_beginning: bool
    open: Callable[[int | None], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class FollowEnded:
    """Following a query has ended; `query` is its current state."""

    query: QuerySummary


@dataclass(frozen=True, slots=True)
class UsageList:
    """The list of all statements."""


Outcome: TypeAlias = (
    QueryChanged
    | QueryList
    | StreamList
    | StreamCreated
    | StreamDropped
    | PartitionsChanged
    | PlanText
    | QuerySharing
    | ColumnList
    | ResultRows
    | SinkList
    | FollowedQuery
    | FollowEnded
    | UsageList
)
