"""The server: uvicorn, which lets readers go before it waits for them, and hangs up on who says nothing."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.service.app import create_app
from headrace.service.host import Host
from headrace.service.live import AT_ONCE
from headrace.service.refusals import RefusedError, problem

_PATIENCE_SECONDS = 2
_TAKEN_AT_ONCE = 16  # of connections that wait, before others are served again
_NOTICING = 2  # turns of the event loop until it sees that a request was the last that its sender said
_WAITING = 1024  # connections that wait to be taken
_REFUSAL = problem(RefusedError(429, "there are too many connections", hint="try again later", retry_s=10))
_FULL = b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n\r\n%b" % (
    b"\r\n".join(b"%b: %b" % header for header in [*_REFUSAL.raw_headers, (b"connection", b"close")]),
    bytes(_REFUSAL.body),
)


class _Connection(H11Protocol):
    """Is closed when no request of it began for `patience` seconds, or twice that, and none is being answered.

    Beyond `most` of them it is refused before anything of it is read: what a flood costs would be taken from others.

    What is written is sent at once. Otherwise the second part of an answer waits until the first was acknowledged, 40 ms: asyncio
    sees to that only where the socket that listens names its protocol.
    """

    def __init__(self, *args: Any, patience: float, most: int, **given: Any) -> None:
        super().__init__(*args, **given)
        self._patience, self._most, self._before = patience, most, self.cycle
        self._served, self.app = self.app, self._serve

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the application write whole chunks of an answer through `AT_ONCE`; who has hung up is not answered at all."""
        for _ in range(_NOTICING):
            await asyncio.sleep(0)
        if self.transport.is_closing():
            await asyncio.sleep(0)  # until uvicorn, too, knows that nobody is there
            return
        scope["extensions"] = {AT_ONCE: self._at_once}
        await self._served(scope, receive, send)

    def _at_once(self, data: bytes) -> bool:
        """Write all of it, or nothing if something still waits to be sent, or nobody is there any more."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        self.transport.write(data)
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._most:
            self.transport = transport
            transport.write(_FULL)
            transport.close()
            return
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.call_later(self._patience, self._look)

    def _look(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it became a socket
            return
        if self.cycle is self._before and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._before = self.cycle
        self.loop.call_later(self._patience, self._look)


class Server(uvicorn.Server):
    """Serves a host on sockets that listen already."""

    def __init__(self, host: Host) -> None:
        """Nothing is served before `run`."""
        self._host = host
        connection = partial(_Connection, patience=host.limits.patience_s, most=host.limits.connections)
        super().__init__(
            uvicorn.Config(
                create_app(host),
                http=cast("type[asyncio.Protocol]", connection),
                log_level="warning",
                lifespan="on",
                ws="websockets-sansio",
                timeout_graceful_shutdown=_PATIENCE_SECONDS,
                backlog=_TAKEN_AT_ONCE,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve: few connections at once, but many may wait for that (asyncio takes one figure for both)."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell readers that it is over, then end when they are gone."""
        self._host.news.end()
        await super().shutdown(sockets)
