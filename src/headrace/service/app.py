"""The application: all paths, and the checks of every request."""

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
from headrace.service.auth import is_loopback
from headrace.service.host import ServiceHost
from headrace.service.page_files import mount_page
from headrace.service.problems import HttpRequestError, Problem, handle_error, handle_unexpected_error, problem_response

_API_DESCRIPTION = """Shared windowed SQL queries on live streams, added and removed at any time, all in one pipeline.

`POST /v1/queries` adds a query and answers when it is live. `/v1/queries/{name}/results` returns its results as pages;
`/v1/queries/{name}/live` streams them as they are emitted (server-sent events; the id of an event is the position to resume
from)."""

_API_VERSION = "1"  # of the paths, which start with /v1; the version of headrace is in /v1/health, which needs a token for it
_CORS_METHODS, _CORS_HEADERS = (
    ("GET", "POST", "PUT", "DELETE"),
    ("Authorization", "Content-Type", "Last-Event-ID"),
)  # allowed by CORS
_MAX_LENGTH_DIGITS = 15
_RETRY_LOST_SECONDS = 5.0
LOST_MESSAGE = "this service no longer owns its checkpoint: another process has taken it over"
LOST_HINT = "ask the service that runs now; readers continue there from their position"
_BODY_TIMEOUT_FACTOR = 6


def create_app(host: ServiceHost) -> FastAPI:
    """Return the application of a host; the session runs as long as the application."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with host.lifespan():
            yield

    app = FastAPI(
        title="headrace", version=_API_VERSION, description=_API_DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.host = host
    app.state.reading, app.state.checking = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
    for module in (queries, results, streams, operations, reports):
        app.router.routes.extend(module.router.routes)  # `include_router` would build the models of all routes again
    app.add_exception_handler(HeadraceError, handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, handle_unexpected_error)
    mount_page(app)
    app.add_middleware(RequestGuard, host=host)
    if host.origins:  # outermost, so that pages can read rejections, too
        exposed_headers = ["Retry-After", *(f"X-Headrace-{name}" for name in results.PAGE_HEADERS)]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=host.origins,
            allow_methods=_CORS_METHODS,
            allow_headers=_CORS_HEADERS,
            expose_headers=exposed_headers,
        )
    return app


class RequestGuard:
    """Middleware that rejects requests that are too large, or from a foreign origin, before their body is read into memory.

    Without tokens only requests to a loopback name are served, which prevents DNS rebinding: a foreign page whose domain is made
    to resolve to this machine. Requests with a foreign Origin are rejected unless `--origin` allows it: CORS keeps a foreign
    page from reading responses, but not from opening WebSockets.
    """

    def __init__(self, app: ASGIApp, host: ServiceHost) -> None:
        """Take the application to protect."""
        self._app, self._host = app, host
        self._inflight_bytes = {True: 0, False: 0}  # bytes of bodies being received: with rows, and others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        has_rows = scope["path"].startswith("/v1/streams/") and scope["path"].endswith("/rows")
        max_bytes = self._max_body_bytes(has_rows)
        try:
            self._check_headers(headers, max_bytes)
            self._check_ownership(scope["path"])
        except HttpRequestError as error:
            if scope["type"] == "websocket" and error.status != 503:
                await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
            else:
                await problem_response(error)(scope, receive, send)
            return
        if scope["type"] == "http":
            await self._run_limited(scope, receive, send, has_rows)
        else:
            await self._app(scope, receive, send)

    def _max_body_bytes(self, has_rows: bool) -> int:
        """Return the maximum body size: smaller for requests without rows, which are parsed in the event loop."""
        limits = self._host.limits
        return limits.body_bytes if has_rows else min(limits.small_body_bytes, limits.body_bytes)

    def _check_headers(self, headers: dict[bytes, bytes], max_bytes: int) -> None:
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        if not self._host.tokens.required and not is_loopback(_strip_port(host)):
            raise HttpRequestError(
                421, "this service answers on loopback only", hint="use 127.0.0.1, or start the service with tokens"
            )
        if origin and origin.partition("://")[2] != host and origin not in self._host.origins:
            hint = "use the page of the service itself, or start the service with --origin"
            raise HttpRequestError(403, f"origin '{origin[:80]}' is not allowed", hint=hint)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise HttpRequestError(400, "Content-Length is not a number")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > max_bytes:
            raise _too_large_error(max_bytes)

    def _check_ownership(self, path: str) -> None:
        """Reject requests when another process has the checkpoint, except for health, metrics and the files of the page."""
        if path.startswith("/v1/") and path != "/v1/health" and self._host.session.loss is not None:
            raise HttpRequestError(503, LOST_MESSAGE, hint=LOST_HINT, retry_s=_RETRY_LOST_SECONDS)

    async def _run_limited(self, scope: Scope, receive: Receive, send: Send, has_rows: bool) -> None:
        """Run the application while limiting size and duration of the body, also of one without Content-Length.

        After a rejection the application sees a disconnect, and its own response is discarded.
        """
        deadline, received, complete = time.monotonic() + _BODY_TIMEOUT_FACTOR * self._host.limits.patience_s, 0, False
        rejection: HttpRequestError | None = None

        async def receive_limited() -> Message:
            nonlocal received, complete, rejection
            try:
                message = await asyncio.wait_for(receive(), None if complete else self._host.limits.patience_s)
            except TimeoutError:
                rejection = _timeout_error()
                return {"type": "http.disconnect"}
            received, complete = received + len(message.get("body", b"")), not message.get("more_body", False)
            self._inflight_bytes[has_rows] += len(message.get("body", b""))
            if received > self._max_body_bytes(has_rows):
                rejection = _too_large_error(self._max_body_bytes(has_rows))
            elif self._inflight_bytes[has_rows] > self._host.limits.bodies_bytes:
                rejection = HttpRequestError(
                    429, "the service is receiving too many large requests", hint="send smaller requests, later", retry_s=1
                )
            elif not complete and time.monotonic() > deadline:
                rejection = _timeout_error()
            return {"type": "http.disconnect"} if rejection else message

        async def send_unless_rejected(message: Message) -> None:
            if rejection is None:
                await send(message)

        try:
            await self._app(scope, receive_limited, send_unless_rejected)
        except ClientDisconnect:
            if rejection is None:
                raise
        finally:
            self._inflight_bytes[has_rows] -= received
        if rejection is not None:
            await problem_response(rejection)(scope, receive, send)


def _timeout_error() -> HttpRequestError:
    return HttpRequestError(408, "timeout: the request body did not arrive in time", hint="send the request again")


def _too_large_error(max_bytes: int) -> HttpRequestError:
    return HttpRequestError(413, f"the request body exceeds {max_bytes:,} bytes")


def _strip_port(host: str) -> str:
    """Return the host of a Host header without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


async def _handle_validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    parts = [f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()[:10]]
    return JSONResponse(Problem(error="invalid request", detail="; ".join(parts)).model_dump(), 422)


async def _handle_http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(Problem(error=str(error.detail)).model_dump(), error.status_code, headers=error.headers)
