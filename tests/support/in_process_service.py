"""A service in this process, on a free port of loopback: a session on the local back-end, and uvicorn in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

import headrace as hr
from headrace.service.admission import ServiceLimits
from headrace.service.auth import TokenRegistry
from headrace.service.host import ServiceHost
from headrace.service.server import Server

COLUMNS = "user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"
COUNT_QUERY = "SELECT window_start, COUNT(*) AS n, SUM(price) AS total FROM TUMBLE(purchases, '1 second')"


_TLS_CONTEXT = httpx.create_ssl_context()  # unused by http, but every client without one reads all certificates
_TICK_SECONDS = 0.01


class _PromptServer(Server):
    """A server that looks every 10 ms whether it shall end; uvicorn looks every 100 ms."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 – uvicorn has no event for it
            await asyncio.sleep(_TICK_SECONDS)


class Service:
    """A running service; the constructor starts it, `restart` keeps its `url`, `close` stops it."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        limits: ServiceLimits | None = None,
        tokens: TokenRegistry | None = None,
        reports: Path | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self._checkpoint, self._limits, self._tokens = checkpoint, limits or ServiceLimits(), tokens or TokenRegistry()
        self._reports, self._origins = reports, origins
        self.port = 0
        self._start()

    def _start(self) -> None:
        self.session = hr.Session(self._checkpoint, backend="local", partitions=2)
        self.host = ServiceHost(self.session, self._tokens, self._limits, reports=self._reports, origins=self._origins)
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self.host.notifier.poll_seconds = _TICK_SECONDS
        self._server = _PromptServer(self.host)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the service does not start"
            assert self._thread.is_alive(), "the service ended"
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=20, verify=_TLS_CONTEXT)

    def restart(self) -> None:
        """Stop the service and start it again on the same checkpoint and port."""
        self.close()
        self._start()

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)
        self.session.close()

    def declare(self, name: str = "purchases") -> None:
        answer = self.http.post("/v1/streams", json={"source": "memory", "name": name, "columns": COLUMNS, "time": "time"})
        assert answer.status_code == 201, answer.text

    def add(self, sql: str = COUNT_QUERY, **given: Any) -> httpx.Response:
        return self.http.post("/v1/queries", json={"sql": sql, **given})

    def append_and_wait(self, *seconds: float) -> None:
        """Append a purchase at each of these seconds, and wait after each until a micro-batch has read it."""
        for second in seconds:
            rows = self.http.get("/v1/streams/purchases").json()["rows"]
            self.append(second)
            deadline = time.monotonic() + 20
            while self.http.get("/v1/streams/purchases").json()["rows"] == rows:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def append(self, *seconds: float, stream: str = "purchases", price: float = 10.0) -> None:
        """Append a purchase at each of these seconds."""
        rows = [{"user_id": 1, "gem_pack": 1, "price": price, "time": timestamp(second)} for second in seconds]
        answer = self.http.post(f"/v1/streams/{stream}/rows", json=rows)
        assert answer.status_code == 202, answer.text


def timestamp(second: float) -> str:
    return f"2026-01-01T00:{int(second // 60):02d}:{second % 60:09.6f}Z"


def parse_events(answer: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """Yield (kind, id, data) of each server-sent event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}
