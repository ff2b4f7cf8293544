"""The client of the headrace service: a remote session with the methods of a local one.

    s = hr.connect("http://127.0.0.1:8420")
    q = s.add("SELECT window_start, SUM(price) AS total FROM TUMBLE(purchases, '1 second')", name="total")
    for table in q.tail(): ...
    q.results().to_pandas(); s.remove("total")

Methods raise the same errors as those of a local session, with the same parts. Results are Arrow tables.
"""

from __future__ import annotations

import json
import ssl
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import quote

import httpx
import pyarrow as pa

from headrace.connectors import MemorySource
from headrace.connectors.row_input import RowInput, build_table, is_frame, list_mappings
from headrace.display import (
    PREVIEW_ROWS,
    QueryDisplay,
    SessionDisplay,
    StreamDisplay,
    format_query,
    render_query,
    render_session,
)
from headrace.dsl.select import Select
from headrace.dsl.stream import StreamFlow, create_flow
from headrace.errors import EvaluationError, HeadraceError, InternalError, NameTakenError, NotFoundError, SessionError, SqlError
from headrace.model.budget import BudgetInput, QueryBudget
from headrace.model.types import Schema
from headrace.result_frames import ResultFrames

_ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
_PAGE_ROWS = 10_000
_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 10.0
_RECONNECT_SECONDS = 120.0  # a restart of the service includes that of Spark
_ERRORS_BY_STATUS: Mapping[int, type[HeadraceError]] = {
    404: NotFoundError,
    409: NameTakenError,
    422: SqlError,
    500: InternalError,
}

TlsVerification: TypeAlias = bool | str | Path | ssl.SSLContext
"""Which certificates a client accepts; see `connect`."""


def connect(
    url: str, *, token: str | None = None, timeout: float = _TIMEOUT_SECONDS, verify: TlsVerification = True
) -> RemoteSession:
    """Connect to the service at `url`, with an access `token` if the service requires one.

    `timeout` is the time limit in seconds for each request. `verify` says which certificates an https:// service may have: True
    for those that the system trusts, the path of a PEM file with certificates to trust instead, an SSLContext, or False for any,
    which protects from nobody who can answer in the place of the service. Raises SessionError if the service does not answer, or
    not with such a certificate.
    """
    return RemoteSession(url, token, timeout, verify)


