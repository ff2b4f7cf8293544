"""The collector of results: a TCP server in the runner, outside every system under test.

One thread receives bytes from all connections and records their arrival times. It parses nothing, so that a flood of results
does not make them look late. `ResultCollector.take` parses the lines in blocks, in the thread of its caller.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from headrace.bench.emissions import Emissions, Integers, parse_lines
from headrace.errors import HeadraceError

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 16  # a longer line is not a result
_MAX_EXAMPLES, _EXAMPLE_BYTES = 5, 120
_POLL_SECONDS = 0.05  # upper bound on the delay of a stop


@dataclass(slots=True)
class ConnectionBuffer:
    """Received bytes of one connection that are not parsed yet; `partial_line` is an incomplete last line."""

    blocks: list[tuple[int, bytes]] = field(default_factory=list)
    partial_line: bytes = b""
    closed: bool = False

    def take_lines(self) -> tuple[bytes, Integers]:
        """Remove the complete lines; return them with the arrival time of the last byte of each."""
        blocks, self.blocks = self.blocks, []
        last = blocks[-1] if blocks else (0, self.partial_line)
        if self.closed and last[1] and not last[1].endswith(b"\n"):
            blocks.append((last[0], b"\0\n"))  # a truncated line counts as broken even if its numbers parse
        data = b"".join((self.partial_line, *(block for _, block in blocks)))
        stops = len(self.partial_line) + np.cumsum([len(block) for _, block in blocks], dtype=np.int64)
        cut = data.rfind(b"\n") + 1
        rest = data[cut:]
        self.partial_line = rest if len(rest) <= _MAX_LINE_BYTES else rest[:_EXAMPLE_BYTES] + b"\0"
        ends = np.flatnonzero(np.frombuffer(data, np.uint8, cut) == ord("\n"))
        arrivals = np.array([arrival for arrival, _ in blocks], np.int64)
        return data[:cut], arrivals[np.searchsorted(stops, ends, side="right")]


class ResultCollector:
    """A server on loopback for the duration of the `with` block; one thread may call `take`, also after the block."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns seconds since 1970, the time base of the event times."""
        self._clock = clock
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._server.setblocking(False)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._buffers: list[ConnectionBuffer] = []
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._receive_loop, name="collector", daemon=True)
        self.broken_lines = 0
        self.broken_examples: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Start listening."""
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Receive what has arrived so far, then close all connections."""
        self._stop.set()
        self._thread.join()

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        with self._lock:
            return sum(not inbox.closed for inbox in self._buffers)

    def take(self) -> Emissions:
        """Return the emissions since the last call. Count malformed lines in `broken_lines`, and keep a few examples."""
        if self._failure is not None:
            raise HeadraceError("the collector of results failed", detail=repr(self._failure)) from self._failure
        with self._lock:
            buffers = [inbox.take_lines() for inbox in self._buffers]
            self._buffers = [inbox for inbox in self._buffers if not inbox.closed]
        emissions, broken_lines = parse_lines(
            b"".join(lines for lines, _ in buffers),
            np.concatenate([np.zeros(0, np.int64), *(arrivals for _, arrivals in buffers)]),
        )
        self.broken_lines += len(broken_lines)
        examples = (line[:_EXAMPLE_BYTES].rstrip(b"\0\r\n").decode(errors="replace") for line in broken_lines)
        self.broken_examples = (*self.broken_examples, *examples)[:_MAX_EXAMPLES]
        return emissions

    def _receive_loop(self) -> None:
        try:
            while not self._stop.is_set():
                self._receive_ready(_POLL_SECONDS)
            while self._receive_ready(0):  # data sent before the stop counts
                pass
        except Exception as error:  # noqa: BLE001  raised by `take`
            self._failure = error
        finally:
            for key in list(self._selector.get_map().values()):
                self._close_connection(key)
            self._selector.close()

    def _receive_ready(self, timeout: float) -> bool:
        """Receive one block from every ready connection; return whether any was ready."""
        ready = self._selector.select(timeout)
        for key, _ in ready:
            if key.data is None:
                self._accept_connection()
            else:
                self._read_block(key)
        return bool(ready)

    def _accept_connection(self) -> None:
        connection, _ = self._server.accept()
        connection.setblocking(False)
        inbox = ConnectionBuffer()
        with self._lock:
            self._buffers.append(inbox)
        self._selector.register(connection, selectors.EVENT_READ, inbox)

    def _read_block(self, key: selectors.SelectorKey) -> None:
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        try:
            block = connection.recv(_BLOCK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset by a crashed system: data received before counts
            block = b""
        arrival = int(self._clock() * 1e6)
        if not block:
            self._close_connection(key)
            return
        with self._lock:
            key.data.blocks.append((arrival, block))

    def _close_connection(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
        if key.data is not None:
            with self._lock:
                key.data.closed = True
