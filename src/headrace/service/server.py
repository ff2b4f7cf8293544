"""The server: uvicorn, which lets readers go before it waits for them."""

from __future__ import annotations

import socket

import uvicorn

from headrace.service.app import create_app
from headrace.service.host import Host

_PATIENCE_SECONDS = 2


class Server(uvicorn.Server):
    """Serves a host on sockets that listen already."""

    def __init__(self, host: Host) -> None:
        """Nothing is served before `run`."""
        self._host = host
        app = create_app(host)
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", lifespan="on", ws="websockets-sansio", timeout_graceful_shutdown=_PATIENCE_SECONDS
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell readers that it is over, then end when they are gone."""
        self._host.news.end()
        await super().shutdown(sockets)
