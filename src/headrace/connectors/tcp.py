"""TCP source: rows pulled from a server that retains them until they are committed.

The server (such as the driver of the benchmarks, `headrace.bench.driver`) numbers the rows of each partition; a position is the
number of rows read from each. `prune` commits rows to the server after the batch that read them is committed in the checkpoint:
an interrupted batch can be read again, so rows are neither lost nor duplicated as long as the server lives.

The protocol: a request and a response of one JSON line each, followed by bytes if the response says so.

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

import contextlib
import io
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.connectors.control_channel import ControlChannel
from headrace.connectors.source import RANGE_ROWS, Option, Position, Range, require_attached
from headrace.errors import SourceError
from headrace.model.types import Schema
from headrace.storage.documents import get_document, put_document
from headrace.storage.store import Store

SOCKET_BUFFER_BYTES = 4 << 20  # of a socket: large, so that the two sides rarely wait for each other
_TIMEOUT_SECONDS = 10.0  # without a byte of a response: then the server counts as unreachable
_CONTROL_TIMEOUT_SECONDS = 3.0  # the same for requests of the driver, which wait in a thread of their own
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
            if is_new or isinstance(error, TimeoutError):
                raise make_unreachable_error(self.address, str(error)) from error
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


def make_unreachable_error(address: str, reason: str) -> SourceError:
    """Return the error for a server that does not answer."""
    return SourceError(f"server '{address}' cannot be reached", detail=reason, hint=_UNREACHABLE_HINT)


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


_RESTARTED_HINT = "the server was restarted and has other rows; start with a new checkpoint"


_SERVER_FILE = "server.json"


class TcpSource:
    """A source that reads one stream of a TCP server as a consumer group; each group must have one source object only."""

    default_max_ahead = 86_400_000_000  # µs: rows of a live source should not come from the future

    def __init__(self, address: str, stream: str, *, group: str = "headrace") -> None:
        """Create a source; it connects when its schema is first needed.

        `address` is 'host:port', `stream` the name of the stream on the server, and `group` the consumer group. Raises
        SourceError for an invalid address.
        """
        parse_address(address)
        connect, explain = partial(TcpConnection, address, _CONTROL_TIMEOUT_SECONDS), partial(make_unreachable_error, address)
        self._channel = ControlChannel(connect, explain)
        self._address, self._remote_stream, self._group = address, stream, group
        self._cached_description: dict[str, Any] | None = None
        self._stream, self._store = "", None  # type: tuple[str, Store | None]

    @property
    def schema(self) -> Schema:
        """The columns, as the server describes them; raises SourceError if the server cannot be reached."""
        return Schema.parse(str(self._describe_stream()["schema"]))

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; stores the identity of the server, to detect another server at the same address."""
        self._stream, self._store = stream, store
        identity = self._describe_stream()["identity"]
        if store.find_size(_SERVER_FILE) is None:
            put_document(store, _SERVER_FILE, {"identity": identity})
        if get_document(store, _SERVER_FILE)["identity"] != identity:
            raise SourceError(
                f"server '{self._address}' is not the one that stream '{stream}' was read from", hint=_RESTARTED_HINT
            )

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"rows": number of rows read from each partition}."""
        require_attached(self._stream, self._store)
        starts, produced = self._read_progress(position)
        stops = level_partitions(starts, produced, max(1, limit_rows))
        if stops == starts:
            return [], position
        return [item for p, _ in enumerate(starts) for item in self._split_ranges(p, starts[p], stops[p])], {"rows": stops}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        starts, produced = self._read_progress(position)
        return produced != starts

    def list_partitions(self, position: Position) -> tuple[int, ...]:
        """See `Source`."""
        return () if position is None else tuple(range(len(position["rows"])))

    def prune(self, *positions: Position) -> None:
        """See `Source`; commits the rows to the server. If it does not answer, a later call commits them."""
        if None not in positions:
            rows_read = [min(counts) for counts in zip(*(position["rows"] for position in positions), strict=True)]
            with contextlib.suppress(RequestRejectedError):  # such as rows that this group has not read yet
                self._channel.post_request("commit", stream=self._remote_stream, group=self._group, positions=rows_read)

    def detach(self) -> None:
        """See `Source`; leaves the group, so that the server retains no rows for it. Does not wait for the server."""
        self._cached_description = None
        connection = TcpConnection(self._address)
        request = {"stream": self._remote_stream, "group": self._group}

        def leave_group() -> None:
            with contextlib.suppress(SourceError):  # then the server retains rows as for any reader that has disappeared
                connection.send_request("leave", **request)
            connection.close()

        threading.Thread(target=leave_group, name="headrace-leave", daemon=True).start()

    def definition(self) -> dict[str, Any]:
        """See `Source`."""
        return {"kind": "tcp", "address": self._address, "stream": self._remote_stream, "group": self._group}

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _describe_stream(self) -> dict[str, Any]:
        if self._cached_description is None:
            answer, silence = self._channel.send_request("describe", patience=2 * _CONTROL_TIMEOUT_SECONDS)
            if answer is None or silence is not None:
                raise silence or make_unreachable_error(self._address, "no answer")
            streams = answer["streams"]
            if self._remote_stream not in streams:
                raise SourceError(
                    f"server '{self._address}' has no stream '{self._remote_stream}'",
                    detail=f"streams: {', '.join(streams) or 'none'}",
                )
            self._cached_description = {**streams[self._remote_stream], "identity": answer["identity"]}
        return self._cached_description

    def _read_progress(self, position: Position) -> tuple[list[int], list[int]]:
        """Return the number of rows read from each partition, and the number of rows in each.

        While the server is silent, these are the rows of its last answer; raises SourceError if they are read already, because
        there may be others.
        """
        status, silence = self._channel.send_request("status", stream=self._remote_stream, group=self._group)
        if status is None:
            assert silence is not None
            raise silence
        starts, produced = list(status["committed"] if position is None else position["rows"]), list(status["produced"])
        if silence is not None and starts == produced:
            raise silence
        if len(starts) != len(produced) or any(start > stop for start, stop in zip(starts, produced, strict=True)):
            raise SourceError(
                f"server '{self._address}' has fewer rows than stream '{self._stream}' has read", hint=_RESTARTED_HINT
            )
        return starts, produced

    def _split_ranges(self, partition: int, start: int, stop: int) -> list[Range]:
        options: dict[str, Option] = {"stream": self._remote_stream, "group": self._group, "partition": partition}
        cuts = [*range(start, stop, RANGE_ROWS), stop]
        return [Range(self._stream, "tcp", self._address, a, b, b - a, options) for a, b in pairwise(cuts)]


def level_partitions(starts: Sequence[int], produced: Sequence[int], limit: int) -> list[int]:
    """Return the end of the rows to read in each partition: about `limit` rows in total, least advanced partitions first.

    The partitions of a stream have similar event times; reading one far ahead would advance the watermark past the rows of the
    others.
    """
    low, high = min(starts), max(produced)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_clamp_stops(starts, produced, middle)) - sum(starts) <= limit:
            low = middle
        else:
            high = middle - 1
    stops = _clamp_stops(starts, produced, low)
    if stops == list(starts):  # the limit is below the number of partitions: read one more row of each
        return _clamp_stops(starts, produced, low + 1)
    return stops


def _clamp_stops(starts: Sequence[int], produced: Sequence[int], mark: int) -> list[int]:
    return [max(start, min(stop, mark)) for start, stop in zip(starts, produced, strict=True)]


def read_rows(wanted: Range, columns: Sequence[str]) -> pa.Table:
    """Return the columns of a range that `TcpSource.plan` planned; for workers."""
    options = wanted.options
    with borrow_connection(wanted.path) as connection:
        return connection.read(
            str(options["stream"]), int(options["partition"]), str(options["group"]), wanted.start, wanted.stop, columns
        )
