"""The server: uvicorn with idle timeouts, a connection limit, direct writes to live readers, and a prompt shutdown."""

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
_TAKEN_AT_ONCE = 16  # connections accepted in one turn of the event loop
_NOTICING = 2  # turns of the event loop until it sees that the client disconnected after its request
_WAITING = 1024  # connections that wait to be accepted
_REFUSAL = problem(RefusedError(429, "too many connections", hint="try again later", retry_s=10))
_FULL = b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n\r\n%b" % (
    b"\r\n".join(b"%b: %b" % header for header in [*_REFUSAL.raw_headers, (b"connection", b"close")]),
    bytes(_REFUSAL.body),
)


class _Connection(H11Protocol):
    """An HTTP connection with an idle timeout.

    It is closed when no request started for `idle_timeout` seconds (at most twice that) and none is being answered. Above
    `max_connections` a connection is rejected before anything is read, to keep a flood cheap.

    TCP_NODELAY is set here because asyncio sets it only if the listening socket names its protocol; without it the second part
    of a response waits 40 ms for the acknowledgement of the first.
    """

    def __init__(self, *args: Any, idle_timeout: float, max_connections: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._patience, self._most, self._before = idle_timeout, max_connections, self.cycle
        self._served, self.app = self.app, self._serve

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application with the extension that writes whole chunks; drop requests of disconnected clients."""
        for _ in range(_NOTICING):
            await asyncio.sleep(0)
        if self.transport.is_closing():
            await asyncio.sleep(0)  # until uvicorn, too, has noticed the disconnect
            return
        scope["extensions"] = {AT_ONCE: self._at_once}
        await self._served(scope, receive, send)

    def _at_once(self, data: bytes) -> bool:
        """Write all data, or nothing and return False if earlier data is still buffered or the client has disconnected."""
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
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it became a WebSocket
            return
        if self.cycle is self._before and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._before = self.cycle
        self.loop.call_later(self._patience, self._look)


class Server(uvicorn.Server):
    """Serves a host on sockets that are already bound."""

    def __init__(self, host: Host) -> None:
        """Configure uvicorn; `run` starts serving."""
        self._host = host
        connection = partial(_Connection, idle_timeout=host.limits.patience_s, max_connections=host.limits.connections)
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
        """Start serving; accept few connections per turn but let many wait (asyncio has one setting for both)."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all subscriptions, then shut down when their connections are closed."""
        self._host.news.end()
        await super().shutdown(sockets)
