"""Send result counts to the collector: a line for each query and window end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.connectors.tcp_protocol import parse_address


class ResultSender:
    """A connection to the collector; thread-safe."""

    def __init__(self, address: str) -> None:
        """Connect to the collector."""
        self._socket = socket.create_connection(parse_address(address))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()

    def send(self, query: str, counts: Iterable[tuple[int, int]]) -> None:
        """Send (window end in microseconds, number of rows) pairs of a query."""
        lines = "".join(f"{query}\t{end}\t{rows}\n" for end, rows in counts).encode()
        if lines:
            with self._lock:
                self._socket.sendall(lines)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def count_by_window(ends: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return the number of rows of each window end (timestamps in microseconds, no NULLs).

    Called for every query and micro-batch. The rows of a window are mostly adjacent, so the function counts runs.
    """
    counts: dict[int, int] = {}
    for chunk in ends.chunks:
        values = chunk.view(pa.int64()).to_numpy()
        stops = [*np.flatnonzero(values[1:] != values[:-1]).tolist(), len(values) - 1]
        start = -1
        for stop in stops if len(values) else ():
            end = int(values[stop])
            counts[end] = counts.get(end, 0) + stop - start
            start = stop
    return list(counts.items())
