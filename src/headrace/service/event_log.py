"""The event log: queries added, removed and failed, epochs, plan changes, degraded and dropped streams, kept across restarts.

Events are written after their micro-batch is committed, so a crash in between loses them; nothing depends on them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.runtime.metrics import CommittedBatch
from headrace.session import Session
from headrace.storage.posix import replace_file

_LOG = logging.getLogger(__name__)
_MAX_EVENTS = 1_000
_MAX_FILE_LINES = 10 * _MAX_EVENTS  # in the file, before the oldest are deleted
_EVENT_TEXTS = {"added": "is live", "removed": "was removed", "failed": "failed"}


class EventLog:
    """Events in a JSON-lines file; thread-safe."""

    def __init__(self, session: Session, path: Path) -> None:
        """Load the newest events of the file."""
        self._session, self._path, self._lock = session, path, threading.Lock()
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = text.splitlines()
        self._line_count = len(lines)
        self._ends_mid_line = bool(text) and not text.endswith("\n")  # a crash cut the last line off: start a new one
        self._events: deque[dict[str, Any]] = deque(_parse_lines(lines), _MAX_EVENTS)
        self._last_batch = session.last_batch
        self._degraded: dict[str, str] = {}

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
                except OSError:  # for example a full disk: results matter more than events
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
            with self._path.open("a") as file:
                file.write(("\n" if self._ends_mid_line else "") + _to_json_lines(events))
            self._ends_mid_line = False
        else:
            replace_file(self._path, _to_json_lines(self._events).encode())
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


def _to_json_lines(events: Any) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def _parse_lines(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of lines; skip damaged lines."""
    for line in lines[-_MAX_EVENTS:]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.keys() == {"at", "batch", "kind", "text"}:
            yield event
