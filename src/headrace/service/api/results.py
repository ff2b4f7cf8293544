"""Paths of results: as pages, or live by server-sent events or over a WebSocket.

A live reader is a position in files of the checkpoint: it gets new rows when its connection has taken the earlier ones, and
never delays the pipeline or other readers.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import anyio
import pyarrow as pa
from fastapi import APIRouter, Header, Request, Response, WebSocket, WebSocketDisconnect
from fastapi import Query as Parameter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from headrace.errors import HeadraceError
from headrace.query import Query
from headrace.service.api.common import (
    COMMON_ERRORS,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ColumnInfo,
    HostDep,
    QueryId,
    ReadAccess,
    authenticate,
    get_host,
)
from headrace.service.host import ServiceHost
from headrace.service.problems import HttpRequestError
from headrace.service.result_pages import BEGINNING, Position
from headrace.service.subscriptions import EventStreamResponse, WebSocketChannel, describe_columns, to_json_rows

router = APIRouter(prefix="/v1", tags=["results"], responses=COMMON_ERRORS)
ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
_LAST_ROWS_PATTERN = re.compile(r"last-(\d{1,9})", re.ASCII)
PAGE_HEADERS = ("Next", "More", "Over", "Missed")
"""Headers of a page in Arrow format, each with the prefix 'X-Headrace-'."""
_POSITION_WORDS = "'beginning', 'last-n' (before the last n rows)"

SampleSize = Annotated[
    int | None, Parameter(ge=1, description="Maximum rows of an event; more are sampled evenly. Without it all rows are sent.")
]
StartPosition = Annotated[
    str | None, Parameter(alias="from", description=f"A position, {_POSITION_WORDS} or, by default, 'now'.")
]


class ResultsResponse(BaseModel):
    """A page of consecutive rows of a query."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]
    next: str = Field(description="Position after these rows; pass it as `after` to get the next page.")
    more: bool = Field(description="Whether more rows exist already.")
    over: bool = Field(description="Whether the query has finished and emits no more rows.")
    missed: bool = Field(description="Whether earlier rows were requested but are no longer kept.")


@router.get(
    "/queries/{name}/results",
    response_model=ResultsResponse,
    responses={200: {"content": {ARROW_MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}, **NOT_FOUND},
)
async def read_results(
    name: str,
    host: HostDep,
    _: ReadAccess,
    after: Annotated[str, Parameter(description=f"The `next` of the previous page, {_POSITION_WORDS} or 'now'.")] = "beginning",
    limit: Annotated[int, Parameter(ge=1, description="Maximum number of rows.")] = 1000,
    wait: Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait for the first row.")] = 0,
    query_id: QueryId = None,
    accept: Annotated[str, Header()] = "",
) -> Any:
    """Return a page of results, from the beginning or a position on; as an Arrow stream if the Accept header asks for it."""
    query = await anyio.to_thread.run_sync(host.find_query, name, query_id)
    max_rows, position = min(limit, host.limits.page_rows), await _resolve_position(host, query, after)
    result, finished = await host.subscriptions.read_page(query, position, max_rows, wait)
    if ARROW_MEDIA_TYPE in accept:
        values = (result.end, result.has_more, finished, result.missed)
        headers = {f"X-Headrace-{key}": str(value).lower() for key, value in zip(PAGE_HEADERS, values, strict=True)}
        return Response(_to_arrow_stream(result.rows), media_type=ARROW_MEDIA_TYPE, headers=headers)
    rows = await anyio.to_thread.run_sync(to_json_rows, result.rows)
    return {
        "columns": describe_columns(query.schema),
        "rows": rows,
        "next": str(result.end),
        "more": result.has_more,
        "over": finished,
        "missed": result.missed,
    }


@router.get(
    "/queries/{name}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **NOT_FOUND, **TOO_MANY_REQUESTS},
)
async def stream_results(
    request: Request,
    name: str,
    host: HostDep,
    _: ReadAccess,
    start: StartPosition = None,
    sample: SampleSize = None,
    query_id: QueryId = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream results as they are emitted: events `columns`, `rows`, `missed`, `quiet`, `end`; each id is the next position."""
    release = host.acquire_reader_slot()  # first, so that most requests of a flood cost no more than this
    try:
        query = await anyio.to_thread.run_sync(host.find_query, name, query_id)
        position = await _resolve_position(host, query, last_event_id or start or "now")
    except BaseException:
        release()
        raise
    return EventStreamResponse(
        request.scope, lambda channel: host.subscriptions.follow(query, position, channel, sample), release
    )


@router.websocket("/queries/{name}/socket")
async def stream_over_websocket(websocket: WebSocket, name: str) -> None:
    """Stream the same events over a WebSocket, each as a JSON text; the parameters are those of `/live`."""
    await websocket.accept()
    try:
        host, parameters = get_host(websocket), websocket.query_params
        await authenticate(websocket)
        query = await anyio.to_thread.run_sync(host.find_query, name, _parse_count("id", parameters.get("id")))
        position, sample = (
            await _resolve_position(host, query, parameters.get("from", "now")),
            _parse_count("sample", parameters.get("sample"), minimum=1),
        )
        release = host.acquire_reader_slot()
    except HeadraceError as error:
        await websocket.close(1008, error.message[:120])
        return
    try:
        await host.subscriptions.follow(query, position, WebSocketChannel(websocket), sample)
        await websocket.close()
    except WebSocketDisconnect:
        pass
    finally:
        release()


async def _resolve_position(host: ServiceHost, query: Query, text: str) -> Position:
    """Return the start position: 'now' is after all committed batches, 'last-n' before the last n committed rows."""
    if text == "now":
        return Position(query.last_batch + 1)
    match = _LAST_ROWS_PATTERN.fullmatch(text)
    if match is not None:
        return await anyio.to_thread.run_sync(host.result_pages.position_before_last, query, int(match[1]))
    return BEGINNING if text == "beginning" else Position.parse(text)


def _parse_count(name: str, text: str | None, minimum: int = 0) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum):
        raise HttpRequestError(422, f"invalid {name} '{text[:80]}': not an integer of at least {minimum}")
    return int(text)


def _to_arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
