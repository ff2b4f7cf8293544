"""The application: paths put together, and what holds for every request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import anyio
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.service.api import operations, queries, reports, results, streams
from headrace.service.host import Host
from headrace.service.loopback import is_loopback
from headrace.service.page_files import mount
from headrace.service.refusals import Problem, RefusedError, problem, refused

_ABOUT = """Windowed SQL on live streams, shared: queries come and go at any moment, and all of them run as one pipeline.

A query is added with `POST /v1/queries`, and answered when it is live. Its results are pages of `/v1/queries/{name}/results`, or
come as they are made by `/v1/queries/{name}/live` (server-sent events; the id of each is the position to go on from)."""

_METHODS, _HEADERS = ("GET", "POST", "PUT", "DELETE"), ("Authorization", "Content-Type", "Last-Event-ID")  # of other sites
_DIGITS = 15
_PATIENCES = 6


def create_app(host: Host) -> FastAPI:
    """Return the application around a host; the session runs as long as it does."""

    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with host.running():
            yield

    app = FastAPI(title="headrace", version=host.version, description=_ABOUT, lifespan=running, docs_url=None, redoc_url=None)
    app.state.host = host
    app.state.reading, app.state.checking = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
    for one in (queries, results, streams, operations, reports):
        app.include_router(one.router)
    app.add_exception_handler(HeadraceError, refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)
    mount(app)
    app.add_middleware(Guard, host=host)
    if host.origins:  # before all else, so that pages can read refusals, too
        shown = ["Retry-After", *(f"X-Headrace-{name}" for name in results.SAID)]
        app.add_middleware(
            CORSMiddleware, allow_origins=host.origins, allow_methods=_METHODS, allow_headers=_HEADERS, expose_headers=shown
        )
    return app


class Guard:
    """Refuses what is too large, or was meant for another: before anything of it is read into memory.

    Without tokens only requests to a loopback name are served. Otherwise a page of somebody else could have a browser, for
    which a name of theirs is made to mean this machine, ask here. And what a browser asks for pages of others is refused, unless
    they are named: it would not let them read answers, but it lets them open sockets.
    """

    def __init__(self, app: ASGIApp, host: Host) -> None:
        """Stand before an application."""
        self._app, self._host = app, host
        self._coming = {True: 0, False: 0}  # bytes of requests that are on their way in: with rows, and others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        rows = scope["path"].startswith("/v1/streams/") and scope["path"].endswith("/rows")
        most = self._most(rows)
        try:
            self._check(headers, most)
        except RefusedError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
            else:
                await problem(error)(scope, receive, send)
            return
        if scope["type"] == "http":
            await self._limited(scope, receive, send, rows)
        else:
            await self._app(scope, receive, send)

    def _most(self, rows: bool) -> int:
        """Return how many bytes a request may have: rows may be many, and anything else is read in the event loop."""
        limits = self._host.limits
        return limits.body_bytes if rows else min(limits.small_body_bytes, limits.body_bytes)

    def _check(self, headers: dict[bytes, bytes], most: int) -> None:
        asked, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if not self._host.tokens.required and not is_loopback(_name_of(asked)):
            raise RefusedError(421, "this service answers on loopback only", hint="ask 127.0.0.1, or start it with tokens")
        if origin and origin.partition("://")[2] != asked and origin not in self._host.origins:
            hint = "open the page of the service itself, or start it with --origin"
            raise RefusedError(403, f"pages of '{origin[:80]}' may not ask here", hint=hint)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise RefusedError(400, "the length of the request is no number")
        if len(length) > _DIGITS or int(length) > most:
            raise _too_large(most)

    async def _limited(self, scope: Scope, receive: Receive, send: Send, rows: bool) -> None:
        """Count what comes without a length, too, and wait only so long for it.

        Whatever the application makes of the cut is not what is answered.
        """
        until, taken, complete = time.monotonic() + _PATIENCES * self._host.limits.patience_s, 0, False
        cut: RefusedError | None = None

        async def counted() -> Message:
            nonlocal taken, complete, cut
            try:
                message = await asyncio.wait_for(receive(), None if complete else self._host.limits.patience_s)
            except TimeoutError:
                cut = _too_slow()
                return {"type": "http.disconnect"}
            taken, complete = taken + len(message.get("body", b"")), not message.get("more_body", False)
            self._coming[rows] += len(message.get("body", b""))
            if taken > self._most(rows):
                cut = _too_large(self._most(rows))
            elif self._coming[rows] > self._host.limits.bodies_bytes:
                cut = RefusedError(429, "too much is on its way in", hint="send it again, in smaller requests", retry_s=1)
            elif not complete and time.monotonic() > until:
                cut = _too_slow()
            return {"type": "http.disconnect"} if cut else message

        async def unless_cut(message: Message) -> None:
            if cut is None:
                await send(message)

        try:
            await self._app(scope, counted, unless_cut)
        except ClientDisconnect:
            if cut is None:
                raise
        finally:
            self._coming[rows] -= taken
        if cut is not None:
            await problem(cut)(scope, receive, send)


def _too_slow() -> RefusedError:
    return RefusedError(408, "the rest of the request did not come in time", hint="send it again")


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"such a request has at most {most:,} bytes")


def _name_of(given: str) -> str:
    """Return a host without its port."""
    name, colon, port = given.rpartition(":")
    return name if colon and port.isdigit() else given


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    parts = [f"{'.'.join(str(one) for one in found['loc'])}: {found['msg']}" for found in error.errors()[:10]]
    return JSONResponse(Problem(error="the request is not understood", detail="; ".join(parts)).model_dump(), 422)


async def _unknown(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(Problem(error=str(error.detail)).model_dump(), error.status_code, headers=error.headers)
