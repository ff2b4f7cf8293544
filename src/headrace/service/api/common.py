"""Parts common to all paths: the host, the identity of a request, error responses, and JSON models of columns and latency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends
from fastapi import Query as Parameter
from fastapi.requests import HTTPConnection
from pydantic import BaseModel, Field

from headrace.service.host import Host
from headrace.service.refusals import Problem, RefusedError
from headrace.service.tokens import Holder, Role

REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The request needs a valid token."},
    403: {"model": Problem, "description": "The token does not allow this."},
    408: {"model": Problem, "description": "The request body did not arrive in time."},
    413: {"model": Problem, "description": "The request body is too large."},
    422: {"model": Problem, "description": "The request, or the SQL in it, is invalid."},
}
MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "It does not exist."}}
TAKEN: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "The name is taken, or the current state does not allow the change."}
}
BUSY: dict[int | str, dict[str, Any]] = {
    429: {"model": Problem, "description": "A limit is reached; Retry-After says when to try again."}
}


class Spread(BaseModel):
    """Median and 95th percentile over the last micro-batches."""

    p50: float
    p95: float


class ColumnInfo(BaseModel):
    """A column and its SQL type."""

    name: str
    type: str = Field(description="The SQL type.")


Number = Annotated[
    int | None, Parameter(alias="id", ge=0, description="Id of the query, to tell it from a later query of the same name.")
]


def host_of(connection: HTTPConnection) -> Host:
    """Return the host of the application."""
    host = connection.app.state.host
    assert isinstance(host, Host)
    return host


def holder_of(connection: HTTPConnection) -> Holder:
    """Return the identity of a request by its token; raises 401 for a missing or unknown token."""
    host = host_of(connection)
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    identity = host.tokens.holder(token.strip() if scheme.lower() == "bearer" else None)
    if identity is None:
        raise RefusedError(401, "this service requires a valid token", hint="send 'Authorization: Bearer TOKEN'")
    return identity


async def _served(connection: HTTPConnection) -> Host:
    return host_of(connection)  # async, so that FastAPI does not use a thread: every request would need three


async def _asking(connection: HTTPConnection) -> Holder:
    return holder_of(connection)


def _at_least(role: Role) -> Callable[[Holder], Awaitable[Holder]]:
    async def check_role(holder: Annotated[Holder, Depends(_asking)]) -> Holder:
        if holder.role < role:
            raise RefusedError(
                403, f"user '{holder.user}' has only the role {holder.role.name}", hint=f"use a token with the role {role.name}"
            )
        return holder

    return check_role


Served = Annotated[Host, Depends(_served)]
Reader = Annotated[Holder, Depends(_at_least(Role.read))]
Writer = Annotated[Holder, Depends(_at_least(Role.write))]
Admin = Annotated[Holder, Depends(_at_least(Role.admin))]
