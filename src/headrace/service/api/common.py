"""Parts common to all paths: the host, the identity of a request, error responses, and JSON models of columns and latency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends
from fastapi import Query as Parameter
from fastapi.requests import HTTPConnection
from pydantic import BaseModel, Field

from headrace.service.auth import Identity, Role, check_role
from headrace.service.host import ServiceHost
from headrace.service.problems import HttpRequestError, Problem

COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The request needs a valid token."},
    403: {"model": Problem, "description": "The token does not allow this."},
    408: {"model": Problem, "description": "The request body did not arrive in time."},
    413: {"model": Problem, "description": "The request body is too large."},
    422: {"model": Problem, "description": "The request, or the SQL in it, is invalid."},
    500: {"model": Problem, "description": "A bug of headrace; the reference is also in the log of the service."},
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "It does not exist."}}
CONFLICT: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "The name is taken, or the current state does not allow the change."}
}
TOO_MANY_REQUESTS: dict[int | str, dict[str, Any]] = {
    429: {"model": Problem, "description": "A limit is reached; Retry-After says when to try again."}
}


class LatencyInfo(BaseModel):
    """Median and 95th percentile over the last micro-batches."""

    p50: float
    p95: float


class ColumnInfo(BaseModel):
    """A column and its SQL type."""

    name: str
    type: str = Field(description="The SQL type.")


QueryId = Annotated[
    int | None, Parameter(alias="id", ge=0, description="Id of the query, to tell it from a later query of the same name.")
]


def get_host(connection: HTTPConnection) -> ServiceHost:
    """Return the host of the application."""
    host = connection.app.state.host
    assert isinstance(host, ServiceHost)
    return host


async def authenticate(connection: HTTPConnection) -> Identity:
    """Return the identity of a request by its token; raises 401 for a missing or unknown token."""
    identity = await find_identity(connection)
    if identity is None:
        raise _token_error()
    return identity


async def find_identity(connection: HTTPConnection) -> Identity | None:
    """Return the identity of a request, or None without a token; raises 401 for an unknown token, later after repeated ones."""
    host, header = get_host(connection), connection.headers.get("authorization")
    scheme, _, token = (header or "").partition(" ")
    identity = host.tokens.identify(token.strip() if scheme.lower() == "bearer" else None)
    if identity is None and header is not None:
        await host.failed_attempts.delay_answer(connection.client.host if connection.client else "")
        raise _token_error()
    return identity


def _token_error() -> HttpRequestError:
    return HttpRequestError(401, "this service requires a valid token", hint="send 'Authorization: Bearer TOKEN'")


async def _host_dependency(connection: HTTPConnection) -> ServiceHost:
    return get_host(connection)  # async, so that FastAPI does not use a thread: every request would need three


async def _identity_dependency(connection: HTTPConnection) -> Identity:
    return await authenticate(connection)


def _require_role(role: Role) -> Callable[[Identity], Awaitable[Identity]]:
    async def check_holder(holder: Annotated[Identity, Depends(_identity_dependency)]) -> Identity:
        check_role(holder, role)
        return holder

    return check_holder


HostDep = Annotated[ServiceHost, Depends(_host_dependency)]
ReadAccess = Annotated[Identity, Depends(_require_role(Role.read))]
WriteAccess = Annotated[Identity, Depends(_require_role(Role.write))]
AdminAccess = Annotated[Identity, Depends(_require_role(Role.admin))]
