"""Paths of streams: list, declare and read them, sample their rows, and append rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Request
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from headrace.connectors import MemorySource
from headrace.errors import NotFoundError
from headrace.model.schema import Schema
from headrace.service.api.common import BUSY, MISSING, REFUSALS, TAKEN, Admin, ColumnInfo, Reader, Served, Writer
from headrace.service.declared import NewStream
from headrace.service.events import columns_of, rows_of
from headrace.service.host import Host
from headrace.service.refusals import RefusedError

router = APIRouter(prefix="/v1", tags=["streams"], responses=REFUSALS)
_MOST_ROWS = 100_000  # in one request
_ROWS = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}, "maxItems": _MOST_ROWS}}},
    }
}


class StreamInfo(BaseModel):
    """A stream, its source and its statistics."""

    name: str
    columns: list[ColumnInfo]
    time: str = Field(description="The event-time column.")
    delay_seconds: float = Field(description="Delay of the watermark: how far rows may be out of order.")
    source: dict[str, Any]
    rows: int = Field(description="Rows read so far.")
    rows_per_second: float = Field(description="Recent rows per second of event time.")
    untimed: int = Field(description="Rows skipped because they have no event time.")
    late: dict[str, int] = Field(description="Late rows of each query that missed some, by query name.")
    skipped: dict[str, str] = Field(description="Skipped files, with the reason.")
    latest: str | None = Field(description="Maximum event time so far.")
    lag_seconds: float | None = Field(description="How far `latest` is behind the wall clock.")


class Sample(BaseModel):
    """Rows of a stream that the last micro-batch read."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]


class Appended(BaseModel):
    """The number of appended rows."""

    rows: int


def described(host: Host, name: str, report: dict[str, Any]) -> StreamInfo:
    """Return a stream with its statistics."""
    max_time = report["max_event_time"]
    latest = datetime.fromtimestamp(max_time / 1e6, UTC) if max_time > 0 else None
    return StreamInfo(
        name=name,
        columns=[ColumnInfo(**column) for column in columns_of(Schema.parse(report["schema"]).to_arrow())],
        time=report["time"],
        delay_seconds=report["delay"] / 1e6,
        source=report["source"],
        rows=report["rows"],
        rows_per_second=host.rate(name),
        untimed=report["untimed"],
        late={query.name: query.late[name] for query in host.session.queries() if name in query.late},
        skipped=report["skipped"],
        latest=None if latest is None else latest.isoformat().replace("+00:00", "Z"),
        lag_seconds=None if latest is None else (host.now() - latest).total_seconds(),
    )


@router.get("/streams")
def streams(host: Served, _: Reader) -> list[StreamInfo]:
    """Return all streams."""
    return [described(host, name, report) for name, report in host.session.streams().items()]


@router.post("/streams", status_code=201, responses={**TAKEN})
def create(new: NewStream, host: Served, _: Admin) -> StreamInfo:
    """Declare a stream; the declaration survives restarts."""
    host.declarations.add(new)
    return described(host, new.name, host.session.streams()[new.name])


@router.get("/streams/{name}", responses=MISSING)
def stream(name: str, host: Served, _: Reader) -> StreamInfo:
    """Return a stream."""
    return described(host, name, _report(host, name))


@router.get("/streams/{name}/sample", responses=MISSING)
def sample(
    name: str, host: Served, _: Reader, rows: Annotated[int, Parameter(ge=1, le=1000, description="Maximum number of rows.")] = 20
) -> Sample:
    """Return rows of a stream that the last micro-batch read."""
    report = _report(host, name)
    schema = Schema.parse(report["schema"])
    table = host.sample(name, schema, rows)
    return Sample(columns=[ColumnInfo(**column) for column in columns_of(schema.to_arrow())], rows=rows_of(table))


@router.post("/streams/{name}/rows", status_code=202, responses={**MISSING, **TAKEN, **BUSY}, openapi_extra=_ROWS)
async def append(name: str, request: Request, host: Served, _: Writer) -> Appended:
    """Append rows to a stream with source 'memory': all rows, or none if a row does not fit the schema.

    The service parses the rows of one request at a time, outside the event loop, so that other requests are served meanwhile.
    """
    body = await request.body()
    return await anyio.to_thread.run_sync(_append, host, name, body, limiter=request.app.state.reading)


def _append(host: Host, name: str, body: bytes) -> Appended:
    _report(host, name)
    source = host.session.coordinator.sources.get(name)
    if not isinstance(source, MemorySource):
        raise RefusedError(
            409, f"stream '{name}' takes no rows from requests", hint="append rows to a stream with source 'memory'"
        )
    rows = _rows(body)
    source.append(rows)
    return Appended(rows=len(rows))


def _rows(body: bytes) -> list[dict[str, Any]]:
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(422, "the request body is not JSON", detail=str(error)) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RefusedError(422, "the request body is not a list of objects", hint='send [{"column": value, …}, …]')
    if len(rows) > _MOST_ROWS:
        raise RefusedError(422, f"the request has {len(rows):,} rows; at most {_MOST_ROWS:,} are allowed")
    return rows


def _report(host: Host, name: str) -> dict[str, Any]:
    reports = host.session.streams()
    if name not in reports:
        raise NotFoundError(f"stream '{name}' does not exist", detail=f"streams: {', '.join(reports) or 'none'}")
    return reports[name]
