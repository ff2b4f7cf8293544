"""Rows for callbacks and the console: handed over by the driver, after the batch that emitted them is committed.

What was handed over last is remembered in the checkpoint, after the fact: a crash in between hands the same batch over
again, and never loses one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from headrace.connectors import MemorySink, Sink
from headrace.connectors.durable import replace_file
from headrace.runtime import results
from headrace.runtime.checkpoint import Checkpoint


class Receiver(Protocol):
    """A query, as far as delivery needs to know it."""

    name: str
    sink: Sink
    status: str
    last_batch: int | None


class Delivery:
    """Delivers batch by batch, in order."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Start where the checkpoint says."""
        self._folder = checkpoint.folder("results")
        self._marker = checkpoint.path / "delivered"
        self._done = int(self._marker.read_bytes()) if self._marker.exists() else -1

    def resume(self, queries: Mapping[int, Receiver], batch: int) -> None:
        """After a restart, hand over what was committed but not delivered."""
        files = [f"results/{path.name}" for _, path in results.files(self._folder, self._done, batch)]
        if files:
            self.deliver(queries, batch, files)

    def deliver(self, queries: Mapping[int, Receiver], batch: int, files: Sequence[str]) -> dict[int, str]:
        """Hand over the rows of one batch; return the queries whose sink failed, with the reason."""
        failed: dict[int, str] = {}
        handed = False
        for file in files:
            path = self._folder.parent / file
            receivers = {q: queries[q] for q in results.queries_in(path) if q in queries}
            for number, query in receivers.items():
                if isinstance(query.sink, MemorySink) or query.status == "failed" or number in failed:
                    continue
                handed = True
                for _, rows in results.rows_of(self._folder, number, batch - 1, batch):
                    try:
                        query.sink.deliver(query.name, pa.Table.from_batches(rows))
                    except Exception as error:  # noqa: BLE001  a user's function may raise anything; it fails its own query
                        failed[number] = f"sink of query '{query.name}' failed: {type(error).__name__}: {error}"
            if receivers and not any(isinstance(q.sink, MemorySink) for q in receivers.values()):
                results.forget(path)
        if handed:
            replace_file(self._marker, str(batch).encode())
            self._done = batch
        return failed
