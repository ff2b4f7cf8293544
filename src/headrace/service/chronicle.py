"""What happened, written down: queries that came, went and failed, epochs, and other plans; also after a restart.

It is written after a micro-batch was committed, so that what a crash cut off in between is missing; nothing depends on it.
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
from headrace.session import Done, Session

_LOG = logging.getLogger(__name__)
_KEPT = 1_000
_LINES = 10 * _KEPT  # in the file, before the oldest are let go
_DID = {"added": "is live", "removed": "is gone", "failed": "failed"}


class Chronicle:
    """A file of lines of JSON; calls may come from any thread."""

    def __init__(self, session: Session, path: Path) -> None:
        """Know what is in the file."""
        self._session, self._path, self._lock = session, path, threading.Lock()
        text = path.read_text(errors="replace") if path.exists() else ""
        lines = text.splitlines()
        self._lines = len(lines)
        self._cut = bool(text) and not text.endswith("\n")  # what comes next must not be part of a line that was cut off
        self._happened: deque[dict[str, Any]] = deque(_read(lines), _KEPT)
        self._until = session.last_batch

    def happened(self) -> list[dict[str, Any]]:
        """Return what happened lately, oldest first."""
        self.update()
        with self._lock:
            return list(self._happened)

    def update(self) -> None:
        """Write down what micro-batches did since the last time."""
        with self._lock:
            new = [done for done in self._session.done() if done.report.batch > self._until]
            if not new:
                return
            self._until = new[-1].report.batch
            found = [one for done in new for one in self._of(done)]
            if found:
                self._happened.extend(found)
                try:
                    self._write(found)
                except OSError:  # a disk that is full, say: results are more important than what is told of them
                    _LOG.exception("what happened could not be written down")

    def _write(self, found: list[dict[str, Any]]) -> None:
        self._lines += len(found)
        if self._lines <= _LINES:
            with self._path.open("a") as file:
                file.write(("\n" if self._cut else "") + _text(found))
            self._cut = False
        else:
            replace_file(self._path, _text(self._happened).encode())
            self._lines = len(self._happened)

    def _of(self, done: Done) -> Iterator[dict[str, Any]]:
        report = done.report
        named = [("added", number, "") for number in report.added] + [("removed", number, "") for number in report.removed]
        named += [("failed", number, f": {why}") for number, why in report.failed.items()]
        texts = [(kind, f"query {self._session.name_of(number)} {_DID[kind]}{why}") for kind, number, why in named]
        for kind, text in (*texts, *report.changes):
            yield {"at": done.at, "batch": report.batch, "kind": kind, "text": text}


def _text(found: Any) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


def _read(lines: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what lines say; one that was cut off says nothing."""
    for line in lines[-_KEPT:]:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.keys() == {"at", "batch", "kind", "text"}:
            yield found
