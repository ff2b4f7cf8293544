"""How it goes: health, the shared plan, what batches did, and metrics for Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Response
from fastapi import Query as Parameter
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from headrace.service.api.common import REFUSALS, Reader, Served, Spread
from headrace.service.insight import picture_of
from headrace.service.metrics import exposition
from headrace.service.overview import seen
from headrace.service.refusals import Problem

router = APIRouter(tags=["operations"], responses=REFUSALS)


class Health(BaseModel):
    """Whether it runs."""

    status: str = Field(description="ok or stopped")
    detail: str = Field(description="Why it stopped.")
    batch: int = Field(description="The last committed micro-batch.")
    queries: int
    uptime_seconds: float
    version: str
    tokens: bool = Field(description="Whether requests need a token.")


class OperatorInfo(BaseModel):
    """A stream, an operator, or a query at the end of it all."""

    id: str
    kind: str = Field(description="stream, aggregation, sessions, routing, buckets, store or query")
    stream: str
    label: str
    detail: str
    queries: list[str] = Field(description="The queries it works for.")


class Plan(BaseModel):
    """What queries share."""

    text: str
    graph: str = Field(description="How rows go along the stores of joins in SLIDING windows, as Mermaid.")
    operators: list[OperatorInfo]
    edges: list[tuple[str, str]] = Field(description="From one operator to another, by their ids.")


class Change(BaseModel):
    """Something that happened."""

    at: float = Field(description="When, in seconds since 1970.")
    batch: int
    kind: str = Field(description="epoch, replan, added, removed or failed")
    text: str


class Moment(BaseModel):
    """How it went in one second."""

    at: float
    rows_per_second: float
    emitted_per_second: float
    batch_seconds: float
    live: int = Field(description="Queries in the pipeline, at the end of it.")


class Overview(BaseModel):
    """How it goes, on one screen."""

    rows_per_second: float
    emitted_per_second: float
    latency_seconds: Spread | None = Field(description="From the beginning of a micro-batch until its results are there.")
    live: int
    waiting: int
    watermark: str | None = Field(description="The least of all streams.")
    lag_seconds: float | None = Field(description="How far event time is behind the time of day, at worst.")
    batch: int
    history: list[Moment]


class BatchInfo(BaseModel):
    """A micro-batch."""

    batch: int
    at: float = Field(description="When it was committed, in seconds since 1970.")
    seconds: float
    rows: int
    emitted: int
    added: int
    removed: int
    failed: int


@router.get("/v1/health", responses={503: {"model": Health}})
def health(response: Response, host: Served) -> Health:
    """Say whether micro-batches run; no token is needed."""
    found = host.health()
    if found["status"] != "ok":
        response.status_code = 503
    return Health(**found)


@router.get("/v1/plan")
def plan(host: Served, _: Reader) -> Plan:
    """Return every shared operator, and which queries use it."""
    drawn = picture_of(host.session)
    operators = [OperatorInfo(**{**asdict(box), "queries": list(box.queries)}) for box in drawn.boxes]
    text, graph = host.session.explain(), host.session.graph("mermaid")
    return Plan(text=text, graph=graph, operators=operators, edges=list(drawn.lines))


@router.get("/v1/overview")
def overview(host: Served, _: Reader) -> Overview:
    """Return how it goes: rates, latency, watermark, and the last two minutes second by second."""
    return Overview(**seen(host))


@router.get("/v1/events")
def events(host: Served, _: Reader, most: Annotated[int, Parameter(ge=1, le=1000)] = 200) -> list[Change]:
    """Return what happened lately, oldest first, also before a restart: queries that came, went, failed, epochs, other plans."""
    return [Change(**one) for one in host.chronicle.happened()[-most:]]


@router.get("/v1/batches")
def batches(host: Served, _: Reader, most: Annotated[int, Parameter(ge=1, le=1000)] = 100) -> list[BatchInfo]:
    """Return the last micro-batches, oldest first."""
    return [
        BatchInfo(
            batch=done.report.batch,
            at=done.at,
            seconds=done.seconds,
            rows=done.report.rows,
            emitted=done.report.emitted,
            added=len(done.report.added),
            removed=len(done.report.removed),
            failed=len(done.report.failed),
        )
        for done in host.session.done()[-most:]
    ]


@router.get(
    "/metrics",
    response_class=Response,  # PlainTextResponse would have refusals described as text, too
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, 503: {"model": Problem}},
)
def metrics(host: Served, _: Reader) -> PlainTextResponse:
    """Return all figures in the text form of Prometheus."""
    return PlainTextResponse(exposition(host), media_type="text/plain; version=0.0.4; charset=utf-8")
