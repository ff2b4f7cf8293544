"""Pull a partition of a stream from the driver, for systems that run as a loop in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.tcp_protocol import TcpConnection


class PartitionPuller:
    """Reads a partition from its current end on; each read commits the rows of earlier reads. Not thread-safe."""

    def __init__(self, address: str, stream: str, partition: int, group: str, columns: Sequence[str]) -> None:
        """Register the consumer group at the driver, which retains rows for it from now on."""
        self._connection, self._columns = TcpConnection(address), list(columns)
        self._stream, self._partition, self._group = stream, partition, group
        self._read_offset = self._committed_offset = self._produced_offset = self._fetch_status()["committed"][partition]

    def read(self, max_rows: int) -> pa.Table | None:
        """Return at most `max_rows` next rows; None if there are none yet."""
        if self._produced_offset < self._read_offset + max_rows:
            status = self._fetch_status()
            self._produced_offset = status["produced"][self._partition]
            self._commit_offset(len(status["produced"]))
        start, self._read_offset = self._read_offset, min(self._produced_offset, self._read_offset + max_rows)
        if start == self._read_offset:
            return None
        return self._connection.read(self._stream, self._partition, self._group, start, self._read_offset, self._columns)

    def _commit_offset(self, partitions: int) -> None:
        """Commit the rows read; position 0 leaves the other partitions, which other readers commit, unchanged."""
        if self._committed_offset < self._read_offset:
            positions = [self._read_offset if number == self._partition else 0 for number in range(partitions)]
            self._connection.send_request("commit", stream=self._stream, group=self._group, positions=positions)
            self._committed_offset = self._read_offset

    def _fetch_status(self) -> dict[str, Any]:
        return self._connection.send_request("status", stream=self._stream, group=self._group, **{"from": "now"})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
