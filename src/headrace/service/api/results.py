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
from headrace.service.api.common import BUSY, MISSING, REFUSALS, ColumnInfo, Number, Reader, Served, holder_of, host_of
from headrace.service.events import columns_of, rows_of
from headrace.service.host import Host
from headrace.service.live import EventStream, Messages
from headrace.service.position import BEGINNING, Position
from headrace.service.refusals import RefusedError

router = APIRouter(prefix="/v1", tags=["results"], responses=REFUSALS)
ARROW = "application/vnd.apache.arrow.stream"
_LAST = re.compile(r"last-(\d{1,9})", re.ASCII)
SAID = ("Next", "More", "Over", "Missed")
"""Headers of a page in Arrow format, each with the prefix 'X-Headrace-'."""
_PLACES = "'beginning', 'last-n' (before the last n rows)"

Sample = Annotated[
    int | None, Parameter(ge=1, description="Maximum rows of an event; more are sampled evenly. Without it all rows are sent.")
]
Begin = Annotated[str | None, Parameter(alias="from", description=f"A position, {_PLACES} or, by default, 'now'.")]


class Page(BaseModel):
    """A page of consecutive rows of a query."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]
    next: str = Field(description="Position after these rows; pass it as `after` to get the next page.")
    more: bool = Field(description="Whether more rows exist already.")
    over: bool = Field(description="Whether the query has finished and emits no more rows.")
    missed: bool = Field(description="Whether earlier rows were requested but are no longer kept.")


@router.get(
    "/queries/{name}/results",
    response_model=Page,
    responses={200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}}, **MISSING},
)
async def results(
    name: str,
    host: Served,
    _: Reader,
    after: Annotated[str, Parameter(description=f"The `next` of the previous page, {_PLACES} or 'now'.")] = "beginning",
    limit: Annotated[int, Parameter(ge=1, description="Maximum number of rows.")] = 1000,
    wait: Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait for the first row.")] = 0,
    query_id: Number = None,
    accept: Annotated[str, Header()] = "",
) -> Any:
    """Return a page of results, from the beginning or a position on; as an Arrow stream if the Accept header asks for it."""
    query = await anyio.to_thread.run_sync(host.query, name, query_id)
    max_rows, position = min(limit, host.limits.page_rows), await _begin(host, query, after)
    result, finished = await host.followers.page(query, position, max_rows, wait)
    if ARROW in accept:
        values = (result.end, result.more, finished, result.missed)
        headers = {f"X-Headrace-{key}": str(value).lower() for key, value in zip(SAID, values, strict=True)}
        return Response(_arrow(result.rows), media_type=ARROW, headers=headers)
    rows = await anyio.to_thread.run_sync(rows_of, result.rows)
    return {
        "columns": columns_of(query.schema),
        "rows": rows,
        "next": str(result.end),
        "more": result.more,
        "over": finished,
        "missed": result.missed,
    }


@router.get(
    "/queries/{name}/live",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **MISSING, **BUSY},
)
async def live(
    request: Request,
    name: str,
    host: Served,
    _: Reader,
    start: Begin = None,
    sample: Sample = None,
    query_id: Number = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Stream results as they are emitted: events `columns`, `rows`, `missed`, `quiet`, `end`; each id is the next position."""
    release = host.enter()  # first, so that most requests of a flood cost no more than this
    try:
        query = await anyio.to_thread.run_sync(host.query, name, query_id)
        position = await _begin(host, query, last_event_id or start or "now")
    except BaseException:
        release()
        raise
    return EventStream(request.scope, lambda channel: host.followers.follow(query, position, channel, sample), release)


@router.websocket("/queries/{name}/socket")
async def socket(websocket: WebSocket, name: str) -> None:
    """Stream the same events over a WebSocket, each as a JSON text; the parameters are those of `/live`."""
    await websocket.accept()
    try:
        host, parameters = host_of(websocket), websocket.query_params
        holder_of(websocket)
        query = await anyio.to_thread.run_sync(host.query, name, _count("id", parameters.get("id")))
        position, sample = (
            await _begin(host, query, parameters.get("from", "now")),
            _count("sample", parameters.get("sample"), minimum=1),
        )
        release = host.enter()
    except HeadraceError as error:
        await websocket.close(1008, error.message[:120])
        return
    try:
        await host.followers.follow(query, position, Messages(websocket), sample)
        await websocket.close()
    except WebSocketDisconnect:
        pass
    finally:
        release()


async def _begin(host: Host, query: Query, text: str) -> Position:
    """Return the start position: 'now' is after all committed batches, 'last-n' before the last n committed rows."""
    if text == "now":
        return Position(query.last_batch + 1)
    match = _LAST.fullmatch(text)
    if match is not None:
        return await anyio.to_thread.run_sync(host.kept.back, query, int(match[1]))
    return BEGINNING if text == "beginning" else Position.parse(text)


def _count(name: str, text: str | None, minimum: int = 0) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum):
        raise RefusedError(422, f"invalid {name} '{text[:80]}': not an integer of at least {minimum}")
    return int(text)


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