class RemoteSession:
    """The session of a service, from `hr.connect`. Use it as a context manager, or call `close` at the end."""

    def __init__(self, url: str, token: str | None, timeout: float, verify: TlsVerification = True) -> None:
        """Connect, and check that the service answers; raises SessionError if it does not."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url = url.rstrip("/")
        tls = _choose_tls_context(url, verify)
        self.http = httpx.Client(base_url=f"{self.url}/v1", headers=headers, timeout=timeout, verify=tls)
        try:
            self.ask("GET", "/health")
        except BaseException:
            self.http.close()
            raise

    def create_stream(
        self,
        name: str,
        source: MemorySource | Mapping[str, Any],
        *,
        time: str,
        watermark: str = "0 seconds",
        max_ahead: str | None = None,
        watermark_by: str | None = None,
        idle: str = "10 seconds",
    ) -> None:
        """Declare a stream.

        `source` is a `MemorySource`, for rows that are sent with `append`, or a mapping with the source options of the service's
        API. `time` names the event-time column; `watermark` is the maximum disorder; rows that are more than `max_ahead` in the
        future are dropped and counted. `watermark_by` and `idle` are as for `Session.create_stream`. Raises NameTakenError if the
        stream exists.
        """
        options = {"source": "memory", "columns": source.schema.to_ddl()} if isinstance(source, MemorySource) else dict(source)
        times = {"time": time, "watermark": watermark, "max_ahead": max_ahead, "watermark_by": watermark_by, "idle": idle}
        self.ask("POST", "/streams", json={**options, "name": name, **times})

    def sql(self, text: str) -> RemoteQuery | list[dict[str, Any]] | None:
        """Run a statement: CREATE, ALTER, DROP, SHOW, DESCRIBE; return the query or the rows that it makes, if any.

        Errors are those of the methods that do the same. A query is accepted, and live a little later.
        """
        answer = self.ask("POST", "/statements", json={"sql": text}).json()
        if answer["query"] is not None and text.lstrip()[:6].upper() == "CREATE":
            return self.query(answer["query"])
        rows: list[dict[str, Any]] | None = answer["rows"]
        return rows

    def drop_stream(self, name: str, *, cascade: bool = False) -> None:
        """Drop a stream for good. Raises NotFoundError if there is none, and NameTakenError if queries read it.

        `cascade` removes these queries.
        """
        self.ask("DELETE", f"/streams/{quote(name, safe='')}", params={"cascade": cascade})

    def append(self, stream: str, rows: RowInput) -> None:
        """Append rows to a stream with a memory source: a frame or mappings, as for `MemorySource.append`.

        Raises SchemaError or another error, and appends no row, if a row does not fit the schema.
        """
        path = f"/streams/{quote(stream, safe='')}"
        if is_frame(rows):
            schema = _parse_schema(self.ask("GET", path).json()["columns"])
            mappings = build_table(rows, schema, f"stream '{stream}'").to_pylist()
        else:
            mappings = list_mappings(rows)
        request = {"content": json.dumps(mappings, default=_to_json_value), "headers": {"Content-Type": "application/json"}}
        self.ask("POST", f"{path}/rows", **request)

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return the declaration and counts of each stream, by name."""
        return {stream["name"]: stream for stream in self.ask("GET", "/streams").json()}

    def add(
        self,
        sql: str | Select | StreamFlow,
        *,
        name: str | None = None,
        wait: float = 10.0,
        budget: BudgetInput = None,
        sinks: Sequence[str | Mapping[str, Any]] = (),
    ) -> RemoteQuery:
        """Add a query, as SQL text or made with the DSL; return its handle when it is live, or after `wait` seconds.

        `budget` limits what the query may use in a micro-batch, by name or as a QueryBudget: at most the budget that the user has
        in the service, unless the token is that of an admin. `sinks` are further destinations, as text or options with a `kind`;
        the service must allow them.

        If the service is overloaded, the client retries when the service says, as long as that is within `wait` seconds. Raises
        SqlError for an invalid query, NameTakenError if the name is in use, and SessionError if the service stays overloaded.
        """
        text = sql if isinstance(sql, str) else sql.sql
        body = {"sql": text, **({} if name is None else {"name": name}), **_to_body(budget)}
        body |= {"sinks": list(sinks)} if sinks else {}
        return RemoteQuery(self, self._ask_with_retry("POST", "/queries", body, wait))

    def stream(self, name: str) -> StreamFlow:
        """Return a flow of the rows of a stream, to filter, window, group, join and add as a query."""
        return create_flow(name, self.add)

    def replace(
        self,
        name: str,
        sql: str | Select | StreamFlow,
        *,
        wait: float = 10.0,
        budget: BudgetInput = None,
        sinks: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> RemoteQuery:
        """Replace a query atomically: the old one ends and the new one starts in the same micro-batch. Return the new handle.

        `wait`, `budget`, `sinks` and errors are those of `add`, but the default budget and sinks are those of the old query.
        Raises NotFoundError if no query has that name.
        """
        body = {"sql": sql if isinstance(sql, str) else sql.sql, **_to_body(budget)}
        body |= {} if sinks is None else {"sinks": list(sinks)}
        return RemoteQuery(self, self._ask_with_retry("PUT", f"/queries/{quote(name, safe='')}", body, wait))

    def remove(self, name: str) -> None:
        """Remove a query; its results stay readable. Raises NotFoundError if no query has that name."""
        self.ask("DELETE", f"/queries/{quote(name, safe='')}")

    def query(self, name: str, id: int | None = None) -> RemoteQuery:  # noqa: A002  as the service calls it
        """Return the newest query of that name, even if it is over; with `id`, the query with that id and name.

        Raises NotFoundError if there is no such query.
        """
        params = {} if id is None else {"id": id}
        return RemoteQuery(self, self.ask("GET", f"/queries/{quote(name, safe='')}", params=params).json())

    def queries(self) -> list[RemoteQuery]:
        """Return all queries that were not removed, oldest first."""
        return [RemoteQuery(self, info) for info in self.ask("GET", "/queries").json()]

    def check(self, sql: str) -> list[dict[str, str]]:
        """Return the result columns of a query without adding it; raises SqlError if it is invalid."""
        columns: list[dict[str, str]] = self.ask("POST", "/check", json={"sql": sql}).json()["columns"]
        return columns

    def explain(self) -> str:
        """Return the shared plan as text: every operator with the queries that use it."""
        return str(self.ask("GET", "/plan").json()["text"])

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The progress of the last micro-batch, as `Session.last_progress`; None before the first."""
        documents: list[dict[str, Any]] = self.ask("GET", "/progress").json()
        return documents[-1] if documents else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The progress of the newest 60 micro-batches, oldest first."""
        documents: list[dict[str, Any]] = self.ask("GET", "/progress", params={"most": 60}).json()
        return documents

    def rescale(self, partitions: int | Literal["auto"]) -> dict[str, Any]:
        """Change the number of key partitions from the next micro-batch on, as `Session.rescale`; needs the role admin.

        Return the numbers that the service reports: `partitions` now, `next`, whether it is `auto`, the `parallelism`, and the
        shares of the smallest and the greatest range of hashes.
        """
        info: dict[str, Any] = self.ask("POST", "/rescale", json={"partitions": partitions}).json()
        return info

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send an HTTP request with the given options of httpx; raises the error that the service reports."""
        if self.http.is_closed:
            raise SessionError(f"the connection to '{self.url}' is closed", hint=f"connect again: hr.connect('{self.url}')")
        try:
            response = self.http.request(method, path, **options)
        except httpx.TransportError as error:
            is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
            hint = "pass verify='ca.pem', the certificates to trust" if is_untrusted else "start one: headrace serve"
            raise ServiceUnreachableError(f"no service answers at '{self.url}'", detail=str(error), hint=hint) from error
        if response.status_code >= 400:
            raise error_from_response(response)
        return response

    def _ask_with_retry(self, method: str, path: str, body: Mapping[str, Any], wait: float) -> dict[str, Any]:
        """Send a request; retry when an overloaded service says, as long as that is within `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            try:
                info: dict[str, Any] = self.ask(method, path, json=body, params={"wait": wait}).json()
            except _ServiceBusyError as busy:
                if time.monotonic() + busy.retry_seconds > deadline:
                    raise
                time.sleep(busy.retry_seconds)
            else:
                return info

    def close(self) -> None:
        """Close the connection; the session of the service continues."""
        self.http.close()

    def __enter__(self) -> Self:
        """Return the session; the context manager closes the connection at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connection."""
        self.close()

    def __repr__(self) -> str:
        """Return the address of the service; sends no request."""
        return f"<RemoteSession {self.url} ({self._connection_state})>"

    def _repr_html_(self) -> str:
        """Return the streams and newest queries as HTML, for notebooks; never raises an error."""
        streams: list[StreamDisplay] = []
        queries: list[QueryDisplay] = []
        note = ""
        try:
            for name, info in self.streams().items():
                kind = str(info["source"].get("kind", ""))
                streams.append(StreamDisplay(name, info["rows"], info["latest"] or "", kind, info["status"]))
            queries = [display_info(query.info) for query in self.queries()]
        except HeadraceError as error:
            note = error.message
        return render_session(f"headrace at {self.url}", SessionDisplay(self._connection_state, streams, queries), note)

    @property
    def _connection_state(self) -> str:
        return "closed" if self.http.is_closed else "open"


class ResultPage(NamedTuple):
    """Consecutive result rows.

    `next` is the position after them, `more` whether further rows are available now, and `over` whether no more rows will come.
    """

    rows: pa.Table
    next: str
    more: bool
    over: bool


class RemoteQuery(ResultFrames):
    """A handle of a query of a service; it stays with this query even if a later query gets the same name.

    Attributes such as name, id, sql, status, error, emitted and late hold the values of the last `refresh`.
    """

    def __init__(self, session: RemoteSession, info: Mapping[str, Any]) -> None:
        """For `RemoteSession` only."""
        self._session, self.info = session, info
        self._path = f"/queries/{quote(info['name'], safe='')}"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute as the service reported it: name, id, sql, status, error, emitted, late and so on."""
        if name not in self.info:
            raise AttributeError(f"a remote query has no attribute '{name}'")
        return self.info[name]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the results, as an Arrow schema."""
        return parse_columns(self.info["columns"])

    def refresh(self) -> RemoteQuery:
        """Load the current attributes from the service, and return the query."""
        self.info = self._session.query(self.name, self.id).info
        return self

    def wait_live(self, timeout: float = _TIMEOUT_SECONDS) -> RemoteQuery:
        """Wait until the query is live, and return it.

        Raises EvaluationError if it failed, and SessionError if it was removed or is not live after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while self.refresh().status == "accepted":
            if time.monotonic() > deadline:
                raise SessionError(f"query '{self.name}' is not live after {timeout} s")
            time.sleep(0.05)
        if self.status == "failed":
            raise EvaluationError(f"query '{self.name}' failed", detail=self.error)
        if self.status == "removed":
            raise SessionError(f"query '{self.name}' was removed")
        return self

    def page(self, after: str = "beginning", wait: float = 0.0) -> ResultPage:
        """Return a page of rows after a position: the `next` of another page, "beginning" or "now".

        Waits up to `wait` seconds for the first row. Warns if the service no longer retains rows after the position.
        """
        params = {"limit": _PAGE_ROWS, "wait": wait, "after": after, "id": self.id}
        response = self._session.ask("GET", f"{self._path}/results", params=params, headers={"Accept": _ARROW_MEDIA_TYPE})
        rows, headers = pa.ipc.open_stream(response.content).read_all(), response.headers
        more, over, missed = (headers[f"X-Headrace-{name}"] == "true" for name in ("More", "Over", "Missed"))
        if missed:
            text = f"rows of query '{self.name}' before position {headers['X-Headrace-Next']} are no longer kept by the service"
            warnings.warn(text, stacklevel=3)
        return ResultPage(rows, headers["X-Headrace-Next"], more, over and not more)

    def results(self) -> pa.Table:
        """Return all rows that the query has emitted so far; warn if the service no longer retains all of them."""
        pages = [self.page()]
        while pages[-1].more:
            pages.append(self.page(pages[-1].next))
        return pa.concat_tables(page.rows for page in pages)

    def tail(self, begin: str = "now") -> Iterator[pa.Table]:
        """Yield tables of the emitted rows, from "now" or from the "beginning", until the query is over.

        The caller may consume them slowly: the service does not wait for readers. After a lost connection or a restart of the
        service the client reconnects at its position, so that rows are neither lost nor duplicated.
        """
        for page in self.follow(begin, _POLL_SECONDS):
            if page.rows.num_rows:
                yield page.rows

    def follow(self, begin: str, tick: float, patience: float = _RECONNECT_SECONDS) -> Iterator[ResultPage]:
        """Yield pages from the position `begin` on, at least one every `tick` seconds, with or without rows.

        Raises SessionError if the service does not answer for `patience` seconds.
        """
        page, since, wait = ResultPage(self.schema.empty_table(), begin, True, False), time.monotonic(), 0.0
        while not page.over:
            try:
                page, since, wait = self.page(page.next, wait), time.monotonic(), tick  # the first page resolves "now"
            except ServiceUnreachableError:
                if time.monotonic() - since > patience:
                    raise
                time.sleep(min(tick, 1.0))
                page = page._replace(rows=page.rows.slice(0, 0))
            yield page

    def remove(self) -> None:
        """Remove the query from its session."""
        self._session.remove(self.name)

    def __repr__(self) -> str:
        """Return the name, status, number of rows and SQL text of the last `refresh` in one line."""
        return format_query("RemoteQuery", display_info(self.info))

    def _repr_html_(self) -> str:
        """Return the status, SQL text and last rows as HTML, for notebooks; never raises an error."""
        rows, note = None, ""
        try:
            rows = self.refresh().page(f"last-{PREVIEW_ROWS}").rows
        except HeadraceError as error:
            note = f"as of the last refresh: {error.message}"
        return render_query(display_info(self.info), rows, note)


def display_info(info: Mapping[str, Any]) -> QueryDisplay:
    """Return what is shown of a query that the service described."""
    return QueryDisplay(info["name"], info["status"], info["emitted"], info["sql"], info["error"] or "")


class ServiceUnreachableError(SessionError):
    """The service does not answer; it may answer later."""


class _ServiceBusyError(ServiceUnreachableError):
    """The service is overloaded, or waits as a standby, and says after how many seconds to retry."""

    retry_seconds: float = 1.0


def _choose_tls_context(url: str, verify: TlsVerification) -> ssl.SSLContext | bool:
    """Return what httpx verifies; for http:// a context that trusts nobody: loading the certificates would take 25 ms."""
    if url.lower().startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(verify, bool | ssl.SSLContext):
        return verify
    try:
        return ssl.create_default_context(cafile=str(verify))
    except OSError as error:  # SSLError is an OSError
        raise SessionError(f"cannot read certificates from '{verify}'", detail=str(error), hint="name a PEM file") from error


def parse_columns(columns: Sequence[Mapping[str, str]]) -> pa.Schema:
    """Return the Arrow schema of columns in the JSON form of the service."""
    return _parse_schema(columns).to_arrow()


def _parse_schema(columns: Sequence[Mapping[str, str]]) -> Schema:
    return Schema.parse(", ".join(f"`{column['name'].replace('`', '``')}` {column['type']}" for column in columns))


def error_from_response(response: httpx.Response) -> HeadraceError:
    """Return the error that a response of the service describes."""
    try:
        problem = response.json()
        parts = {name: problem.get(name, "") for name in ("place", "detail", "hint")}
        message = problem["error"]
    except (ValueError, KeyError, AttributeError):
        return SessionError(f"the service answered {response.status_code}", detail=response.text[:500])
    if response.status_code in {429, 503}:
        busy = _ServiceBusyError(message, **parts)
        busy.retry_seconds = float(response.headers.get("Retry-After", "1"))
        return busy
    return _ERRORS_BY_STATUS.get(response.status_code, SessionError)(message, **parts)


def _to_body(budget: BudgetInput) -> dict[str, Any]:
    """Return the part of a request body that has a budget."""
    return {} if budget is None else {"budget": asdict(budget) if isinstance(budget, QueryBudget) else dict(budget)}


def _to_json_value(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
