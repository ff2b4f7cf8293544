"""Paths of streams: list, declare, read and drop them, sample their rows, and append rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Request
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from headrace.connectors import MemorySource
from headrace.errors import NotFoundError
from headrace.model.types import Schema
from headrace.service.api.common import (
    COMMON_ERRORS,
    CONFLICT,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    AdminAccess,
    ColumnInfo,
    HostDep,
    ReadAccess,
    WriteAccess,
)
from headrace.service.declared_streams import StreamDeclaration
from headrace.service.host import ServiceHost
from headrace.service.problems import HttpRequestError, RequestBody
from headrace.service.statements import run_statement
from headrace.service.subscriptions import describe_columns, to_json_rows

router = APIRouter(prefix="/v1", tags=["streams"], responses=COMMON_ERRORS)
_MAX_APPEND_ROWS = 100_000  # in one request
_ROWS_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}, "maxItems": _MAX_APPEND_ROWS}}},
    }
}


class SkippedRowInfo(BaseModel):
    """A line of a file that is not a row of its stream."""

    file: str
    line: int = Field(description="Counted from 1.")
    reason: str
    text: str = Field(description="The beginning of the line.")


class PartitionInfo(BaseModel):
    """A partition of a source."""

    partition: int
    latest: str | None = Field(description="Maximum event time so far.")
    idle: bool = Field(description="Without rows for a while, so that it does not hold back the watermark.")
    lag_rows: int | None = Field(description="Rows that are not read yet; null if the source does not know.")


class StreamInfo(BaseModel):
    """A stream, its source and its statistics."""

    name: str
    columns: list[ColumnInfo]
    time: str = Field(description="The event-time column.")
    delay_seconds: float = Field(description="Delay of the watermark: how far rows may be out of order.")
    max_ahead_seconds: float | None = Field(description="How far in the future rows may be; null without a limit.")
    watermark_by: Literal["stream", "partition"] = Field(description="What the watermark follows.")
    source: dict[str, Any]
    rows: int = Field(description="Rows read so far.")
    rows_per_second: float = Field(description="Recent rows per second of event time.")
    untimed: int = Field(description="Rows skipped because they have no event time.")
    ahead: int = Field(description="Rows skipped because their event time is too far in the future.")
    late: dict[str, int] = Field(description="Late rows of each query that missed some, by query name.")
    skipped: dict[str, str] = Field(description="Skipped files, with the reason.")
    skipped_rows: int = Field(description="Skipped lines of files and messages, which do not fit the columns.")
    skipped_samples: list[SkippedRowInfo] = Field(description="The newest of the skipped lines and messages.")
    lost: dict[int, int] = Field(description="Messages that were deleted before they were read, by partition.")
    status: Literal["ok", "degraded", "detached"] = Field(
        description="`degraded` if the source cannot be read now, `detached` if it is missing after a restart; it is tried again."
    )
    error: str | None = Field(description="Why the stream is degraded or detached.")
    latest: str | None = Field(description="Maximum event time so far.")
    lag_seconds: float | None = Field(description="How far `latest` is behind the wall clock.")
    lag_rows: int | None = Field(description="Rows that the source has and that are not read yet; null if it does not know.")
    partitions: list[PartitionInfo] = Field(description="Partitions of the source, if the watermark is by partition.")


class NewStatement(RequestBody):
    """A statement about streams or queries."""

    sql: str = Field(
        min_length=1,
        max_length=50_000,
        description="CREATE STREAM … WITH (…), DROP STREAM name [CASCADE], "
        "CREATE [OR REPLACE] QUERY name [WITH (sink = …)] AS …, DROP QUERY name, SHOW STREAMS | QUERIES, or DESCRIBE name.",
    )


class StatementResponse(BaseModel):
    """The stream or the query that a statement made, changed or dropped; or the rows that it asks for."""

    stream: str | None = None
    query: str | None = None
    rows: list[dict[str, Any]] | None = None


class StreamSample(BaseModel):
    """Rows of a stream that the last micro-batch read."""

    columns: list[ColumnInfo]
    rows: list[list[Any]]


class AppendResponse(BaseModel):
    """The number of appended rows."""

    rows: int


def describe_stream(host: ServiceHost, name: str, report: dict[str, Any]) -> StreamInfo:
    """Return a stream with its statistics."""
    max_time = report["max_event_time"]
    latest = datetime.fromtimestamp(max_time / 1e6, UTC) if max_time > 0 else None
    partitions = [
        PartitionInfo(partition=p, latest=_format_time(part["max_event_time"]), idle=part["idle"], lag_rows=part["lag"])
        for p, part in report["partitions"].items()
    ]
    return StreamInfo(
        name=name,
        columns=[ColumnInfo(**column) for column in describe_columns(Schema.parse(report["schema"]).to_arrow())],
        time=report["time"],
        delay_seconds=report["delay"] / 1e6,
        max_ahead_seconds=None if report["max_ahead"] is None else report["max_ahead"] / 1e6,
        watermark_by=report["watermark_by"],
        source=report["source"],
        rows=report["rows"],
        rows_per_second=host.stream_rate(name),
        untimed=report["untimed"],
        ahead=report["ahead"],
        late={query.name: query.late[name] for query in host.session.queries() if name in query.late},
        skipped=report["skipped"],
        skipped_rows=report["skipped_rows"],
        skipped_samples=[SkippedRowInfo(**row) for row in report["skipped_samples"]],
        lost=report["lost"],
        status=report["status"],
        error=report["error"] or host.declared_streams.get_error(name),
        latest=_format_time(max_time),
        lag_seconds=None if latest is None else (host.now() - latest).total_seconds(),
        lag_rows=report["lag"],
        partitions=partitions,
    )


def _format_time(time: int) -> str | None:
    return datetime.fromtimestamp(time / 1e6, UTC).isoformat().replace("+00:00", "Z") if time > 0 else None


@router.get("/streams")
def list_streams(host: HostDep, _: ReadAccess) -> list[StreamInfo]:
    """Return all streams."""
    return [describe_stream(host, name, report) for name, report in host.session.streams().items()]


@router.post("/streams", status_code=201, responses={**CONFLICT})
def create_stream(new: StreamDeclaration, host: HostDep, _: AdminAccess) -> StreamInfo:
    """Declare a stream; the declaration survives restarts."""
    host.declared_streams.add(new)
    return describe_stream(host, new.name, host.session.streams()[new.name])


@router.post("/statements", responses={**CONFLICT, **NOT_FOUND, **TOO_MANY_REQUESTS})
def execute_statement(new: NewStatement, host: HostDep, holder: ReadAccess) -> StatementResponse:
    """Run a statement: streams need the role admin, queries the role write. A query is accepted, and live a little later."""
    outcome = run_statement(host, new.sql, holder)
    table = outcome.table
    rows = None if table is None else [dict(zip(table.column_names, row, strict=True)) for row in to_json_rows(table)]
    return StatementResponse(stream=outcome.stream, query=outcome.query, rows=rows)


@router.get("/streams/{name}", responses=NOT_FOUND)
def get_stream(name: str, host: HostDep, _: ReadAccess) -> StreamInfo:
    """Return a stream."""
    return describe_stream(host, name, _stream_report(host, name))


@router.delete("/streams/{name}", status_code=204, responses={**NOT_FOUND, **CONFLICT})
def drop_stream(
    name: str,
    host: HostDep,
    _: AdminAccess,
    cascade: Annotated[bool, Parameter(description="Also remove the queries that read the stream.")] = False,
) -> None:
    """Drop a stream for good; refused while queries read it, unless they are removed, too."""
    host.declared_streams.drop(name, cascade=cascade)


@router.get("/streams/{name}/sample", responses=NOT_FOUND)
def sample_stream(
    name: str,
    host: HostDep,
    _: ReadAccess,
    rows: Annotated[int, Parameter(ge=1, le=1000, description="Maximum number of rows.")] = 20,
) -> StreamSample:
    """Return rows of a stream that the last micro-batch read."""
    report = _stream_report(host, name)
    schema = Schema.parse(report["schema"])
    table = host.sample_stream(name, schema, rows)
    return StreamSample(
        columns=[ColumnInfo(**column) for column in describe_columns(schema.to_arrow())], rows=to_json_rows(table)
    )


@router.post(
    "/streams/{name}/rows", status_code=202, responses={**NOT_FOUND, **CONFLICT, **TOO_MANY_REQUESTS}, openapi_extra=_ROWS_SCHEMA
)
async def append_rows(name: str, request: Request, host: HostDep, _: WriteAccess) -> AppendResponse:
    """Append rows to a stream with source 'memory': all rows, or none if a row does not fit the schema.

    The service parses the rows of one request at a time, outside the event loop, so that other requests are served meanwhile.
    """
    body = await request.body()
    return await anyio.to_thread.run_sync(_append_body, host, name, body, limiter=request.app.state.reading)


def _append_body(host: ServiceHost, name: str, body: bytes) -> AppendResponse:
    _stream_report(host, name)
    source = host.session.get_source(name)
    if not isinstance(source, MemorySource):
        raise HttpRequestError(
            409, f"stream '{name}' takes no rows from requests", hint="append rows to a stream with source 'memory'"
        )
    rows = _parse_rows(body)
    source.append(rows)
    return AppendResponse(rows=len(rows))


def _parse_rows(body: bytes) -> list[dict[str, Any]]:
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpRequestError(422, "the request body is not JSON", detail=str(error)) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise HttpRequestError(422, "the request body is not a list of objects", hint='send [{"column": value, …}, …]')
    if len(rows) > _MAX_APPEND_ROWS:
        raise HttpRequestError(422, f"the request has {len(rows):,} rows; at most {_MAX_APPEND_ROWS:,} are allowed")
    return rows


def _stream_report(host: ServiceHost, name: str) -> dict[str, Any]:
    reports = host.session.streams()
    if name not in reports:
        raise NotFoundError(f"stream '{name}' does not exist", detail=f"streams: {', '.join(reports) or 'none'}")
    return reports[name]
