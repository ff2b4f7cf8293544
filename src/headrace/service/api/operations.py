"""Paths for operations: health, shared plan, overview, events, micro-batches, and metrics for Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Request, Response
from fastapi import Query as Parameter
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from headrace.runtime.partition_scaling import MAX_PARTITIONS
from headrace.service.api.common import COMMON_ERRORS, AdminAccess, HostDep, LatencyInfo, ReadAccess, find_identity
from headrace.service.metrics import build_overview, describe_partitions, render_metrics
from headrace.service.problems import Problem

router = APIRouter(tags=["operations"], responses=COMMON_ERRORS)


class HealthStatus(BaseModel):
    """What everybody may know of the state of the service."""

    status: Literal["ok", "failing", "lost"] = Field(
        description="Whether micro-batches run; lost: another process has taken the checkpoint over, and this one has ended."
    )


class Health(HealthStatus):
    """The state of the service, for requests with a token, or to a service that requires none."""

    detail: str = Field(description="Why micro-batches do not run.")
    batch: int = Field(description="The last committed micro-batch.")
    queries: int
    streams: int
    uptime_seconds: float
    version: str
    tokens: bool = Field(description="Whether requests need a token.")


class OperatorInfo(BaseModel):
    """A node of the shared plan: a stream, an operator or a query."""

    id: str
    kind: str = Field(description="stream, aggregation, sessions, routing, buckets, store or query")
    stream: str
    label: str
    detail: str
    queries: list[str] = Field(description="The queries that use it.")


class BoxPlace(BaseModel):
    """The place of an operator in the drawing."""

    id: str
    x: float
    y: float
    width: float
    height: float


class GroupPlace(BaseModel):
    """The frame around queries that use the same operators."""

    queries: list[str]
    x: float
    y: float
    width: float
    height: float


class WirePath(BaseModel):
    """A line between two operators, or from an operator to queries."""

    path: str = Field(description="An SVG path.")
    queries: list[str] = Field(description="The queries whose rows it carries.")


class DrawingInfo(BaseModel):
    """The places of everything in a drawing of the plan."""

    width: float
    height: float
    boxes: list[BoxPlace]
    groups: list[GroupPlace]
    wires: list[WirePath]
    omitted_queries: int = Field(description="The number of queries that are not drawn, because there are too many.")


class PlanResponse(BaseModel):
    """The shared plan of all queries."""

    text: str
    graph: str = Field(description="The data flow between the state stores of joins in SLIDING windows, as Mermaid.")
    operators: list[OperatorInfo]
    edges: list[tuple[str, str]] = Field(description="Pairs of operator ids, from input to output.")
    drawing: DrawingInfo


class EventInfo(BaseModel):
    """An event of the event log."""

    at: float = Field(description="When, in seconds since 1970.")
    batch: int
    kind: str = Field(description="epoch, replan, added, removed or failed")
    text: str


class OverviewPoint(BaseModel):
    """Rates of one second."""

    at: float
    rows_per_second: float
    emitted_per_second: float
    batch_seconds: float
    live: int = Field(description="Live queries at the end of the second.")


class PartitionsInfo(BaseModel):
    """The key partitions of the session."""

    partitions: int = Field(description="The number after the last micro-batch.")
    next: int = Field(
        description="The number from the next micro-batch on, unless it is automatic and the load asks for another."
    )
    auto: bool = Field(description="Whether the number follows parallelism and load.")
    parallelism: int = Field(description="The number of tasks that run at the same time.")
    least_share: float = Field(description="The part of all hashes of keys that the partition with the smallest range has.")
    greatest_share: float = Field(description="The same of the greatest range: more, where overloaded ranges were split.")


class RescaleRequest(BaseModel):
    """A number of key partitions."""

    partitions: Annotated[int, Field(strict=True, ge=1, le=MAX_PARTITIONS)] | Literal["auto"] = Field(
        description='The number of key partitions; "auto" lets it follow the parallelism of the back-end and the load.'
    )


class Overview(BaseModel):
    """Current rates, latency and watermark."""

    rows_per_second: float
    emitted_per_second: float
    latency_seconds: LatencyInfo | None = Field(description="From the start of a micro-batch until its results are committed.")
    live: int
    waiting: int
    watermark: str | None = Field(description="The minimum over all streams.")
    lag_seconds: float | None = Field(description="How far the watermark is behind the wall clock.")
    batch: int
    partitions: PartitionsInfo
    history: list[OverviewPoint]


class StreamProgress(BaseModel):
    """A stream in a micro-batch."""

    start: Any = Field(description="The position before the batch, as its source writes it; null at the start of the stream.")
    end: Any = Field(description="The position after the batch.")
    input_rows: int
    input_rows_per_second: float | None = Field(description="Rows by the time since the micro-batch before.")
    processed_rows_per_second: float | None = Field(description="Rows by the duration of the micro-batch.")
    watermark: str | None
    late_rows: int = Field(description="Rows that were late for a query, once for each such query.")
    lag_rows: int | None = Field(description="Rows that the source has and that are not read yet, where it knows.")


class OperatorProgress(BaseModel):
    """All operators of a kind, in all partitions."""

    input_rows: int = Field(description="Rows, or partial aggregates, that the reduce stage received.")
    emitted_rows: int
    state_bytes: int
    state_rows: int


class StateSize(BaseModel):
    """The state of all open windows."""

    bytes: int
    rows: int


class BatchProgress(BaseModel):
    """The progress of a micro-batch."""

    batch: int
    timestamp: str = Field(description="When it was committed.")
    duration_ms: dict[str, int] = Field(
        description="Milliseconds by step: planning, log, preparation, run (of which map and reduce are the slowest tasks), "
        "record, commit, publication, cleanup, delivery, total."
    )
    input_rows: int
    input_rows_per_second: float | None
    processed_rows_per_second: float | None
    emitted_rows: int
    emitted_by_query: dict[str, int]
    live_queries: int
    added: list[str]
    removed: list[str]
    failed: dict[str, str] = Field(description="Errors by query.")
    changes: list[str] = Field(description="New epochs, join plans and partition counts.")
    partitions: int
    map_tasks: int
    state: StateSize
    operators: dict[str, OperatorProgress] = Field(description="By kind: aggregation, sessions, join, stateless.")
    streams: dict[str, StreamProgress]


class BatchInfo(BaseModel):
    """A committed micro-batch."""

    batch: int
    at: float = Field(description="When it was committed, in seconds since 1970.")
    seconds: float
    rows: int
    emitted: int
    added: int
    removed: int
    failed: int


@router.get("/v1/health", responses={503: {"model": Health | HealthStatus}})
async def get_health(response: Response, request: Request, host: HostDep) -> Health | HealthStatus:
    """Return whether micro-batches run, without a token; with one, also details. Details can quote rows and paths."""
    identity = await find_identity(request)
    health = Health(**await anyio.to_thread.run_sync(host.check_health))
    if health.status != "ok":
        response.status_code = 503
    return health if identity is not None else HealthStatus(status=health.status)


@router.get("/v1/plan")
def get_plan(host: HostDep, _: ReadAccess) -> PlanResponse:
    """Return the shared operators and the queries that use them."""
    diagram, drawing = host.session.statistics.draw_plan()
    operators = [OperatorInfo(**{**asdict(box), "queries": list(box.queries)}) for box in diagram.boxes]
    text, graph = host.session.explain(), host.session.graph("mermaid")
    return PlanResponse(
        text=text,
        graph=graph,
        operators=operators,
        edges=list(diagram.connections),
        drawing=DrawingInfo.model_validate(asdict(drawing)),
    )


@router.get("/v1/overview")
def get_overview(host: HostDep, _: ReadAccess) -> Overview:
    """Return rates, latency, watermark, and the rates of each second of the last two minutes."""
    return Overview(**build_overview(host))


@router.post("/v1/rescale")
def rescale(request: RescaleRequest, host: HostDep, _: AdminAccess) -> PartitionsInfo:
    """Change the number of key partitions; the next micro-batch repartitions the state. Queries and results stay the same."""
    host.session.rescale(request.partitions)
    return PartitionsInfo(**describe_partitions(host.session))


@router.get("/v1/events")
def list_events(host: HostDep, _: ReadAccess, most: Annotated[int, Parameter(ge=1, le=1000)] = 200) -> list[EventInfo]:
    """Return the newest events, oldest first, across restarts: queries added, removed and failed, epochs, plan changes."""
    return [EventInfo(**event) for event in host.event_log.recent_events()[-most:]]


@router.get("/v1/batches")
def list_batches(host: HostDep, _: ReadAccess, most: Annotated[int, Parameter(ge=1, le=1000)] = 100) -> list[BatchInfo]:
    """Return the last micro-batches, oldest first."""
    return [
        BatchInfo(
            batch=batch.report.batch,
            at=batch.at,
            seconds=batch.seconds,
            rows=batch.report.rows,
            emitted=batch.report.emitted,
            added=len(batch.report.added),
            removed=len(batch.report.removed),
            failed=len(batch.report.failed),
        )
        for batch in host.session.done()[-most:]
    ]


@router.get("/v1/progress")
def list_progress(host: HostDep, _: ReadAccess, most: Annotated[int, Parameter(ge=1, le=60)] = 1) -> list[BatchProgress]:
    """Return the progress of the newest micro-batches, oldest first: durations by step, rows, streams, operators, state."""
    return [BatchProgress.model_validate(document) for document in host.session.recent_progress[-most:]]


@router.get(
    "/metrics",
    response_class=Response,  # PlainTextResponse would document errors as text, too
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 503: {"model": Problem}},
)
def get_metrics(host: HostDep, _: ReadAccess) -> PlainTextResponse:
    """Return all metrics in the text format of Prometheus."""
    return PlainTextResponse(render_metrics(host), media_type="text/plain; version=0.0.4; charset=utf-8")
