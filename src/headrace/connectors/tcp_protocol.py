"""The protocol of the TCP source: a request and a response of one JSON line each, followed by bytes if the response says so.

A request is an object with its kind under "request" and its arguments beside it: `{"request": "status", "stream": "s",
"group": "g"}`. A response is an object too; `{"error": text}` rejects the request and leaves the connection usable. A response
with "bytes" is followed by exactly that many bytes: an Arrow IPC stream. Times are microseconds since 1970, UTC.

| request | arguments | response |
|---|---|---|
| describe | | identity, streams: name → {schema, time, partitions} |
| status | stream, group, [from: "oldest" or "now"] | now, produced, read, committed: one number a partition; overflowed |
| read | stream, partition, group, start, stop, [columns] | bytes: the rows [start, stop) of the partition |
| commit | stream, group, positions | the group requests no rows below these positions again |
| leave | stream, group | the server removes the group |

The server retains rows until every group has committed them. A group exists from its first request on, and starts at the `from`
of that request; later ones are ignored. Rows are numbered from 0 in each partition, without gaps.
"""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.errors import SourceError

SOCKET_BUFFER_BYTES = 4 << 20  # of a socket: large, so that the two sides rarely wait for each other
_TIMEOUT_SECONDS = 60.0
_UNREACHABLE_HINT = "start the server again, or wait for it; uncommitted rows are lost if its process ended"


class RequestRejectedError(SourceError):
    """The server rejected a request."""


def parse_address(text: str) -> tuple[str, int]:
    """Split 'host:port'; raises SourceError for an invalid address."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise SourceError(f"invalid address '{text}'", hint="write host:port, such as 127.0.0.1:5555")
    return host.strip("[]"), int(port)


def tune_socket(sock: socket.socket) -> socket.socket:
    """Set the socket options of both sides: no delay of small packets, and buffers for the next block; return the socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    return sock


class TcpConnection:
    """The client side. It connects on the first request, and reconnects once if an idle connection was closed.

    Not thread-safe. Every failure raises SourceError, or its subclass above if the server rejects the request.
    """

    def __init__(self, address: str, timeout: float = _TIMEOUT_SECONDS) -> None:
        """Create a client for 'host:port'; it connects on the first request."""
        self.address, self._timeout = address, timeout
        self._endpoint = parse_address(address)
        self._socket: socket.socket | None = None
        self._file: io.BufferedReader | None = None

    def send_request(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the response, without bytes."""
        return self._exchange(request, arguments)[0]

    def read(
        self, stream: str, partition: int, group: str, start: int, stop: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return rows [start, stop) of a partition; with `columns`, the server sends only these."""
        arguments: dict[str, Any] = {"stream": stream, "partition": partition, "group": group, "start": start, "stop": stop}
        if columns is not None:
            arguments["columns"] = list(columns)
        content = self._exchange("read", arguments)[1]
        try:
            with pa.ipc.open_stream(content) as reader:
                return reader.read_all()
        except pa.ArrowException as error:
            raise SourceError(f"server '{self.address}' sent an invalid Arrow stream", detail=str(error)) from error

    def close(self) -> None:
        """Close the connection; the next request connects again."""
        for resource in (self._file, self._socket):
            if resource is not None:
                resource.close()
        self._file = self._socket = None

    def _exchange(self, request: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], pa.Buffer]:
        line = json.dumps({"request": request, **arguments}).encode() + b"\n"
        is_new = self._file is None
        try:
            response, content = self._exchange_once(line)
        except (OSError, ValueError) as error:
            self.close()
            if is_new:
                raise self._unreachable_error(error) from error
            return self._exchange(request, arguments)
        if "error" in response:
            raise RequestRejectedError(f"server '{self.address}' refused '{request}'", detail=str(response["error"]))
        return response, content

    def _exchange_once(self, line: bytes) -> tuple[dict[str, Any], pa.Buffer]:
        sock, file = self._ensure_connected()
        sock.sendall(line)
        head = file.readline()
        if not head.endswith(b"\n"):
            raise ConnectionResetError("the server closed the connection")
        response = json.loads(head)
        content = pa.allocate_buffer(int(response.get("bytes", 0)))
        if file.readinto(memoryview(content)) != content.size:
            raise ConnectionResetError("the server closed the connection within a response")
        return response, content

    def _ensure_connected(self) -> tuple[socket.socket, io.BufferedReader]:
        if self._socket is None or self._file is None:
            self._socket = tune_socket(socket.create_connection(self._endpoint, self._timeout))
            self._file = io.BufferedReader(socket.SocketIO(self._socket, "r"), 1 << 16)
        return self._socket, self._file

    def _unreachable_error(self, error: Exception) -> SourceError:
        return SourceError(f"server '{self.address}' cannot be reached", detail=str(error), hint=_UNREACHABLE_HINT)


_idle_connections: dict[tuple[int, str], list[TcpConnection]] = {}


@contextmanager
def borrow_connection(address: str) -> Iterator[TcpConnection]:
    """Borrow an idle connection of this process, or a new one; a connection that failed is closed, not returned to the pool."""
    pool = _idle_connections.setdefault((os.getpid(), address), [])  # by process id: a fork must not use its parent's connections
    try:
        connection = pool.pop()
    except IndexError:
        connection = TcpConnection(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    pool.append(connection)
