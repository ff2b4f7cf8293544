"""Streams: what there is, what comes in, and new ones."""

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
_MOST_ROWS = 100_000  # of a request
_ROWS = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}, "maxItems": _MOST_ROWS}}},
    }
}


class StreamInfo(BaseModel):
    """A stream."""

    name: str
    columns: list[ColumnInfo]
    time: str = Field(description="The event-time column.")
    delay_seconds: float = Field(description="How far disorder may reach.")
    source: dict[str, Any]
    rows: int = Field(description="Rows read so far.")
    rows_per_second: float = Field(description="Rows in a second of event time, lately.")
    untimed: int = Field(description="Rows without event time, which were left out.")
    late: dict[str, int] = Field(description="Rows that came too late for a query, by the name of each that missed some.")
    skipped: dict[str, str] = Field(description="Files that were left out, with the reason.")
    latest: str | None = Field(description="The greatest event time so far.")
    lag_seconds: float | None = Field(description="How far that is behind the time of day.")


class Sample(BaseModel):
    """Rows of the last micro-batch that had any."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]


class Appended(BaseModel):
    """Rows that were taken."""

    rows: int


def described(host: Host, name: str, report: dict[str, Any]) -> StreamInfo:
    """Return what is known of a stream."""
    seen = report["max_event_time"]
    latest = datetime.fromtimestamp(seen / 1e6, UTC) if seen > 0 else None
    return StreamInfo(
        name=name,
        columns=[ColumnInfo(**one) for one in columns_of(Schema.parse(report["schema"]).to_arrow())],
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
    """Declare a stream; it stays declared over restarts."""
    host.declarations.add(new)
    return described(host, new.name, host.session.streams()[new.name])


@router.get("/streams/{name}", responses=MISSING)
def stream(name: str, host: Served, _: Reader) -> StreamInfo:
    """Return a stream."""
    return described(host, name, _report(host, name))


@router.get("/streams/{name}/sample", responses=MISSING)
def sample(
    name: str, host: Served, _: Reader, rows: Annotated[int, Parameter(ge=1, le=1000, description="Rows at most.")] = 20
) -> Sample:
    """Return some rows of the last micro-batch."""
    report = _report(host, name)
    schema = Schema.parse(report["schema"])
    found = host.sample(name, schema, rows)
    return Sample(columns=[ColumnInfo(**one) for one in columns_of(schema.to_arrow())], rows=rows_of(found))


@router.post("/streams/{name}/rows", status_code=202, responses={**MISSING, **TAKEN, **BUSY}, openapi_extra=_ROWS)
async def append(name: str, request: Request, host: Served, _: Writer) -> Appended:
    """Add rows to a stream whose source is memory: all of them, or none if one does not fit.

    They are read one request at a time, and not in the event loop: others are served meanwhile.
    """
    body = await request.body()
    return await anyio.to_thread.run_sync(_append, host, name, body, limiter=request.app.state.reading)


def _append(host: Host, name: str, body: bytes) -> Appended:
    _report(host, name)
    source = host.session.coordinator.sources.get(name)
    if not isinstance(source, MemorySource):
        raise RefusedError(409, f"stream '{name}' has a source of its own", hint="only streams with source 'memory' take rows")
    rows = _rows(body)
    source.append(rows)
    return Appended(rows=len(rows))


def _rows(body: bytes) -> list[dict[str, Any]]:
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(422, "the rows are no JSON", detail=str(error)) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RefusedError(422, "rows are a list of objects", hint='send [{"column": value, …}, …]')
    if len(rows) > _MOST_ROWS:
        raise RefusedError(422, f"these are {len(rows):,} rows, and {_MOST_ROWS:,} are taken at most")
    return rows


def _report(host: Host, name: str) -> dict[str, Any]:
    found = host.session.streams()
    if name not in found:
        raise NotFoundError(f"stream '{name}' is not there", detail=f"streams: {', '.join(found) or 'none'}")
    return found[name]
