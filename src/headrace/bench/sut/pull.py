"""Pulling one partition of a stream from the driver, for engines that are loops in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.tcp_protocol import Connection


class Puller:
    """Reads a partition from now on; what was read before is given back with the next read. One thread at a time."""

    def __init__(self, address: str, stream: str, partition: int, group: str, columns: Sequence[str]) -> None:
        """Make the group known to the driver: rows are kept for it from here on."""
        self._connection, self._columns = Connection(address), list(columns)
        self._stream, self._partition, self._group = stream, partition, group
        self._position = self._committed = self._produced = self._status()["committed"][partition]

    def read(self, most: int) -> pa.Table | None:
        """Return the next rows, at most so many; None if there are none yet."""
        if self._produced < self._position + most:
            status = self._status()
            self._produced = status["produced"][self._partition]
            self._commit(len(status["produced"]))
        start, self._position = self._position, min(self._produced, self._position + most)
        if start == self._position:
            return None
        return self._connection.read(self._stream, self._partition, self._group, start, self._position, self._columns)

    def _commit(self, partitions: int) -> None:
        """Give back what was read; where others are is theirs to say, and 0 says nothing."""
        if self._committed < self._position:
            positions = [self._position if number == self._partition else 0 for number in range(partitions)]
            self._connection.ask("commit", stream=self._stream, group=self._group, positions=positions)
            self._committed = self._position

    def _status(self) -> dict[str, Any]:
        return self._connection.ask("status", stream=self._stream, group=self._group, **{"from": "now"})

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
