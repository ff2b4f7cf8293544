"""The interface between the shell and its session, which is in this process or in a service.

All errors are `HeadraceError`s. The target checks the text of queries and raises errors with a place in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from headrace.model.stream import Stream
from headrace.model.types import type_name
from headrace.runtime.partition_scaling import PartitionSetting
from headrace.statements import SinkOptions

TICK_SECONDS = 0.25
"""Interval of empty tables for a followed query without new rows."""


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """A stream, the kind of its source, its number of rows, and how far its newest row is behind the wall clock."""

    stream: Stream
    source: str
    rows: int
    lag_seconds: float | None = None
    status: str = "ok"
    error: str = ""

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.stream.name

    @property
    def columns(self) -> dict[str, str]:
        """The columns with their SQL types."""
        return describe_columns(self.stream.schema.to_arrow())


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """A snapshot of a query; `status` is accepted, live, removed or failed.

    `note` is a message for the user who added it.
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
        """The output columns with their SQL types."""
        return describe_columns(self.schema)


class ShellTarget(Protocol):
    """The operations of the shell; one thread calls all of them, a second thread may call `streams` and `queries`."""

    def streams(self) -> list[StreamSummary]:
        """Return all streams."""

    def queries(self) -> list[QuerySummary]:
        """Return all queries that are not removed, oldest first."""

    def query(self, name: str) -> QuerySummary:
        """Return the newest query of that name, live or not; raises NotFoundError."""

    def check(self, sql: str) -> pa.Schema:
        """Return the output columns of a query without adding it; raises if the query is invalid."""

    def add(self, sql: str, name: str | None, sink: SinkOptions | None = None) -> QuerySummary:
        """Add a query and wait some seconds until it is live; its results are kept, and go to `sink`, too. Raises if invalid."""

    def replace(self, name: str, sql: str, sink: SinkOptions | None = None) -> QuerySummary:
        """Replace a query, and wait as `add` does; without a sink it has those of the old query."""

    def remove(self, name: str) -> None:
        """Remove a query; its results stay readable."""

    def create_stream(self, statement: str) -> None:
        """Declare the stream of a CREATE STREAM statement; raises if it is invalid, or its source cannot be reached."""

    def alter_query(self, statement: str) -> None:
        """Add a sink to a query, or take one away, with an ALTER QUERY statement; raises if it is invalid."""

    def sinks(self) -> pa.Table:
        """Return the sinks of all queries, as SHOW SINKS does."""

    def drop_stream(self, name: str, *, cascade: bool) -> None:
        """Drop a stream; raises if queries read it, unless `cascade` removes them."""

    def rescale(self, partitions: PartitionSetting) -> tuple[int, int, bool]:
        """Change the number of key partitions; return the number before, from the next batch on, and whether it is automatic."""

    def explain(self) -> str:
        """Return the shared operators and the queries that use them as text."""

    def results(self, name: str, last: int | None) -> pa.Table:
        """Return all results of a query so far, or the last rows."""

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """Yield the last `back` rows or all earlier rows (None) as the first table, then new rows until the query has finished.

        The first table may be empty, and an empty table follows whenever there are no new rows for `TICK_SECONDS`. Every row
        comes exactly once. A slow caller does not delay the query.
        """

    def close(self) -> None:
        """Close the session in this process, or the connection to the service."""


def describe_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the columns with their SQL types."""
    return {field.name: type_name(field.type) for field in schema}


def query_document(info: QuerySummary) -> dict[str, Any]:
    """Return a query as a JSON document."""
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
