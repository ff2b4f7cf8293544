"""The placeholder of a service that waits as a standby and has no session yet: every request gets status 503."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import uvicorn
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from headrace.service.problems import HttpRequestError, problem_response

_RETRY_SECONDS = 2.0
_SHUTDOWN_SECONDS = 1


@contextlib.contextmanager
def serve_placeholder(listening: socket.socket, tls: ssl.SSLContext | None) -> Iterator[None]:
    """Answer the requests of a socket in a thread until the end of the block; the socket stays open.

    Health says `standby`. It says nothing else, because no token has been checked.
    """
    hint = "ask the service that runs now, or ask again later"
    problem = HttpRequestError(503, "this service waits as a standby", hint=hint, retry_s=_RETRY_SECONDS)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/health":
            await JSONResponse({"status": "standby"}, 503)(scope, receive, send)
        else:
            await problem_response(problem)(scope, receive, send)

    config = uvicorn.Config(
        answer, log_level="warning", log_config=None, lifespan="off", ws="websockets-sansio",
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening.dup()],), name="headrace-placeholder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
