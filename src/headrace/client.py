"""A session that runs elsewhere, with the same verbs.

    s = hr.connect("http://127.0.0.1:8420")
    q = s.add("SELECT window_start, SUM(price) AS total FROM TUMBLE(purchases, '1 second')", name="total")
    for table in q.tail(): ...
    q.results().to_pandas(); s.remove("total")

Errors are those a session raises here, with the same parts. Results come as Arrow.
"""

from __future__ import annotations

import html
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx
import pyarrow as pa

from headrace.builder import Select
from headrace.connectors import MemorySource
from headrace.errors import EvaluationError, HeadraceError, NameTakenError, NotFoundError, SessionError, SqlError
from headrace.fluent import StreamFlow, stream_of
from headrace.model.schema import Schema

_ARROW = "application/vnd.apache.arrow.stream"
_PAGE = 10_000
_PATIENCE_SECONDS = 30.0
_QUIET_SECONDS = 10.0
_RESTART_SECONDS = 120.0  # Spark takes its time
_ERRORS: Mapping[int, type[HeadraceError]] = {404: NotFoundError, 409: NameTakenError, 422: SqlError}
_SHOWN = 20  # rows, in a notebook


def connect(url: str, *, token: str | None = None, timeout: float = _PATIENCE_SECONDS) -> RemoteSession:
    """Connect to a service; raises SessionError if none answers."""
    return RemoteSession(url, token, timeout)


