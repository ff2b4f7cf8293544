"""The event log: queries added, removed and failed, epochs and plan changes, kept across restarts.

Events are written after their micro-batch is committed, so a crash in between loses them; nothing depends on them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.session import CommittedBatch, Session
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
        if _has_older_form(store):
            self._log.replace(_parse_older_lines(store.get(EVENTS_FILE)))
        events = self._log.read()
        self._line_count = len(events)
        self._events: deque[dict[str, Any]] = deque(events, _MAX_EVENTS)
        self._is_incomplete = False  # whether an append failed and may have left a part of a line
        self._last_batch = session.last_batch

    @staticmethod
    def exists(store: Store) -> bool:
        """Return whether a service of this version has used the checkpoint before."""
        return store.find_size(EVENTS_FILE) is not None and not _has_older_form(store)

    def recent_events(self) -> list[dict[str, Any]]:
        """Return the newest events, oldest first."""
        self.record_batches()
        with self._lock:
            return list(self._events)

    def record_batches(self) -> None:
        """Record the events of the micro-batches since the last call."""
        with self._lock:
            new_batches = [batch for batch in self._session.done() if batch.report.batch > self._last_batch]
            if not new_batches:
                return
            self._last_batch = new_batches[-1].report.batch
            events = [event for batch in new_batches for event in self._events_of_batch(batch)]
            if events:
                self._events.extend(events)
                try:
                    self._write_events(events)
                except OSError:  # for example a full disk: results matter more than events
                    _LOG.exception("cannot write events")

    def _write_events(self, events: list[dict[str, Any]]) -> None:
        self._line_count += len(events)
        if self._line_count <= _MAX_FILE_LINES and not self._is_incomplete:
            self._is_incomplete = True
            self._log.append(*events)
        else:
            self._log.replace(self._events)
            self._line_count = len(self._events)
        self._is_incomplete = False

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


def _has_older_form(store: Store) -> bool:
    """Return whether the file has lines without check sums, of an older version."""
    return store.find_size(EVENTS_FILE) is not None and store.get(EVENTS_FILE).startswith(b"{")


def _parse_older_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of lines without check sums; skip damaged lines."""
    for line in content.splitlines()[-_MAX_EVENTS:]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.keys() == {"at", "batch", "kind", "text"}:
            yield event
