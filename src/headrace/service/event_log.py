"""The event log: queries added, removed and failed, epochs, plan changes, degraded and dropped streams, kept across restarts.

Events are written after their micro-batch is committed, so a crash in between loses them; nothing depends on them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.errors import StorageError
from headrace.runtime.metrics import CommittedBatch
from headrace.session import Session
from headrace.storage.append_log import AppendLog
from headrace.storage.store import Store

EVENTS_FILE = "service-events.jsonl"
_LOG = logging.getLogger(__name__)
_MAX_EVENTS = 1_000
_MAX_FILE_LINES = 10 * _MAX_EVENTS  # in the file, before the oldest are deleted
_EVENT_TEXTS = {"added": "is live", "removed": "was removed", "failed": "failed"}


class EventLog:
    """Events in a file of the checkpoint; thread-safe."""

    def __init__(self, session: Session, store: Store) -> None:
        """Load the newest events; raises CheckpointError if the file is damaged."""
        self._session, self._lock = session, threading.Lock()
        self._log = AppendLog(store, EVENTS_FILE)
        events = self._log.read()
        self._line_count = len(events)
        self._events: deque[dict[str, Any]] = deque(events, _MAX_EVENTS)
        self._last_batch = session.last_batch
        self._degraded: dict[str, str] = {}

    @staticmethod
    def exists(store: Store) -> bool:
        """Return whether a service of this version has used the checkpoint before."""
        return store.find_size(EVENTS_FILE) is not None

    def recent_events(self) -> list[dict[str, Any]]:
        """Return the newest events, oldest first."""
        self.record_batches()
        with self._lock:
            return list(self._events)

    def record_batches(self) -> None:
        """Record the events of the micro-batches since the last call, and the streams that were degraded or recovered."""
        with self._lock:
            new_batches = [batch for batch in self._session.done() if batch.report.batch > self._last_batch]
            if new_batches:
                self._last_batch = new_batches[-1].report.batch
            events = [event for batch in new_batches for event in self._events_of_batch(batch)]
            events += self._events_of_streams()
            if events:
                self._events.extend(events)
                try:
                    self._write_events(events)
                except StorageError:  # for example a full disk: results matter more than events
                    _LOG.exception("cannot write events")

    def _events_of_streams(self) -> Iterator[dict[str, Any]]:
        """Yield the changes of the status of streams; a stream whose error changes is degraded again."""
        reports = self._session.streams()
        degraded = {name: str(report["error"]) for name, report in reports.items() if report["status"] == "degraded"}
        for name, reason in degraded.items():
            if self._degraded.get(name) != reason:
                yield self._make_event("degraded", f"stream {name} is degraded: {reason}")
        for name in self._degraded.keys() - degraded.keys():
            if name in reports:
                yield self._make_event("recovered", f"stream {name} is readable again")
        self._degraded = degraded

    def _make_event(self, kind: str, text: str) -> dict[str, Any]:
        return {"at": time.time(), "batch": self._session.last_batch, "kind": kind, "text": text}

    def _write_events(self, events: list[dict[str, Any]]) -> None:
        self._line_count += len(events)
        if self._line_count <= _MAX_FILE_LINES:
            self._log.append(*events)
        else:
            self._log.replace(self._events)
            self._line_count = len(self._events)

    def _events_of_batch(self, batch: CommittedBatch) -> Iterator[dict[str, Any]]:
        report = batch.report
        changes = [("added", query_id, "") for query_id in report.added] + [
            ("removed", query_id, "") for query_id in report.removed
        ]
        changes += [("failed", query_id, f": {reason}") for query_id, reason in report.failed.items()]
        texts = [
            (kind, f"query {self._session.name_of(query_id)} {_EVENT_TEXTS[kind]}{reason}") for kind, query_id, reason in changes
        ]
        for kind, text in (*texts, *report.changes):
            yield {"at": batch.at, "batch": report.batch, "kind": kind, "text": text}