class RemoteSession:
    """The session of a service."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        """Ask the service whether it is there."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url = url.rstrip("/")
        self.http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=timeout)
        self.ask("GET", "/health")

    def create_stream(
        self, name: str, source: MemorySource | Mapping[str, Any], *, time: str, watermark: str = "0 seconds"
    ) -> None:
        """Declare a stream: of rows that are sent with `append`, or as the service's API describes it."""
        options = {"source": "memory", "columns": source.schema.to_ddl()} if isinstance(source, MemorySource) else dict(source)
        self.ask("POST", "/streams", json={**options, "name": name, "time": time, "watermark": watermark})

    def append(self, stream: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a stream of the service's memory: all of them, or none."""
        given = {"content": json.dumps(list(rows), default=_said), "headers": {"Content-Type": "application/json"}}
        self.ask("POST", f"/streams/{quote(stream, safe='')}/rows", **given)

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return every stream with what is known of it."""
        return {one["name"]: one for one in self.ask("GET", "/streams").json()}

    def add(self, sql: str | Select | StreamFlow, *, name: str | None = None, wait: float = 10.0) -> RemoteQuery:
        """Add a query; returns when it is live, or accepted and still not live after `wait` seconds.

        A service that has too much to do is asked again when it says, unless that is later still: then it raises.
        """
        text = sql if isinstance(sql, str) else sql.sql
        body = {"sql": text} if name is None else {"sql": text, "name": name}
        return RemoteQuery(self, self._patiently("POST", "/queries", body, wait))

    def stream(self, name: str) -> StreamFlow:
        """Return the rows of a stream, to be filtered, windowed, grouped, joined and added."""
        return stream_of(name, self.add)

    def replace(self, name: str, sql: str | Select | StreamFlow, *, wait: float = 10.0) -> RemoteQuery:
        """Put another query in the place of one: no micro-batch has both, and none has neither."""
        body = {"sql": sql if isinstance(sql, str) else sql.sql}
        return RemoteQuery(self, self._patiently("PUT", f"/queries/{quote(name, safe='')}", body, wait))

    def remove(self, name: str) -> None:
        """Remove a query; what it emitted can still be read."""
        self.ask("DELETE", f"/queries/{quote(name, safe='')}")

    def query(self, name: str, id: int | None = None) -> RemoteQuery:  # noqa: A002  as the service calls it
        """Return the newest query of that name, also one that is over; or the one with that id."""
        given = {} if id is None else {"id": id}
        return RemoteQuery(self, self.ask("GET", f"/queries/{quote(name, safe='')}", params=given).json())

    def queries(self) -> list[RemoteQuery]:
        """Return all queries that were added and not removed, oldest first."""
        return [RemoteQuery(self, one) for one in self.ask("GET", "/queries").json()]

    def check(self, sql: str) -> list[dict[str, str]]:
        """Return the columns a query would have; raises what is wrong with it."""
        found: list[dict[str, str]] = self.ask("POST", "/check", json={"sql": sql}).json()["columns"]
        return found

    def explain(self) -> str:
        """Return, as text, every shared operator and which queries use it."""
        return str(self.ask("GET", "/plan").json()["text"])

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request; raises what the service says is wrong."""
        try:
            answer = self.http.request(method, path, **given)
        except httpx.TransportError as error:
            raise GoneError(f"no service answers at '{self.url}'", detail=str(error), hint="start one: headrace serve") from error
        if answer.status_code >= 400:
            raise error_of(answer)
        return answer

    def _patiently(self, method: str, path: str, body: Mapping[str, Any], wait: float) -> dict[str, Any]:
        """Ask again when the service says when, if that is before `wait` seconds are over."""
        until = time.monotonic() + wait
        while True:
            try:
                found: dict[str, Any] = self.ask(method, path, json=body, params={"wait": wait}).json()
            except _BusyError as busy:
                if time.monotonic() + busy.retry_s > until:
                    raise
                time.sleep(busy.retry_s)
            else:
                return found

    def close(self) -> None:
        """Hang up; the session goes on without us."""
        self.http.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Hang up."""
        self.close()

    def __repr__(self) -> str:
        """Return where it is."""
        return f"<headrace at {self.url}>"


class Page(NamedTuple):
    """Rows that follow each other: the position behind them, whether there are more by now, and whether none will come."""

    rows: pa.Table
    next: str
    more: bool
    over: bool


class RemoteQuery:
    """A query of a service; `refresh` asks how it is now. Whoever comes to have its name later is another."""

    def __init__(self, session: RemoteSession, info: Mapping[str, Any]) -> None:
        """Made by a session."""
        self._session, self.info = session, info
        self._path = f"/queries/{quote(info['name'], safe='')}"

    def __getattr__(self, name: str) -> Any:
        """Return what the service said of it: name, id, sql, status, error, emitted, late and so on."""
        if name not in self.info:
            raise AttributeError(f"a query has no '{name}'")
        return self.info[name]

    @property
    def schema(self) -> pa.Schema:
        """The columns of its results."""
        return schema_of(self.info["columns"])

    def refresh(self) -> RemoteQuery:
        """Ask how it is now."""
        self.info = self._session.query(self.name, self.id).info
        return self

    def wait_live(self, timeout: float = _PATIENCE_SECONDS) -> RemoteQuery:
        """Wait until it is in the pipeline; raises when it failed or was removed before, or on time-out."""
        until = time.monotonic() + timeout
        while self.refresh().status == "accepted":
            if time.monotonic() > until:
                raise SessionError(f"query '{self.name}' is not live after {timeout} s")
            time.sleep(0.05)
        if self.status == "failed":
            raise EvaluationError(f"query '{self.name}' failed", detail=self.error)
        if self.status == "removed":
            raise SessionError(f"query '{self.name}' was removed")
        return self

    def page(self, after: str = "beginning", wait: float = 0.0) -> Page:
        """Return rows behind a position, the "beginning" or "now", waiting so many seconds for the first."""
        given = {"limit": _PAGE, "wait": wait, "after": after, "id": self.id}
        answer = self._session.ask("GET", f"{self._path}/results", params=given, headers={"Accept": _ARROW})
        rows, said = pa.ipc.open_stream(answer.content).read_all(), answer.headers
        more, over, missed = (said[f"X-Headrace-{name}"] == "true" for name in ("More", "Over", "Missed"))
        if missed:
            text = f"rows of query '{self.name}' before position {said['X-Headrace-Next']} are no longer kept by the service"
            warnings.warn(text, stacklevel=3)
        return Page(rows, said["X-Headrace-Next"], more, over and not more)

    def results(self) -> pa.Table:
        """Return everything it has emitted so far, and warn of what is no longer kept."""
        found = [self.page()]
        while found[-1].more:
            found.append(self.page(found[-1].next))
        return pa.concat_tables(page.rows for page in found)

    def to_pandas(self) -> Any:
        """Return everything it has emitted so far, as a DataFrame of pandas."""
        return self.results().to_pandas()

    def to_polars(self) -> Any:
        """Return everything it has emitted so far, as a DataFrame of polars, which must be installed."""
        import polars as pl  # noqa: PLC0415  only who asks for it needs it

        return pl.from_arrow(self.results())

    def tail(self, begin: str = "now") -> Iterator[pa.Table]:
        """Yield what it emits from now on, or from the "beginning", until it is over; take your time: it waits for nobody.

        A connection that is lost, also by a restart of the service, is made again where it was: no row twice, none left out.
        """
        for page in self.follow(begin, _QUIET_SECONDS):
            if page.rows.num_rows:
                yield page.rows

    def follow(self, begin: str, tick: float, patience: float = _RESTART_SECONDS) -> Iterator[Page]:
        """Yield page after page, at least one each `tick` seconds, with rows or without; raises when nobody answers for long."""
        page, since, wait = Page(self.schema.empty_table(), begin, True, False), time.monotonic(), 0.0
        while not page.over:
            try:
                page, since, wait = self.page(page.next, wait), time.monotonic(), tick  # "now" is a position from here on
            except GoneError:
                if time.monotonic() - since > patience:
                    raise
                time.sleep(min(tick, 1.0))
                page = page._replace(rows=page.rows.slice(0, 0))
            yield page

    def remove(self) -> None:
        """Remove it."""
        self._session.remove(self.name)

    def __repr__(self) -> str:
        """Return name, status and text."""
        return f"<Query {self.name} ({self.status}): {self.sql}>"

    def _repr_html_(self) -> str:
        """Return the last rows as a table, for notebooks."""
        rows = self.refresh().page(f"last-{_SHOWN}").rows
        table = rows.slice(max(0, rows.num_rows - _SHOWN)).to_pandas().to_html(index=False)
        return f"<b>{html.escape(self.name)}</b> ({self.status}, {self.emitted:,} rows)<pre>{html.escape(self.sql)}</pre>{table}"


class GoneError(SessionError):
    """Nobody answers, for now at least."""


class _BusyError(SessionError):
    """The service has too much to do, and says when to come again."""

    retry_s: float = 1.0


def schema_of(columns: Sequence[Mapping[str, str]]) -> pa.Schema:
    """Return the schema of columns as the service tells of them."""
    return Schema.parse(", ".join(f"`{one['name'].replace('`', '``')}` {one['type']}" for one in columns)).to_arrow()


def error_of(answer: httpx.Response) -> HeadraceError:
    """Return the error that an answer tells of."""
    try:
        told = answer.json()
        parts = {name: told.get(name, "") for name in ("place", "detail", "hint")}
        message = told["error"]
    except (ValueError, KeyError, AttributeError):
        return SessionError(f"the service answered {answer.status_code}", detail=answer.text[:500])
    if answer.status_code in {429, 503}:
        busy = _BusyError(message, **parts)
        busy.retry_s = float(answer.headers.get("Retry-After", "1"))
        return busy
    return _ERRORS.get(answer.status_code, SessionError)(message, **parts)


def _said(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
