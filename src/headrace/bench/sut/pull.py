"""Pull a partition of a stream from the driver, for systems that run as a loop in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.tcp_protocol import TcpConnection


class Puller:
    """Reads a partition from its current end on; each read commits the rows of earlier reads. Not thread-safe."""

    def __init__(self, address: str, stream: str, partition: int, group: str, columns: Sequence[str]) -> None:
        """Register the consumer group at the driver, which retains rows for it from now on."""
        self._connection, self._columns = TcpConnection(address), list(columns)
        self._stream, self._partition, self._group = stream, partition, group
        self._position = self._committed = self._produced = self._status()["committed"][partition]

    def read(self, max_rows: int) -> pa.Table | None:
        """Return at most `max_rows` next rows; None if there are none yet."""
        if self._produced < self._position + max_rows:
            status = self._status()
            self._produced = status["produced"][self._partition]
            self._commit(len(status["produced"]))
        start, self._position = self._position, min(self._produced, self._position + max_rows)
        if start == self._position:
            return None
        return self._connection.read(self._stream, self._partition, self._group, start, self._position, self._columns)

    def _commit(self, partitions: int) -> None:
        """Commit the rows read; position 0 leaves the other partitions, which other readers commit, unchanged."""
        if self._committed < self._position:
            positions = [self._position if number == self._partition else 0 for number in range(partitions)]
            self._connection.send_request("commit", stream=self._stream, group=self._group, positions=positions)
            self._committed = self._position

    def _status(self) -> dict[str, Any]:
        return self._connection.send_request("status", stream=self._stream, group=self._group, **{"from": "now"})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
