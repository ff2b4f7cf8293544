"""A shell target that uses the session of a service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.cli.shell.target import TICK_SECONDS, QuerySummary, StreamSummary
from headrace.client import RemoteQuery, RemoteSession, ServiceUnreachableError, connect, parse_columns
from headrace.errors import HeadraceError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.runtime.partition_scaling import PartitionSetting
from headrace.statements import SINK_COLUMNS, SinkOptions

_RETRY_SECONDS = 10.0  # retry time when a service does not answer while a query is followed


class RemoteTarget:
    """A target on a service, which other clients use at the same time."""

    def __init__(self, session: RemoteSession) -> None:
        """Take a connected session."""
        self._session = session

    def streams(self) -> list[StreamSummary]:
        """See `ShellTarget`."""
        return [_summarize_stream(stream) for stream in self._session.streams().values()]

    def queries(self) -> list[QuerySummary]:
        """See `ShellTarget`."""
        return [_summarize_query(query.info) for query in self._session.queries()]

    def query(self, name: str) -> QuerySummary:
        """See `ShellTarget`."""
        return _summarize_query(self._session.query(name).info)

    def check(self, sql: str) -> pa.Schema:
        """See `ShellTarget`."""
        return parse_columns(self._session.check(sql))

    def add(self, sql: str, name: str | None, sink: SinkOptions | None = None) -> QuerySummary:
        """See `ShellTarget`."""
        return _summarize_query(self._session.add(sql, name=name, sinks=() if sink is None else (sink,)).info)

    def replace(self, name: str, sql: str, sink: SinkOptions | None = None) -> QuerySummary:
        """See `ShellTarget`."""
        return _summarize_query(self._session.replace(name, sql, sinks=None if sink is None else (sink,)).info)

    def remove(self, name: str) -> None:
        """See `ShellTarget`."""
        self._session.remove(name)

    def create_stream(self, statement: str) -> None:
        """See `ShellTarget`."""
        self._session.sql(statement)

    def alter_query(self, statement: str) -> None:
        """See `ShellTarget`."""
        self._session.sql(statement)

    def sinks(self) -> pa.Table:
        """See `ShellTarget`."""
        rows = self._session.sql("SHOW SINKS")
        return pa.Table.from_pylist(rows if isinstance(rows, list) else [], SINK_COLUMNS)

    def drop_stream(self, name: str, *, cascade: bool) -> None:
        """See `ShellTarget`."""
        self._session.drop_stream(name, cascade=cascade)

    def rescale(self, partitions: PartitionSetting) -> tuple[int, int, bool]:
        """See `ShellTarget`."""
        info = self._session.rescale(partitions)
        return info["partitions"], info["next"], info["auto"]

    def explain(self) -> str:
        """See `ShellTarget`."""
        return self._session.explain()

    def results(self, name: str, last: int | None) -> pa.Table:
        """See `ShellTarget`."""
        return self._read_last(self._session.query(name), last)[0]

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `ShellTarget`; reconnects to a service that does not answer for a while, and resumes from the last position."""
        query = self._session.query(name)
        rows, position = self._read_last(query, back)
        yield rows
        for page in query.follow(position, TICK_SECONDS, _RETRY_SECONDS):
            yield page.rows

    def close(self) -> None:
        """See `ShellTarget`."""
        self._session.close()

    def _read_last(self, query: RemoteQuery, last: int | None) -> tuple[pa.Table, str]:
        """Return all rows, or the last of them, and the position after them."""
        page = query.page("beginning" if last is None else f"last-{last}")
        tables = [page.rows]
        while page.more:
            page = query.page(page.next)
            tables.append(page.rows)
        table = pa.concat_tables(tables)
        return (table if last is None else table.slice(max(0, table.num_rows - last))), page.next


def open_remote(url: str, token: str | None, certificates: Path | None = None) -> RemoteTarget:
    """Connect to a service and check that it accepts the token; raises its error otherwise.

    `certificates` is a PEM file with the certificates to trust, for https://; by default those that the system trusts.
    """
    try:
        session = connect(url, token=token, verify=True if certificates is None else certificates)
        try:
            session.streams()
        except HeadraceError:
            session.close()
            raise
    except ServiceUnreachableError:
        raise  # it names the address
    except HeadraceError as error:
        needs_token = "token" in error.message
        hint = "pass a token with --token or in HEADRACE_TOKEN" if needs_token and token is None else error.hint
        raise HeadraceError(f"'{url}': {error.message}", detail=error.detail, hint=hint) from error
    return RemoteTarget(session)


def _summarize_stream(info: Mapping[str, Any]) -> StreamSummary:
    schema = Schema.from_arrow(parse_columns(info["columns"]))
    stream = Stream(info["name"], schema, info["time"], round(info["delay_seconds"] * 1e6))
    counts = info["rows"], info["lag_seconds"], info["status"], info["error"] or ""
    return StreamSummary(stream, info["source"].get("kind", ""), *counts)


def _summarize_query(info: Mapping[str, Any]) -> QuerySummary:
    return QuerySummary(
        info["name"],
        info["sql"],
        info["status"],
        parse_columns(info["columns"]),
        info["emitted"],
        info["late"],
        info["error"],
        info["deployment_seconds"],
    )
