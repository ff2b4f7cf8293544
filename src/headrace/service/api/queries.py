"""Paths of queries: list, add, read, replace and remove them; and check a query without adding it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import anyio
from fastapi import APIRouter, Request, Response
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from headrace.query import Query
from headrace.service.api.common import BUSY, MISSING, REFUSALS, TAKEN, ColumnInfo, Number, Reader, Served, Spread, Writer
from headrace.service.asked import Asked
from headrace.service.events import columns_of
from headrace.service.host import Host
from headrace.service.insight import NOTHING, Insight

router = APIRouter(prefix="/v1", tags=["queries"], responses=REFUSALS)
Wait = Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait until the query is live.")]


class NewQuery(Asked):
    """A query to add."""

    sql: str = Field(min_length=1, description="SQL text of the query.")
    name: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f]*$", description="Generated if missing."
    )


class Text(Asked):
    """The SQL text of a query."""

    sql: str = Field(min_length=1)


class Cost(BaseModel):
    """Estimated cost of a query, in seconds of work per second."""

    alone: float = Field(description="Standalone cost: if the query ran alone.")
    shared: float = Field(description="Shared cost: the query's part of the work for all queries.")
    share: float = Field(description="The shared cost as a fraction of the cost of all queries.")


class QueryInfo(BaseModel):
    """A query, its status and its statistics."""

    name: str
    id: int = Field(description="Unique; never reused.")
    sql: str
    status: str = Field(description="accepted, live, removed or failed")
    error: str = Field(description="Why it failed, if it did.")
    columns: list[ColumnInfo]
    emitted: int = Field(description="Rows emitted so far.")
    late: dict[str, int] = Field(description="Late rows of the query, by stream.")
    deployment_seconds: float | None = Field(
        description="From the request until the query was live; null before that, and after a restart."
    )
    owner: str = Field(description="User whose token added the query.")
    rows_per_second: float = Field(description="Recently emitted rows per second.")
    latency_seconds: Spread | None = Field(
        description="Event-time latency: from the end of a window, or the time of a row, until its results were readable. Over "
        "the last micro-batches with results; null without results."
    )
    state_bytes: int | None = Field(
        description="The query's part of the state kept between micro-batches; null if not measured yet."
    )
    cost: Cost | None = Field(description="By the cost model, at the rates of the last seconds; null if not estimated yet.")


class Meaning(BaseModel):
    """The output columns of a valid query."""

    columns: list[ColumnInfo]


def described(query: Query, stats: Insight = NOTHING) -> QueryInfo:
    """Return a query with its statistics; a query that is not live has none."""
    live_stats = stats if query.status == "live" else NOTHING
    account, latency = live_stats.accounts.get(query.id), live_stats.latencies.get(query.id)
    return QueryInfo(
        name=query.name,
        id=query.id,
        sql=query.sql,
        status=query.status,
        error=query.error or "",
        columns=[ColumnInfo(**column) for column in columns_of(query.schema)],
        emitted=query.emitted,
        late=query.late,
        deployment_seconds=query.deployment_seconds,
        owner=query.owner,
        rows_per_second=live_stats.rates.get(query.id, 0.0),
        latency_seconds=None if latency is None else Spread(**asdict(latency)),
        state_bytes=live_stats.state_bytes.get(query.id),
        cost=None if account is None else Cost(**asdict(account)),
    )


@router.get("/queries")
def queries(host: Served, _: Reader) -> list[QueryInfo]:
    """Return all queries that are not removed, oldest first."""
    stats = host.insight()
    return [described(query, stats) for query in host.session.queries()]


@router.post("/queries", status_code=201, responses={202: {"model": QueryInfo}, **TAKEN, **BUSY})
async def add(new: NewQuery, response: Response, host: Served, holder: Writer, wait: Wait = 10) -> QueryInfo:
    """Add a query; 201 means that it is live, 202 that it is accepted and becomes live later."""
    query = await anyio.to_thread.run_sync(host.add, new.sql, new.name, holder)
    return await _answered(host, query, response, wait)


@router.get("/queries/{name}", responses=MISSING)
def query(name: str, host: Served, _: Reader, query_id: Number = None) -> QueryInfo:
    """Return a query, live or not."""
    return described(host.query(name, query_id), host.insight())


@router.put("/queries/{name}", responses={202: {"model": QueryInfo}, **MISSING, **TAKEN, **BUSY})
async def replace(name: str, text: Text, response: Response, host: Served, holder: Writer, wait: Wait = 10) -> QueryInfo:
    """Replace the SQL text of a query: the old query ends and the new one starts with the same micro-batch."""
    query = await anyio.to_thread.run_sync(host.replace, name, text.sql, holder)
    return await _answered(host, query, response, wait)


@router.delete("/queries/{name}", status_code=204, responses={**MISSING, **TAKEN})
def remove(name: str, host: Served, _: Writer) -> None:
    """Remove a query; its results stay readable."""
    host.remove(name)


@router.post("/check")
async def check(text: Text, request: Request, host: Served, _: Reader) -> Meaning:
    """Check a query without adding it: return its output columns, or the error. The service checks one query at a time."""
    schema = await anyio.to_thread.run_sync(host.check, text.sql, limiter=request.app.state.checking)
    return Meaning(columns=[ColumnInfo(**column) for column in columns_of(schema)])


async def _answered(host: Host, query: Query, response: Response, wait: float) -> QueryInfo:
    if not await host.live(query, wait):
        response.status_code = 202
    return described(query)  # a new query has no statistics yet
