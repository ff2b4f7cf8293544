"""The event log: queries added, removed and failed, epochs and plan changes, kept across restarts.

Events are written after their micro-batch is committed, so a crash in between loses them; nothing depends on them.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.connectors.durable import replace_file
from headrace.session import CommittedBatch, Session

_LOG = logging.getLogger(__name__)
_KEPT = 1_000
_LINES = 10 * _KEPT  # in the file, before the oldest are deleted
_DID = {"added": "is live", "removed": "was removed", "failed": "failed"}


class Chronicle:
    """Events in a JSON-lines file; thread-safe."""

    def __init__(self, session: Session, path: Path) -> None:
        """Load the newest events of the file."""
        self._session, self._path, self._lock = session, path, threading.Lock()
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = text.splitlines()
        self._lines = len(lines)
        self._cut = bool(text) and not text.endswith("\n")  # a crash cut the last line off: start a new one
        self._happened: deque[dict[str, Any]] = deque(_read(lines), _KEPT)
        self._until = session.last_batch

    def happened(self) -> list[dict[str, Any]]:
        """Return the newest events, oldest first."""
        self.update()
        with self._lock:
            return list(self._happened)

    def update(self) -> None:
        """Record the events of the micro-batches since the last call."""
        with self._lock:
            new_batches = [batch for batch in self._session.done() if batch.report.batch > self._until]
            if not new_batches:
                return
            self._until = new_batches[-1].report.batch
            events = [event for batch in new_batches for event in self._of(batch)]
            if events:
                self._happened.extend(events)
                try:
                    self._write(events)
                except OSError:  # for example a full disk: results matter more than events
                    _LOG.exception("cannot write events")

    def _write(self, events: list[dict[str, Any]]) -> None:
        self._lines += len(events)
        if self._lines <= _LINES:
            with self._path.open("a") as file:
                file.write(("\n" if self._cut else "") + _text(events))
            self._cut = False
        else:
            replace_file(self._path, _text(self._happened).encode())
            self._lines = len(self._happened)

    def _of(self, batch: CommittedBatch) -> Iterator[dict[str, Any]]:
        report = batch.report
        changes = [("added", query_id, "") for query_id in report.added] + [
            ("removed", query_id, "") for query_id in report.removed
        ]
        changes += [("failed", query_id, f": {reason}") for query_id, reason in report.failed.items()]
        texts = [(kind, f"query {self._session.name_of(query_id)} {_DID[kind]}{reason}") for kind, query_id, reason in changes]
        for kind, text in (*texts, *report.changes):
            yield {"at": batch.at, "batch": report.batch, "kind": kind, "text": text}


def _text(events: Any) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def _read(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of lines; skip damaged lines."""
    for line in lines[-_KEPT:]:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.keys() == {"at", "batch", "kind", "text"}:
            yield event
