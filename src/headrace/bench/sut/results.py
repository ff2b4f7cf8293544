"""Results on their way to the collector: counted by window end, one line for each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

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


def by_window(ends: pa.ChunkedArray | pa.Array) -> list[tuple[int, int]]:
    """Return how many times each window end (timestamps) is there."""
    found = pc.value_counts(ends)
    micros = found.field("values").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    return list(zip(micros.to_pylist(), found.field("counts").to_pylist(), strict=True))
