"""Queries: add, look, replace, remove; and what a text would mean, without adding it."""

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
Wait = Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait until it is live.")]


class NewQuery(Asked):
    """A query to be added."""

    sql: str = Field(min_length=1, description="Its text.")
    name: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f]*$", description="Chosen if not given."
    )


class Text(Asked):
    """A query's text."""

    sql: str = Field(min_length=1)


class Cost(BaseModel):
    """What a query takes, in seconds of work a second."""

    alone: float = Field(description="If it ran alone.")
    shared: float = Field(description="Its part of what is done for all.")
    share: float = Field(description="The same, of all that is spent.")


class QueryInfo(BaseModel):
    """A query that was added."""

    name: str
    id: int = Field(description="No other query has, had or will have it.")
    sql: str
    status: str = Field(description="accepted, live, removed or failed")
    error: str = Field(description="Why it failed, if it did.")
    columns: list[ColumnInfo]
    emitted: int = Field(description="Rows so far.")
    late: dict[str, int] = Field(description="Rows that came too late for it, by stream.")
    deployment_seconds: float | None = Field(description="From the request until it was live; null before, and after a restart.")
    owner: str = Field(description="Whose token added it.")
    rows_per_second: float = Field(description="Rows it emitted a second, lately.")
    latency_seconds: Spread | None = Field(
        description="From the end of a window, or the time of a row, until results could be read: in event time, of the last "
        "micro-batches with results; null without any."
    )
    state_bytes: int | None = Field(description="Its part of what is kept between micro-batches; null of what is newer.")
    cost: Cost | None = Field(description="By the model, of the last seconds; null of what is newer.")


class Meaning(BaseModel):
    """What a query would give."""

    columns: list[ColumnInfo]


def described(query: Query, insight: Insight = NOTHING) -> QueryInfo:
    """Return what is known of a query, with the figures of an insight."""
    known = insight if query.status == "live" else NOTHING
    account, latency = known.accounts.get(query.id), known.latencies.get(query.id)
    return QueryInfo(
        name=query.name,
        id=query.id,
        sql=query.sql,
        status=query.status,
        error=query.error or "",
        columns=[ColumnInfo(**one) for one in columns_of(query.schema)],
        emitted=query.emitted,
        late=query.late,
        deployment_seconds=query.deployment_seconds,
        owner=query.owner,
        rows_per_second=known.rates.get(query.id, 0.0),
        latency_seconds=None if latency is None else Spread(**asdict(latency)),
        state_bytes=known.state_bytes.get(query.id),
        cost=None if account is None else Cost(**asdict(account)),
    )


@router.get("/queries")
def queries(host: Served, _: Reader) -> list[QueryInfo]:
    """Return all queries that were added and not removed, oldest first."""
    insight = host.insight()
    return [described(query, insight) for query in host.session.queries()]


@router.post("/queries", status_code=201, responses={202: {"model": QueryInfo}, **TAKEN, **BUSY})
async def add(new: NewQuery, response: Response, host: Served, holder: Writer, wait: Wait = 10) -> QueryInfo:
    """Add a query; 201 says that it is live, 202 that it was accepted and will be."""
    query = await anyio.to_thread.run_sync(host.add, new.sql, new.name, holder)
    return await _answered(host, query, response, wait)


@router.get("/queries/{name}", responses=MISSING)
def query(name: str, host: Served, _: Reader, number: Number = None) -> QueryInfo:
    """Return a query, also one that is over."""
    return described(host.query(name, number), host.insight())


@router.put("/queries/{name}", responses={202: {"model": QueryInfo}, **MISSING, **TAKEN, **BUSY})
async def replace(name: str, text: Text, response: Response, host: Served, holder: Writer, wait: Wait = 10) -> QueryInfo:
    """Put another text in the place of a query: the old one ends and the new one begins with the same micro-batch."""
    query = await anyio.to_thread.run_sync(host.replace, name, text.sql, holder)
    return await _answered(host, query, response, wait)


@router.delete("/queries/{name}", status_code=204, responses={**MISSING, **TAKEN})
def remove(name: str, host: Served, _: Writer) -> None:
    """Remove a query: what it emitted stays to be read."""
    host.remove(name)


@router.post("/check")
async def check(text: Text, request: Request, host: Served, _: Reader) -> Meaning:
    """Say what a query would give, or what is wrong with it; nothing is added. One at a time: others are served meanwhile."""
    schema = await anyio.to_thread.run_sync(host.check, text.sql, limiter=request.app.state.checking)
    return Meaning(columns=[ColumnInfo(**one) for one in columns_of(schema)])


async def _answered(host: Host, query: Query, response: Response, wait: float) -> QueryInfo:
    if not await host.live(query, wait):
        response.status_code = 202
    return described(query)  # there are no figures of what is new
