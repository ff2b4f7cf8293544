"""The outcomes of statements as values, which views render."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.cli.shell.meaning import QuerySharing
from headrace.cli.shell.statements import StopCondition
from headrace.cli.shell.target import QuerySummary, StreamSummary


@dataclass(frozen=True, slots=True)
class QueryChanged:
    """A query was added, replaced or removed (`verb`); `is_temporary` if it is the temporary query of a SELECT."""

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
    | PlanText
    | QuerySharing
    | ColumnList
    | ResultRows
    | FollowedQuery
    | FollowEnded
    | UsageList
)
