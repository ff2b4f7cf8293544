"""Results on their way to the collector: counted by window end, one line for each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.connectors.tcp_protocol import parse_address


class ResultSender:
    """One connection to the collector, for any number of threads."""

    def __init__(self, address: str) -> None:
        """Connect."""
        self._socket = socket.create_connection(parse_address(address))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()

    def send(self, query: str, counts: Iterable[tuple[int, int]]) -> None:
        """Send (window end in microseconds, how many rows) of one query."""
        lines = "".join(f"{query}\t{end}\t{rows}\n" for end, rows in counts).encode()
        if lines:
            with self._lock:
                self._socket.sendall(lines)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def by_window(ends: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return how many times each window end (timestamps in microseconds, none NULL) is there.

    Called for every query and micro-batch; rows of a window mostly lie together, so runs are counted.
    """
    found: dict[int, int] = {}
    for chunk in ends.chunks:
        values = chunk.view(pa.int64()).to_numpy()
        stops = [*np.flatnonzero(values[1:] != values[:-1]).tolist(), len(values) - 1]
        start = -1
        for stop in stops if len(values) else ():
            end = int(values[stop])
            found[end] = found.get(end, 0) + stop - start
            start = stop
    return list(found.items())
