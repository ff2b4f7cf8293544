"""The server: uvicorn with idle timeouts, a connection limit, direct writes to live readers, and a prompt shutdown."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.errors import HeadraceError
from headrace.service.app import create_app
from headrace.service.host import ServiceHost
from headrace.service.problems import HttpRequestError, problem_response
from headrace.service.subscriptions import WRITE_CHUNK_EXTENSION

_SHUTDOWN_SECONDS = 2
_ACCEPT_BATCH = 16  # connections accepted in one turn of the event loop
_DISCONNECT_TURNS = 2  # turns of the event loop until it sees that the client disconnected after its request
_LISTEN_BACKLOG = 1024  # connections that wait to be accepted
_FULL_RESPONSE = problem_response(HttpRequestError(429, "too many connections", hint="try again later", retry_s=10))
_FULL_RESPONSE_BYTES = b"HTTP/1.1 429 Too Many Requests\r\n%b\r\n\r\n%b" % (
    b"\r\n".join(b"%b: %b" % header for header in [*_FULL_RESPONSE.raw_headers, (b"connection", b"close")]),
    bytes(_FULL_RESPONSE.body),
)


class _HttpConnection(H11Protocol):
    """An HTTP connection with an idle timeout.

    It is closed when no request started for `idle_timeout` seconds (at most twice that) and none is being answered. Above
    `max_connections` a connection is rejected before anything is read, to keep a flood cheap.

    TCP_NODELAY is set here because asyncio sets it only if the listening socket names its protocol; without it the second part
    of a response waits 40 ms for the acknowledgement of the first.
    """

    def __init__(self, *args: Any, idle_timeout: float, max_connections: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle_timeout, self._max_connections, self._last_cycle = idle_timeout, max_connections, self.cycle
        self._wrapped_app, self.app = self.app, self._serve_connected

    async def _serve_connected(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application with the extension that writes whole chunks; drop requests of disconnected clients."""
        for _ in range(_DISCONNECT_TURNS):
            await asyncio.sleep(0)
        if self.transport.is_closing():
            await asyncio.sleep(0)  # until uvicorn, too, has noticed the disconnect
            return
        scope["extensions"] = {WRITE_CHUNK_EXTENSION: self._write_chunk}
        await self._wrapped_app(scope, receive, send)

    def _write_chunk(self, data: bytes) -> bool:
        """Write all data, or nothing and return False if earlier data is still buffered or the client has disconnected."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        self.transport.write(data)
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._max_connections:
            self.transport = transport
            transport.write(_FULL_RESPONSE_BYTES)
            transport.close()
            return
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.call_later(self._idle_timeout, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it became a WebSocket
            return
        if self.cycle is self._last_cycle and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
            return
        self._last_cycle = self.cycle
        self.loop.call_later(self._idle_timeout, self._close_if_idle)


class Server(uvicorn.Server):
    """Serves a host on sockets that are already bound."""

    def __init__(self, host: ServiceHost, tls: ssl.SSLContext | None = None, *, ends_on_loss: bool = False) -> None:
        """Configure uvicorn; `run` starts serving, with a TLS context by HTTPS only.

        With `ends_on_loss` it ends when another process has taken the checkpoint over; else it answers 503 from then on.
        """
        self._host, self._tls, self._ends_on_loss = host, tls, ends_on_loss
        connection = partial(_HttpConnection, idle_timeout=host.limits.patience_s, max_connections=host.limits.connections)
        super().__init__(
            uvicorn.Config(
                create_app(host),
                http=cast("type[asyncio.Protocol]", connection),
                log_level="warning",
                log_config=None,  # the handlers of `headrace.logging`
                lifespan="on",
                ws="websockets-sansio",
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )

    async def on_tick(self, counter: int) -> bool:
        """Return whether to shut down; called ten times a second."""
        return await super().on_tick(counter) or (self._ends_on_loss and self._host.session.loss is not None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving; accept few connections per turn but let many wait (asyncio has one setting for both).

        uvicorn would serve the sockets without a limit for TLS handshakes, and clients that send nothing are not counted before.
        """
        await super().startup([])
        loop, timeout = asyncio.get_running_loop(), self._host.limits.patience_s if self._tls else None
        for listening in sockets or ():
            server = await loop.create_server(
                self._create_connection, sock=listening, ssl=self._tls, backlog=_ACCEPT_BATCH, ssl_handshake_timeout=timeout
            )
            self.servers.append(server)
            listening.listen(_LISTEN_BACKLOG)

    def _create_connection(self) -> asyncio.Protocol:
        create = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return create(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all subscriptions, then shut down when their connections are closed."""
        self._host.notifier.stop()
        self._drop_closing_websockets()
        await super().shutdown(sockets)

    def _drop_closing_websockets(self) -> None:
        """Close the connections of websockets that are about to end: uvicorn would close them once more, which raises."""
        for connection in list(self.server_state.connections):
            state = getattr(getattr(connection, "conn", None), "state", None)
            if getattr(state, "name", "") in {"CLOSING", "CLOSED"}:
                self.server_state.connections.discard(connection)
                cast("Any", connection).transport.close()


def load_tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the context of a server with a certificate chain and its key, both PEM; raises HeadraceError if they do not fit.

    The key must not be encrypted: a service is started without a terminal.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise HeadraceError(
            f"cannot use certificate '{certificate}' with key '{key}'",
            detail=str(error),
            hint="give a PEM file with the certificate chain, and one with its key, not encrypted",
        ) from error
    return context
