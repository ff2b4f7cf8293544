"""The session of a service, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from headrace.cli.shell.target import TICK_SECONDS, QueryInfo, StreamInfo
from headrace.client import RemoteSession, connect
from headrace.errors import HeadraceError, SessionError
from headrace.model.schema import Schema
from headrace.model.stream import Stream

_ARROW = "application/vnd.apache.arrow.stream"
_PAGE = 10_000
_MANY = 100_000  # rows that are not fetched only to show the last few
_TRIES = 6


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
        return _schema(self._session.check(sql))

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
        return self._last(name, last)[0]

    def follow(self, name: str, back: int | None) -> Iterator[pa.Table]:
        """See `Target`; a service that does not answer for a while is asked again, from where we were."""
        info = self.query(name)
        if back == 0 or (back is not None and info.emitted > _MANY):
            rows, at = info.schema.empty_table(), "now"
        else:
            rows, at = self._last(name, back)
        yield rows
        failed, over = 0, False
        while not over:
            try:
                rows, at, more, over = self._page(name, at, TICK_SECONDS)
            except SessionError:
                failed += 1
                if failed == _TRIES:
                    raise
                time.sleep(TICK_SECONDS * failed)
                rows = info.schema.empty_table()
            else:
                failed, over = 0, over and not more
            yield rows

    def close(self) -> None:
        """See `Target`."""
        self._session.close()

    def _last(self, name: str, last: int | None) -> tuple[pa.Table, str]:
        """Return rows from the beginning on, or the last of them, and the position behind them."""
        found: list[pa.Table] = []
        at, more = "beginning", True
        while more:
            rows, at, more, _ = self._page(name, at, 0)
            found.append(rows)
            while last is not None and sum(one.num_rows for one in found[1:]) >= last:
                del found[0]
        table = pa.concat_tables(found)
        return (table if last is None else table.slice(max(0, table.num_rows - last))), at

    def _page(self, name: str, after: str, wait: float) -> tuple[pa.Table, str, bool, bool]:
        """Return rows behind a position, the position behind them, whether there are more, and whether none will come."""
        given = {"limit": _PAGE, "wait": wait, "after": after}
        path = f"/queries/{quote(name, safe='')}/results"
        answer = self._session.ask("GET", path, params=given, headers={"Accept": _ARROW})
        says = answer.headers
        rows = pa.ipc.open_stream(answer.content).read_all()
        return rows, says["X-Headrace-Next"], says["X-Headrace-More"] == "true", says["X-Headrace-Over"] == "true"


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


def _schema(columns: list[dict[str, str]]) -> pa.Schema:
    ddl = ", ".join(f"`{one['name'].replace('`', '``')}` {one['type']}" for one in columns)
    return Schema.parse(ddl).to_arrow()


def _stream(said: Mapping[str, Any]) -> StreamInfo:
    schema = Schema.from_arrow(_schema(said["columns"]))
    stream = Stream(said["name"], schema, said["time"], round(said["delay_seconds"] * 1e6))
    return StreamInfo(stream, said["source"].get("kind", ""), said["rows"], said["lag_seconds"])


def _query(said: Mapping[str, Any]) -> QueryInfo:
    return QueryInfo(
        said["name"],
        said["sql"],
        said["status"],
        _schema(said["columns"]),
        said["emitted"],
        said["late"],
        said["error"],
        said["deployment_seconds"],
    )
