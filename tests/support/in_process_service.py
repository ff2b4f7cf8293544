"""A service in this process, on a free port of loopback: a session on the local back-end, and uvicorn in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import uvicorn.server

import headrace as hr
from headrace.service.admission import ServiceLimits
from headrace.service.auth import TokenRegistry
from headrace.service.host import ServiceHost
from headrace.service.server import Server, load_tls_context
from support.certificates import Certificate

COLUMNS = "user_id INT, gem_pack INT, price DOUBLE, time TIMESTAMP"
COUNT_QUERY = "SELECT window_start, COUNT(*) AS n, SUM(price) AS total FROM TUMBLE(purchases, '1 second')"


NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context without certificates, for `verify` of httpx: unused by http, but without it every client loads all certificates."""

_TICK_SECONDS = 0.005
_IDLE_SECONDS = 0.002


class _PromptAsyncio(ModuleType):
    """The module `asyncio` as uvicorn sees it: uvicorn sleeps 100 ms whenever it waits for something, here it sleeps 5 ms."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, _TICK_SECONDS))


uvicorn.server.asyncio = _PromptAsyncio("asyncio")  # type: ignore[attr-defined]


class _PromptEvent(threading.Event):
    """An event whose `wait` lasts 2 ms at most."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(_IDLE_SECONDS if timeout is None else min(timeout, _IDLE_SECONDS))


def shorten_pauses(session: hr.Session) -> None:
    """Let the background thread of a session, not started yet, look for work every 2 ms instead of every 20 ms."""
    session._loop._stop_requested = _PromptEvent()


class _ObservedServer(Server):
    """A server with an event that is set when it has started or ended."""

    def __init__(self, host: ServiceHost, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, tls)
        self.started_or_ended = threading.Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self.started_or_ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_or_ended.set()


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
        allowed_roots: Sequence[Path] = (),
        allowed_hosts: Sequence[str] = (),
        certificate: Certificate | None = None,
        budget: Mapping[str, int] | None = None,
    ) -> None:
        self._checkpoint, self._limits, self._tokens = checkpoint, limits or ServiceLimits(), tokens or TokenRegistry()
        self._reports, self._origins, self.allowed_roots = reports, origins, allowed_roots
        self._allowed_hosts = allowed_hosts
        self._certificate, self._budget = certificate, budget
        self.port = 0
        self._start()

    def _start(self) -> None:
        self.session = hr.Session(self._checkpoint, backend="local", partitions=2, budget=self._budget)
        shorten_pauses(self.session)
        self._batch_at_start = self.session.last_batch
        self.host = ServiceHost(
            self.session,
            self._tokens,
            self._limits,
            reports=self._reports,
            origins=self._origins,
            allowed_roots=self.allowed_roots,
            allowed_hosts=self._allowed_hosts,
        )
        self.listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listening.getsockname()[1]
        self.host.notifier.poll_seconds = _TICK_SECONDS
        tls = None if self._certificate is None else load_tls_context(self._certificate.chain, self._certificate.key)
        self._server = _ObservedServer(self.host, tls)
        self._thread = threading.Thread(target=self._server.run, args=([self.listening],), daemon=True)
        self._thread.start()
        assert self._server.started_or_ended.wait(20), "the service does not start"
        assert self._server.started, "the service ended"
        self.url = f"{'http' if self._certificate is None else 'https'}://127.0.0.1:{self.port}"
        trusted = NO_TLS if self._certificate is None else ssl.create_default_context(cafile=str(self._certificate.chain))
        self.http = httpx.Client(base_url=self.url, timeout=20, verify=trusted)

    def restart(self, tokens: TokenRegistry | None = None) -> None:
        """Stop the service and start it again on the same checkpoint and port, with other tokens if there are any."""
        self.close()
        self._tokens = tokens or self._tokens
        self._start()

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(20)
        self.session.close()

    @property
    def connections(self) -> Collection[Any]:
        """The open connections, as the server sees them."""
        return list(self._server.server_state.connections)

    def declare(self, name: str = "purchases") -> None:
        answer = self.http.post("/v1/streams", json={"source": "memory", "name": name, "columns": COLUMNS, "time": "time"})
        assert answer.status_code == 201, answer.text

    def add(self, sql: str = COUNT_QUERY, **given: Any) -> httpx.Response:
        return self.http.post("/v1/queries", json={"sql": sql, **given})

    def append_and_wait(self, *seconds: float) -> None:
        """Append a purchase at each of these seconds, and wait after each until a micro-batch has read it."""
        for second in seconds:
            rows = self._count_rows("purchases")
            self.append(second)
            self.wait_until(lambda rows=rows: self._count_rows("purchases") > rows)  # type: ignore[misc]

    def _count_rows(self, stream: str) -> int:
        return self.session._coordinator.state.streams[stream].rows

    def wait_for_rows(self, query: str, rows: int) -> None:
        """Wait until a query has emitted that many rows."""
        self.wait_until(lambda: self.session.query(query).emitted >= rows)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that micro-batches change, and until the session has finished the last of them."""
        assert self.session.wait(lambda: condition() and self._is_last_batch_finished(), 20), "timeout"

    def _is_last_batch_finished(self) -> bool:
        finished = [self._batch_at_start, *(batch.report.batch for batch in self.session.done())]
        return finished[-1] == self.session.last_batch

    def append(self, *seconds: float, stream: str = "purchases", price: float = 10.0) -> None:
        """Append a purchase at each of these seconds."""
        rows = [{"user_id": 1, "gem_pack": 1, "price": price, "time": timestamp(second)} for second in seconds]
        answer = self.http.post(f"/v1/streams/{stream}/rows", json=rows)
        assert answer.status_code == 202, answer.text


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition that no micro-batch announces."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.002)


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
