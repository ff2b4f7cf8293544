"""A shell target that uses the session of a service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from headrace.cli.shell.target import TICK_SECONDS, QueryInfo, StreamInfo
from headrace.client import RemoteQuery, RemoteSession, connect, parse_columns
from headrace.errors import HeadraceError
from headrace.model.schema import Schema
from headrace.model.stream import Stream

_PATIENCE_SECONDS = 10.0  # retry time when a service does not answer while a query is followed


class Remote:
    """A target on a service, which other clients use at the same time."""

    def __init__(self, session: RemoteSession) -> None:
        """Take a connected session."""
        self._session = session

    def streams(self) -> list[StreamInfo]:
        """See `ShellTarget`."""
        return [_stream(stream) for stream in self._session.streams().values()]

    def queries(self) -> list[QueryInfo]:
        """See `ShellTarget`."""
        return [_query(query.info) for query in self._session.queries()]

    def query(self, name: str) -> QueryInfo:
        """See `ShellTarget`."""
        return _query(self._session.query(name).info)

    def check(self, sql: str) -> pa.Schema:
        """See `ShellTarget`."""
        return parse_columns(self._session.check(sql))

    def add(self, sql: str, name: str | None) -> QueryInfo:
        """See `ShellTarget`."""
        return _query(self._session.add(sql, name=name).info)

    def replace(self, name: str, sql: str) -> QueryInfo:
        """See `ShellTarget`."""
        return _query(self._session.replace(name, sql).info)

    def remove(self, name: str) -> None:
        """See `ShellTarget`."""
        self._session.remove(name)

    def explain(self) -> str:
        """See `ShellTarget`."""
        return self._session.explain()

    def results(self, name: str, last: int | None) -> pa.Table:
        """See `ShellTarget`."""
        return self._last(self._session.query(name), last)[0]

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `ShellTarget`; reconnects to a service that does not answer for a while, and resumes from the last position."""
        query = self._session.query(name)
        rows, position = self._last(query, back)
        yield rows
        for page in query.follow(position, TICK_SECONDS, _PATIENCE_SECONDS):
            yield page.rows

    def close(self) -> None:
        """See `ShellTarget`."""
        self._session.close()

    def _last(self, query: RemoteQuery, last: int | None) -> tuple[pa.Table, str]:
        """Return all rows, or the last of them, and the position after them."""
        page = query.page("beginning" if last is None else f"last-{last}")
        tables = [page.rows]
        while page.more:
            page = query.page(page.next)
            tables.append(page.rows)
        table = pa.concat_tables(tables)
        return (table if last is None else table.slice(max(0, table.num_rows - last))), page.next


def opened(url: str, token: str | None) -> Remote:
    """Connect to a service and check that it accepts the token; raises its error otherwise."""
    target = Remote(connect(url, token=token))
    try:
        target.streams()
    except HeadraceError as error:
        target.close()
        needs_token = "token" in error.message
        hint = "pass a token with --token or in HEADRACE_TOKEN" if needs_token and token is None else error.hint
        raise HeadraceError(f"'{url}': {error.message}", detail=error.detail, hint=hint) from error
    return target


def _stream(info: Mapping[str, Any]) -> StreamInfo:
    schema = Schema.from_arrow(parse_columns(info["columns"]))
    stream = Stream(info["name"], schema, info["time"], round(info["delay_seconds"] * 1e6))
    return StreamInfo(stream, info["source"].get("kind", ""), info["rows"], info["lag_seconds"])


def _query(info: Mapping[str, Any]) -> QueryInfo:
    return QueryInfo(
        info["name"],
        info["sql"],
        info["status"],
        parse_columns(info["columns"]),
        info["emitted"],
        info["late"],
        info["error"],
        info["deployment_seconds"],
    )
