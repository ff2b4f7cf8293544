"""Results: as pages, and as they come, by server-sent events or over a WebSocket.

A reader that follows is a position in files of the checkpoint: it is given what is new when it has taken what it was given
before, and never makes anybody wait.
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
"""What headers say of a page that is Arrow, each after 'X-Headrace-'."""
_PLACES = "'beginning', 'last-n' (before the last n rows)"

Sample = Annotated[
    int | None, Parameter(ge=1, description="Rows of an event at most: of more, so many are picked evenly. Without it all come.")
]
Begin = Annotated[str | None, Parameter(alias="from", description=f"A position, {_PLACES} or, by default, 'now'.")]


class Page(BaseModel):
    """Rows of a query that follow each other."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]
    next: str = Field(description="Give it as `after` for the rows behind these.")
    more: bool = Field(description="Whether there are any by now.")
    over: bool = Field(description="Whether nothing more will come.")
    missed: bool = Field(description="Whether rows before these were asked for, and are no longer kept.")


@router.get(
    "/queries/{name}/results",
    response_model=Page,
    responses={200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}}, **MISSING},
)
async def results(
    name: str,
    host: Served,
    _: Reader,
    after: Annotated[str, Parameter(description=f"The `next` of the page before, {_PLACES} or 'now'.")] = "beginning",
    limit: Annotated[int, Parameter(ge=1, description="Rows at most.")] = 1000,
    wait: Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait for the first row.")] = 0,
    number: Number = None,
    accept: Annotated[str, Header()] = "",
) -> Any:
    """Return a page of what a query emitted, from the beginning or a position on; as an Arrow stream if that is accepted."""
    query = await anyio.to_thread.run_sync(host.query, name, number)
    most, at = min(limit, host.limits.page_rows), await _begin(host, query, after)
    piece, over = await host.followers.page(query, at, most, wait)
    if ARROW in accept:
        said = (piece.end, piece.more, over, piece.missed)
        headers = {f"X-Headrace-{key}": str(value).lower() for key, value in zip(SAID, said, strict=True)}
        return Response(_arrow(piece.rows), media_type=ARROW, headers=headers)
    rows = await anyio.to_thread.run_sync(rows_of, piece.rows)
    return {
        "columns": columns_of(query.schema),
        "rows": rows,
        "next": str(piece.end),
        "more": piece.more,
        "over": over,
        "missed": piece.missed,
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
    begin: Begin = None,
    sample: Sample = None,
    number: Number = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Send results as they come: events `columns`, `rows`, `quiet` and `end`; the id of each is the position behind it."""
    leave = host.enter()  # before all else: of a flood most cost no more than that
    try:
        query = await anyio.to_thread.run_sync(host.query, name, number)
        at = await _begin(host, query, last_event_id or begin or "now")
    except BaseException:
        leave()
        raise
    return EventStream(request.scope, lambda reader: host.followers.follow(query, at, reader, sample), leave)


@router.websocket("/queries/{name}/socket")
async def socket(websocket: WebSocket, name: str) -> None:
    """Send the same over a WebSocket, each event as a JSON text; parameters are those of `live`."""
    await websocket.accept()
    try:
        host, given = host_of(websocket), websocket.query_params
        holder_of(websocket)
        query = await anyio.to_thread.run_sync(host.query, name, _count("id", given.get("id")))
        at, sample = await _begin(host, query, given.get("from", "now")), _count("sample", given.get("sample"), least=1)
        leave = host.enter()
    except HeadraceError as error:
        await websocket.close(1008, error.message[:120])
        return
    try:
        await host.followers.follow(query, at, Messages(websocket), sample)
        await websocket.close()
    except WebSocketDisconnect:
        pass
    finally:
        leave()


async def _begin(host: Host, query: Query, given: str) -> Position:
    """Return where to begin: 'now' is behind all that is committed, 'last-n' before the last n rows of it."""
    if given == "now":
        return Position(query.last_batch + 1)
    rows = _LAST.fullmatch(given)
    if rows is not None:
        return await anyio.to_thread.run_sync(host.kept.back, query, int(rows[1]))
    return BEGINNING if given == "beginning" else Position.parse(given)


def _count(name: str, given: str | None, least: int = 0) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 10 and int(given) >= least):
        raise RefusedError(422, f"{name} = '{given[:80]}' is no number from {least} on")
    return int(given)


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
