"""Delivery of result rows to callbacks and the console, in the driver, after the commit of the batch that emitted them.

The checkpoint records the last delivered batch after the delivery, so delivery is at-least-once: a crash in between delivers
the same batch again, and no batch is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from headrace.connectors import Sink
from headrace.storage import container
from headrace.storage.documents import get_document, put_document
from headrace.storage.result_files import StoredRows
from headrace.storage.result_log import ResultFile
from headrace.storage.store import Store

_MARKER = "delivered.json"


class DeliveryTarget(Protocol):
    """The attributes of a query that delivery needs."""

    name: str
    sink: Sink
    status: str


class ResultDelivery:
    """Delivers batches in order, and each file of a batch once."""

    def __init__(self, store: Store, *, is_new: bool) -> None:
        """Continue after the last batch that the checkpoint records as delivered; `is_new` tells that it has no batch yet.

        Raises CheckpointError if the record is missing or damaged: rows might be delivered twice.
        """
        self._store, self._is_recorded = store, True
        if is_new:
            put_document(store, _MARKER, {"batch": -1})
        self.delivered_batch = int(get_document(store, _MARKER)["batch"])

    def deliver(self, queries: Mapping[int, DeliveryTarget], files: Sequence[ResultFile], batch: int) -> dict[int, str]:
        """Deliver all undelivered files up to the committed `batch`; return the error messages of failed sinks, by query id.

        `record` must follow.
        """
        failed: dict[int, str] = {}
        undelivered = [file for file in files if file.last_batch > self.delivered_batch]
        for file in undelivered:
            self._deliver_file(container.read(self._store, file.key), queries, failed)
        self.delivered_batch = batch
        self._is_recorded = self._is_recorded and not undelivered
        return failed

    def record(self) -> None:
        """Record the last delivered batch; after a StorageError, a later session may deliver its rows again, not this one."""
        if not self._is_recorded:
            put_document(self._store, _MARKER, {"batch": self.delivered_batch})
            self._is_recorded = True

    def _deliver_file(self, rows: StoredRows, queries: Mapping[int, DeliveryTarget], failed: dict[int, str]) -> None:
        for number in rows.list_queries():
            query = queries.get(number)
            if query is None or query.status == "failed" or number in failed:
                continue
            batches = [part for _, part in rows.iter_rows(number, -1, self._last_batch(rows))]
            try:
                query.sink.deliver(query.name, pa.Table.from_batches(batches))
            except Exception as error:  # noqa: BLE001  a user's callback may raise anything; only its own query fails
                failed[number] = f"sink of query '{query.name}' failed: {type(error).__name__}: {error}"

    @staticmethod
    def _last_batch(rows: StoredRows) -> int:
        return int(rows.batches.max())
