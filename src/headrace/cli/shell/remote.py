"""The session of a service, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from headrace.cli.shell.target import TICK_SECONDS, QueryInfo, StreamInfo
from headrace.client import RemoteQuery, RemoteSession, connect, schema_of
from headrace.errors import HeadraceError
from headrace.model.schema import Schema
from headrace.model.stream import Stream

_PATIENCE_SECONDS = 10.0  # with a service that does not answer while somebody watches


class Remote:
    """A target that belongs to others, too."""

    def __init__(self, session: RemoteSession) -> None:
        """Take a session that answered."""
        self._session = session

    def streams(self) -> list[StreamInfo]:
        """See `Target`."""
        return [_stream(one) for one in self._session.streams().values()]

    def queries(self) -> list[QueryInfo]:
        """See `Target`."""
        return [_query(one.info) for one in self._session.queries()]

    def query(self, name: str) -> QueryInfo:
        """See `Target`."""
        return _query(self._session.query(name).info)

    def check(self, sql: str) -> pa.Schema:
        """See `Target`."""
        return schema_of(self._session.check(sql))

    def add(self, sql: str, name: str | None) -> QueryInfo:
        """See `Target`."""
        return _query(self._session.add(sql, name=name).info)

    def replace(self, name: str, sql: str) -> QueryInfo:
        """See `Target`."""
        return _query(self._session.replace(name, sql).info)

    def remove(self, name: str) -> None:
        """See `Target`."""
        self._session.remove(name)

    def explain(self) -> str:
        """See `Target`."""
        return self._session.explain()

    def results(self, name: str, last: int | None) -> pa.Table:
        """See `Target`."""
        return self._last(self._session.query(name), last)[0]

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `Target`; a service that does not answer for a while is asked again, from where we were."""
        query = self._session.query(name)
        rows, at = self._last(query, back)
        yield rows
        for page in query.follow(at, TICK_SECONDS, _PATIENCE_SECONDS):
            yield page.rows

    def close(self) -> None:
        """See `Target`."""
        self._session.close()

    def _last(self, query: RemoteQuery, last: int | None) -> tuple[pa.Table, str]:
        """Return rows from the beginning on, or the last of them, and the position behind them."""
        page = query.page("beginning" if last is None else f"last-{last}")
        found = [page.rows]
        while page.more:
            page = query.page(page.next)
            found.append(page.rows)
        table = pa.concat_tables(found)
        return (table if last is None else table.slice(max(0, table.num_rows - last))), page.next


def opened(url: str, token: str | None) -> Remote:
    """Connect to a service, and see that it lets us in; raises what it says."""
    found = Remote(connect(url, token=token))
    try:
        found.streams()
    except HeadraceError as error:
        found.close()
        told = "token" in error.message
        hint = "give one with --token, or in HEADRACE_TOKEN" if told and token is None else error.hint
        raise HeadraceError(f"'{url}': {error.message}", detail=error.detail, hint=hint) from error
    return found


def _stream(said: Mapping[str, Any]) -> StreamInfo:
    schema = Schema.from_arrow(schema_of(said["columns"]))
    stream = Stream(said["name"], schema, said["time"], round(said["delay_seconds"] * 1e6))
    return StreamInfo(stream, said["source"].get("kind", ""), said["rows"], said["lag_seconds"])


def _query(said: Mapping[str, Any]) -> QueryInfo:
    return QueryInfo(
        said["name"],
        said["sql"],
        said["status"],
        schema_of(said["columns"]),
        said["emitted"],
        said["late"],
        said["error"],
        said["deployment_seconds"],
    )
