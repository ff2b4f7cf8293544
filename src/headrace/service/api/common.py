"""What paths have in common: the host, whose request it is, and how columns and rows are said in JSON."""

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
    401: {"model": Problem, "description": "A token is needed."},
    403: {"model": Problem, "description": "The token does not allow this."},
    408: {"model": Problem, "description": "The rest of the request did not come in time."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request, or the SQL in it, cannot be understood."},
}
MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "It is not there."}}
TAKEN: dict[int | str, dict[str, Any]] = {409: {"model": Problem, "description": "The name is taken, or the state forbids it."}}
BUSY: dict[int | str, dict[str, Any]] = {429: {"model": Problem, "description": "Too much at once: Retry-After says when."}}


class Spread(BaseModel):
    """Of the last micro-batches: the median, and what 95 of 100 do not exceed."""

    p50: float
    p95: float


class ColumnInfo(BaseModel):
    """A column."""

    name: str
    type: str = Field(description="Its SQL type.")


Number = Annotated[
    int | None, Parameter(alias="id", ge=0, description="Of the query that is meant, if another may have its name by now.")
]


def host_of(connection: HTTPConnection) -> Host:
    """Return what is served."""
    found = connection.app.state.host
    assert isinstance(found, Host)
    return found


def holder_of(connection: HTTPConnection) -> Holder:
    """Return whose request it is, by the token in it."""
    host = host_of(connection)
    kind, _, token = connection.headers.get("authorization", "").partition(" ")
    found = host.tokens.holder(token.strip() if kind.lower() == "bearer" else None)
    if found is None:
        raise RefusedError(401, "this service needs a token", hint="send 'Authorization: Bearer TOKEN'")
    return found


async def _served(connection: HTTPConnection) -> Host:
    return host_of(connection)  # not in a thread of its own, of which every request would need three


async def _asking(connection: HTTPConnection) -> Holder:
    return holder_of(connection)


def _at_least(role: Role) -> Callable[[Holder], Awaitable[Holder]]:
    async def checked(holder: Annotated[Holder, Depends(_asking)]) -> Holder:
        if holder.role < role:
            raise RefusedError(
                403, f"the token of '{holder.user}' may {holder.role.name} only", hint=f"use one with role {role.name}"
            )
        return holder

    return checked


Served = Annotated[Host, Depends(_served)]
Reader = Annotated[Holder, Depends(_at_least(Role.read))]
Writer = Annotated[Holder, Depends(_at_least(Role.write))]
Admin = Annotated[Holder, Depends(_at_least(Role.admin))]
