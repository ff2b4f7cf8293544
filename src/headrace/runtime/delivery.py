"""Rows for callbacks and the console: handed over by the driver, after the batch that emitted them is committed.

What was handed over last is remembered in the checkpoint, after the fact: a crash in between hands the same batch over
again, and never loses one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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


class Delivery:
    """Delivers batch by batch, in order, each file of a batch once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Start where the checkpoint says."""
        self._folder = checkpoint.folder("results")
        self._marker = checkpoint.path / "delivered"
        self._done = int(self._marker.read_bytes()) if self._marker.exists() else -1

    def deliver(self, queries: Mapping[int, Receiver], batch: int) -> dict[int, str]:
        """Hand over all that is committed up to `batch` and not yet delivered; return whose sink failed, with the reason."""
        failed: dict[int, str] = {}
        if all(isinstance(query.sink, MemorySink) for query in queries.values()):
            return failed
        handed = False
        for _, path in results.files(self._folder, self._done, batch):
            handed = self._deliver_file(path, queries, failed) or handed
        if handed:
            replace_file(self._marker, str(batch).encode())
        self._done = batch
        return failed

    def _deliver_file(self, path: Path, queries: Mapping[int, Receiver], failed: dict[int, str]) -> bool:
        found = results.load(path)
        receivers = {number: queries[number] for number in sorted(found.index) if number in queries}
        for number, query in receivers.items():
            if isinstance(query.sink, MemorySink) or query.status == "failed" or number in failed:
                continue
            try:
                query.sink.deliver(query.name, pa.Table.from_batches(found.of(number)))
            except Exception as error:  # noqa: BLE001  a user's function may raise anything; it fails its own query
                failed[number] = f"sink of query '{query.name}' failed: {type(error).__name__}: {error}"
        kept = any(isinstance(query.sink, MemorySink) for query in receivers.values())
        if not kept:
            path.unlink(missing_ok=True)
        return len(receivers) > 0
