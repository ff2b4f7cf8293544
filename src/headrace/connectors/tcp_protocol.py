"""How rows are asked for over TCP: one line of JSON each way, then raw bytes if the answer says so.

A request is an object with its kind under "request" and its arguments beside it: `{"request": "status", "stream": "s",
"group": "g"}`. An answer is an object too; `{"error": text}` refuses the request and leaves the connection usable. An answer
with "bytes" is followed by exactly that many bytes: an Arrow IPC stream. Times are microseconds since 1970, UTC.

| request | arguments | answer |
|---|---|---|
| describe | | identity, streams: name → {schema, time, partitions} |
| status | stream, group, [from: "oldest" or "now"] | now, produced, read, committed: one number a partition; overflowed |
| read | stream, partition, group, start, stop, [columns] | bytes: the rows [start, stop) of the partition |
| commit | stream, group, positions | rows below these are not asked for again |
| leave | stream, group | the group is forgotten |

A group keeps rows: they stay until every group has committed them. It exists from its first request on, and begins where
`from` says (only the first request is listened to). Rows are numbered from 0 in each partition, without gaps.
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

BUFFER = 4 << 20  # of a socket: large, so that the two sides seldom wait for each other
_TIMEOUT = 60.0
_HINT = "start the server again, or wait for it; rows that were not committed are gone if its process ended"


class RefusedError(SourceError):
    """The server answered, and said no."""


def parse_address(text: str) -> tuple[str, int]:
    """Split 'host:port'; raises SourceError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise SourceError(f"address '{text}' is not understood", hint="write host:port, such as 127.0.0.1:5555")
    return host.strip("[]"), int(port)


def tuned(sock: socket.socket) -> socket.socket:
    """Set up a socket of either side: no waiting for full packets, room for the next block."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    return sock


class Connection:
    """The asking side. It connects when first used, and once more when an idle connection turns out to be gone.

    One thread at a time. Every failure is a SourceError; a RefusedError is the server's own answer.
    """

    def __init__(self, address: str, timeout: float = _TIMEOUT) -> None:
        """`address` is 'host:port'; nothing is sent yet."""
        self.address, self._timeout = address, timeout
        self._where = parse_address(address)
        self._socket: socket.socket | None = None
        self._file: io.BufferedReader | None = None

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer to a request that is answered without bytes."""
        return self._converse(request, arguments)[0]

    def read(
        self, stream: str, partition: int, group: str, start: int, stop: int, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return rows [start, stop) of a partition; with `columns` only those travel."""
        arguments: dict[str, Any] = {"stream": stream, "partition": partition, "group": group, "start": start, "stop": stop}
        if columns is not None:
            arguments["columns"] = list(columns)
        content = self._converse("read", arguments)[1]
        try:
            with pa.ipc.open_stream(content) as reader:
                return reader.read_all()
        except pa.ArrowException as error:
            raise SourceError(f"server '{self.address}' sent what is no Arrow stream", detail=str(error)) from error

    def close(self) -> None:
        """Hang up; the next request connects again."""
        for held in (self._file, self._socket):
            if held is not None:
                held.close()
        self._file = self._socket = None

    def _converse(self, request: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], pa.Buffer]:
        line = json.dumps({"request": request, **arguments}).encode() + b"\n"
        fresh = self._file is None
        try:
            answer, content = self._once(line)
        except (OSError, ValueError) as error:
            self.close()
            if fresh:
                raise self._gone(error) from error
            return self._converse(request, arguments)
        if "error" in answer:
            raise RefusedError(f"server '{self.address}' refused '{request}'", detail=str(answer["error"]))
        return answer, content

    def _once(self, line: bytes) -> tuple[dict[str, Any], pa.Buffer]:
        sock, file = self._connected()
        sock.sendall(line)
        head = file.readline()
        if not head.endswith(b"\n"):
            raise ConnectionResetError("it hung up")
        answer = json.loads(head)
        content = pa.allocate_buffer(int(answer.get("bytes", 0)))
        if file.readinto(memoryview(content)) != content.size:
            raise ConnectionResetError("it hung up in the middle of an answer")
        return answer, content

    def _connected(self) -> tuple[socket.socket, io.BufferedReader]:
        if self._socket is None or self._file is None:
            self._socket = tuned(socket.create_connection(self._where, self._timeout))
            self._file = io.BufferedReader(socket.SocketIO(self._socket, "r"), 1 << 16)
        return self._socket, self._file

    def _gone(self, error: Exception) -> SourceError:
        return SourceError(f"server '{self.address}' cannot be reached", detail=str(error), hint=_HINT)


_idle: dict[tuple[int, str], list[Connection]] = {}


@contextmanager
def borrowed(address: str) -> Iterator[Connection]:
    """Lend a connection of this process that nobody uses right now; one that failed is not lent again."""
    waiting = _idle.setdefault((os.getpid(), address), [])  # after a fork the parent's connections are the parent's
    try:
        connection = waiting.pop()
    except IndexError:
        connection = Connection(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    waiting.append(connection)
