"""What a shell works on: a session in this process, or one of a service. The shell sees no difference.

All errors are `HeadraceError`s. Texts of queries are checked by the target, and refused with a place in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from headrace.model.schema import type_name
from headrace.model.stream import Stream

TICK_SECONDS = 0.25
"""Whoever follows a query hears at least this often that nothing came."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream, where its rows come from, how many came, and how far the newest is behind the time of day."""

    stream: Stream
    source: str
    rows: int
    lag_seconds: float | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.stream.name

    @property
    def columns(self) -> dict[str, str]:
        """Its columns, with SQL's names of their types."""
        return columns_of(self.stream.schema.to_arrow())


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """A query as it was when the target was asked; `status` is accepted, live, removed or failed.

    `note` is what whoever added it should know.
    """

    name: str
    sql: str
    status: str
    schema: pa.Schema
    emitted: int = 0
    late: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    deployment_seconds: float | None = None
    note: str = ""

    @property
    def columns(self) -> dict[str, str]:
        """The columns of its results, with SQL's names of their types."""
        return columns_of(self.schema)


class Target(Protocol):
    """The verbs of a shell; all of them are called by one thread, `streams` and `queries` also by a second one."""

    def streams(self) -> list[StreamInfo]:
        """Return all streams."""

    def queries(self) -> list[QueryInfo]:
        """Return all queries that were added and not removed, oldest first."""

    def query(self, name: str) -> QueryInfo:
        """Return the newest query of that name, also one that is over; raises NotFoundError."""

    def check(self, sql: str) -> pa.Schema:
        """Return the columns that a query would have; raises what is wrong with it."""

    def add(self, sql: str, name: str | None) -> QueryInfo:
        """Add a query and wait a while until it is live; raises what is wrong with it."""

    def replace(self, name: str, sql: str) -> QueryInfo:
        """Put another query in the place of one, and wait as `add` does."""

    def remove(self, name: str) -> None:
        """Remove a query; what it emitted can still be read."""

    def explain(self) -> str:
        """Return, as text, every shared operator and which queries use it."""

    def results(self, name: str, last: int | None) -> pa.Table:
        """Return what a query emitted so far: all of it, or the last rows."""

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """Yield first what there was, the last `back` rows or all (None), and then what comes, until the query is over.

        The first table may be empty, and there is an empty one whenever nothing came for `TICK_SECONDS`. No row comes twice,
        and from the first one on none is left out. There is no hurry: the query waits for nobody.
        """

    def close(self) -> None:
        """Let go of it: a session of one's own ends, a service does not notice."""


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """Return columns with SQL's names of their types."""
    return {field.name: type_name(field.type) for field in schema}


def described(info: QueryInfo) -> dict[str, Any]:
    """Return a query for machines."""
    return {
        "name": info.name,
        "sql": info.sql,
        "status": info.status,
        "error": info.error or None,
        **({"note": info.note} if info.note else {}),
        "emitted": info.emitted,
        "late": dict(info.late),
        "deployment_seconds": info.deployment_seconds,
        "columns": info.columns,
    }
