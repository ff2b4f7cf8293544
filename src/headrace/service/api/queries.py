"""Paths of queries: list, add, read, replace and remove them; and check a query without adding it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Request, Response
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from headrace.query import Query
from headrace.runtime.query_stats import NO_STATS, QueryStats
from headrace.service.api.common import (
    COMMON_ERRORS,
    CONFLICT,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ColumnInfo,
    HostDep,
    LatencyInfo,
    QueryId,
    ReadAccess,
    WriteAccess,
)
from headrace.service.host import ServiceHost
from headrace.service.problems import RequestBody
from headrace.service.subscriptions import describe_columns

router = APIRouter(prefix="/v1", tags=["queries"], responses=COMMON_ERRORS)
WaitSeconds = Annotated[float, Parameter(ge=0, le=60, description="Seconds to wait until the query is live.")]


Discard = Annotated[bool, Parameter(description="Drop what waits for the sink.")]
SinkSpecification = Annotated[
    str | dict[str, Any],
    Field(description='A text such as "delta:DIR", or options such as {"kind": "kafka", "brokers": "…", "topic": "…"}.'),
]
BudgetLimit = Annotated[int | None, Field(ge=1, strict=True)]


class BudgetLimits(RequestBody):
    """Limits of what a query may use in a micro-batch; a query that needs more fails, and its error has the figure.

    A limit that is missing is that of the user, or of the service; only an admin may exceed these.
    """

    output_rows: BudgetLimit = Field(default=None, description="Rows of results.")
    output_bytes: BudgetLimit = Field(default=None, description="Bytes of results, for each key partition.")
    join_pairs: BudgetLimit = Field(default=None, description="Pairs of rows that its joins compare, for each key partition.")
    state_bytes: BudgetLimit = Field(default=None, description="Bytes of state after the micro-batch.")

    def to_limits(self) -> dict[str, int]:
        """Return the given limits by name."""
        return self.model_dump(exclude_none=True)


class NewQuery(RequestBody):
    """A query to add."""

    sql: str = Field(min_length=1, description="SQL text of the query.")
    name: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f]*$", description="Generated if missing."
    )
    budget: BudgetLimits = Field(default=BudgetLimits(), description="At most the budget of the user and the service.")
    sinks: list[SinkSpecification] = Field(
        default=[], max_length=20, description="Where the results go, besides the service; it must allow them (--allow-host)."
    )


class NewSink(RequestBody):
    """A sink to add to a query."""

    sink: SinkSpecification


class SinkNumber(BaseModel):
    """The number of a sink that was added."""

    number: int


class QueryText(RequestBody):
    """The SQL text of a query."""

    sql: str = Field(min_length=1)


class NewQueryText(QueryText):
    """The new SQL text of a query that is replaced."""

    budget: BudgetLimits = Field(default=BudgetLimits(), description="By default that of the replaced query.")
    sinks: list[SinkSpecification] | None = Field(
        default=None, max_length=20, description="As for a new query; by default those of the replaced query."
    )


class QueryCost(BaseModel):
    """Estimated cost of a query, in seconds of work per second."""

    alone: float = Field(description="Standalone cost: if the query ran alone.")
    shared: float = Field(description="Shared cost: the query's part of the work for all queries.")
    share: float = Field(description="The shared cost as a fraction of the cost of all queries.")


class BudgetInfo(BaseModel):
    """What a query may use in a micro-batch."""

    output_rows: int
    output_bytes: int
    join_pairs: int
    state_bytes: int


class SinkInfo(BaseModel):
    """A sink of a query."""

    number: int
    kind: str
    description: str
    state: str = Field(description="ok; degraded: the destination is not available, and tried again; ended: taken away.")
    problem: str = Field(description="Why it is degraded.")
    first_batch: int | None = Field(description="The first micro-batch whose rows it receives; null before that is known.")
    end_batch: int | None = Field(description="The first micro-batch whose rows it does not receive any more.")
    published_batch: int | None = Field(description="The newest micro-batch that was published.")
    waiting_batches: int = Field(description="Micro-batches with rows that wait for the sink.")
    waiting_bytes: int
    guarantee: str


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
    budget: BudgetInfo
    sinks: list[SinkInfo]
    rows_per_second: float = Field(description="Recently emitted rows per second.")
    latency_seconds: LatencyInfo | None = Field(
        description="Event-time latency: from the end of a window, or the time of a row, until its results were readable. Over "
        "the last micro-batches with results; null without results."
    )
    state_bytes: int | None = Field(
        description="The query's part of the state kept between micro-batches; null if not measured yet."
    )
    cost: QueryCost | None = Field(description="By the cost model, at the rates of the last seconds; null if not estimated yet.")


class CheckResponse(BaseModel):
    """The output columns of a valid query."""

    columns: list[ColumnInfo]


def describe_query(query: Query, stats: QueryStats = NO_STATS) -> QueryInfo:
    """Return a query with its statistics; a query that is not live has none."""
    live_stats = stats if query.status == "live" else NO_STATS
    account, latency = live_stats.costs.get(query.id), live_stats.latencies.get(query.id)
    return QueryInfo(
        name=query.name,
        id=query.id,
        sql=query.sql,
        status=query.status,
        error=query.error or "",
        columns=[ColumnInfo(**column) for column in describe_columns(query.schema)],
        emitted=query.emitted,
        late=query.late,
        deployment_seconds=query.deployment_seconds,
        owner=query.owner,
        budget=BudgetInfo(**asdict(query.budget)),
        sinks=[SinkInfo(**asdict(sink)) for sink in query.sinks],
        rows_per_second=live_stats.emission_rates.get(query.id, 0.0),
        latency_seconds=None if latency is None else LatencyInfo(**asdict(latency)),
        state_bytes=live_stats.state_bytes.get(query.id),
        cost=None if account is None else QueryCost(**asdict(account)),
    )


@router.get("/queries")
def list_queries(host: HostDep, _: ReadAccess) -> list[QueryInfo]:
    """Return all queries that are not removed, oldest first."""
    stats = host.query_stats()
    return [describe_query(query, stats) for query in host.session.queries()]


@router.post("/queries", status_code=201, responses={202: {"model": QueryInfo}, **CONFLICT, **TOO_MANY_REQUESTS})
async def add_query(new: NewQuery, response: Response, host: HostDep, holder: WriteAccess, wait: WaitSeconds = 10) -> QueryInfo:
    """Add a query; 201 means that it is live, 202 that it is accepted and becomes live later."""
    query = await anyio.to_thread.run_sync(host.add, new.sql, new.name, holder, new.budget.to_limits(), new.sinks)
    return await _wait_and_describe(host, query, response, wait)


@router.get("/queries/{name}", responses=NOT_FOUND)
def get_query(name: str, host: HostDep, _: ReadAccess, query_id: QueryId = None) -> QueryInfo:
    """Return a query, live or not."""
    return describe_query(host.find_query(name, query_id), host.query_stats())


@router.put("/queries/{name}", responses={202: {"model": QueryInfo}, **NOT_FOUND, **CONFLICT, **TOO_MANY_REQUESTS})
async def replace_query(
    name: str, text: NewQueryText, response: Response, host: HostDep, holder: WriteAccess, wait: WaitSeconds = 10
) -> QueryInfo:
    """Replace the SQL text of a query: the old query ends and the new one starts with the same micro-batch."""
    query = await anyio.to_thread.run_sync(host.replace, name, text.sql, holder, text.budget.to_limits(), text.sinks)
    return await _wait_and_describe(host, query, response, wait)


@router.delete("/queries/{name}", status_code=204, responses={**NOT_FOUND, **CONFLICT})
def remove_query(name: str, host: HostDep, holder: WriteAccess) -> None:
    """Remove a query; its results stay readable."""
    host.remove(name, holder)


@router.post("/queries/{name}/sinks", status_code=201, responses={**NOT_FOUND, **CONFLICT})
def add_sink(name: str, new: NewSink, host: HostDep, holder: WriteAccess) -> SinkNumber:
    """Add a sink to a query: it receives the rows of every micro-batch from the next one on."""
    return SinkNumber(number=host.add_sink(name, new.sink, holder))


@router.delete("/queries/{name}/sinks/{number}", status_code=204, responses={**NOT_FOUND, **CONFLICT})
def remove_sink(name: str, number: int, host: HostDep, holder: WriteAccess, discard: Discard = False) -> None:
    """Take a sink from a query: it receives no rows from the next micro-batch on, but still what was emitted before."""
    host.remove_sink(name, number, holder, discard=discard)


@router.post("/check")
async def check_query(text: QueryText, request: Request, host: HostDep, _: ReadAccess) -> CheckResponse:
    """Check a query without adding it: return its output columns, or the error. The service checks one query at a time."""
    schema = await anyio.to_thread.run_sync(host.check, text.sql, limiter=request.app.state.checking)
    return CheckResponse(columns=[ColumnInfo(**column) for column in describe_columns(schema)])


async def _wait_and_describe(host: ServiceHost, query: Query, response: Response, wait: float) -> QueryInfo:
    if not await host.wait_until_live(query, wait):
        response.status_code = 202
    return describe_query(query)  # a new query has no statistics yet
