"""Delivery of result rows to callbacks and the console, in the driver, after the commit of the batch that emitted them.

The checkpoint records the last delivered batch after the delivery, so delivery is at-least-once: a crash in between delivers
the same batch again, and no batch is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.connectors import MemorySink, Sink
from headrace.storage import result_files
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.posix import replace_file


class DeliveryTarget(Protocol):
    """The attributes of a query that delivery needs."""

    name: str
    sink: Sink
    status: str


class ResultDelivery:
    """Delivers batches in order, and each result file of a batch once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Continue after the last batch that the checkpoint records as delivered."""
        self._results_folder = checkpoint.path / "results"
        self._marker = checkpoint.path / "delivered"
        self._delivered_batch = int(self._marker.read_bytes()) if self._marker.exists() else -1

    def deliver(self, queries: Mapping[int, DeliveryTarget], batch: int) -> dict[int, str]:
        """Deliver all undelivered batches up to the committed `batch`; return the error messages of failed sinks, by query id."""
        failed: dict[int, str] = {}
        if all(isinstance(query.sink, MemorySink) for query in queries.values()):
            return failed
        delivered = False
        for _, path in result_files.list_result_files(self._results_folder, self._delivered_batch, batch):
            delivered = self._deliver_file(path, queries, failed) or delivered
        if delivered:
            replace_file(self._marker, str(batch).encode())
        self._delivered_batch = batch
        return failed

    def _deliver_file(self, path: Path, queries: Mapping[int, DeliveryTarget], failed: dict[int, str]) -> bool:
        rows = result_files.open_result_file(path)
        receivers = {number: queries[number] for number in sorted(rows.index) if number in queries}
        for number, query in receivers.items():
            if isinstance(query.sink, MemorySink) or query.status == "failed" or number in failed:
                continue
            try:
                query.sink.deliver(query.name, pa.Table.from_batches(rows.get_rows(number)))
            except Exception as error:  # noqa: BLE001  a user's callback may raise anything; only its own query fails
                failed[number] = f"sink of query '{query.name}' failed: {type(error).__name__}: {error}"
        retained = any(isinstance(query.sink, MemorySink) for query in receivers.values())
        if not retained:
            path.unlink(missing_ok=True)
        return len(receivers) > 0
