"""The collector of results: a TCP server in the runner, outside every system under test.

A system sends lines `query TAB window_end_us TAB rows [TAB event_time_us]`: the number of result rows of one query and window
and, if the system knows it, the exact event time of the newest contributing row. One thread receives bytes from all connections
and records their arrival times. It parses nothing, so that a flood of results does not make them look late.
`ResultCollector.take` parses the lines in blocks into columns, in the thread of its caller.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError

Integers = npt.NDArray[np.int64]

UNKNOWN_TIME = -1  # event time of a line with three fields
_LINE_PATTERN = r"^(?P<query>[^\t\x00]+)\t(?P<window_end>-?\d{1,18})\t(?P<rows>\d{1,18})(?:\t(?P<event_time>-?\d{1,18}))?\r?\n$"


@dataclass(frozen=True, slots=True, eq=False)
class Emissions:
    """One entry per line, in arrival order within a connection; `query_code` holds indexes into `query_names`."""

    arrival_us: Integers
    query_code: Integers
    query_names: tuple[str, ...]
    window_end_us: Integers
    rows: Integers
    event_time_us: Integers

    def __len__(self) -> int:
        """Return the number of lines, not of result rows."""
        return len(self.arrival_us)

    @classmethod
    def empty(cls) -> Emissions:
        """Return no emissions."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, (), empty, empty, empty)

    @classmethod
    def concat(cls, parts: Sequence[Emissions]) -> Emissions:
        """Concatenate emissions in order and merge equal query names."""
        if not parts:
            return cls.empty()
        names = {name: None for part in parts for name in part.query_names}
        code_of = {name: number for number, name in enumerate(names)}
        codes = [np.array([code_of[name] for name in part.query_names], np.int64)[part.query_code] for part in parts]
        return cls(
            np.concatenate([part.arrival_us for part in parts]),
            np.concatenate(codes),
            tuple(names),
            np.concatenate([part.window_end_us for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.event_time_us for part in parts]),
        )

    def filter_queries(self, names: Collection[str]) -> Emissions:
        """Keep the emissions of the given queries."""
        selected = np.array([name in names for name in self.query_names], np.bool_)
        return self.filter_lines(selected[self.query_code])

    def filter_lines(self, mask: npt.NDArray[np.bool_]) -> Emissions:
        """Keep the emissions that the mask selects."""
        return Emissions(
            self.arrival_us[mask],
            self.query_code[mask],
            self.query_names,
            self.window_end_us[mask],
            self.rows[mask],
            self.event_time_us[mask],
        )


def parse_lines(lines: bytes, arrival_us: Integers) -> tuple[Emissions, list[bytes]]:
    """Parse newline-terminated lines with their arrival times; return the emissions and the malformed lines."""
    ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
    if not len(ends):
        return Emissions.empty(), []
    offsets = np.concatenate((np.zeros(1, np.int64), ends.astype(np.int64)))
    texts = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(lines)])
    fields = pc.extract_regex(texts, _LINE_PATTERN)
    valid = fields.is_valid()
    query, window_end, rows, event_time = fields.filter(valid).flatten()
    encoded = query.dictionary_encode()
    known_time = pc.if_else(pc.equal(event_time, b""), str(UNKNOWN_TIME).encode(), event_time)
    emissions = Emissions(
        arrival_us[valid.to_numpy(zero_copy_only=False)],
        encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        tuple(name.decode(errors="replace") for name in encoded.dictionary.to_pylist()),
        _parse_integers(window_end),
        _parse_integers(rows),
        _parse_integers(known_time),
    )
    return emissions, texts.filter(pc.invert(valid)).to_pylist()


def _parse_integers(digits: pa.Array) -> Integers:
    numbers: Integers = digits.cast(pa.large_utf8()).cast(pa.int64()).to_numpy()
    return numbers


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

    def __init__(self, host: str = "127.0.0.1", clock: Callable[[], float] = time.time) -> None:
        """Listen on `host`; `clock` returns seconds since 1970, the time base of the event times."""
        self._clock = clock
        self._server = socket.create_server((host, 0), backlog=128)
        self._server.setblocking(False)
        self.address = f"{host}:{self._server.getsockname()[1]}"
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
