"""What a session reports about itself: its plan, the micro-batches that it has run, and listeners of them."""

from __future__ import annotations

import threading
from typing import Any

from headrace.runtime.cleanup import ClosedAtEnd
from headrace.runtime.command_queue import QueueFigures
from headrace.runtime.listeners import SessionListener
from headrace.runtime.metrics import CommittedBatch
from headrace.runtime.observation import SessionObserver
from headrace.runtime.query_stats import SessionStatistics


class ReportingSession(ClosedAtEnd):
    """The reports of a session; a part of `Session`, which has the attributes."""

    _lock: threading.RLock
    _observer: SessionObserver
    statistics: SessionStatistics

    def explain(self) -> str:
        """Return the shared plan as text: every operator with the queries that use it."""
        with self._lock:
            return self.statistics.explain_plan()

    def graph(self, form: str = "text") -> str:
        """Return the plan graph of joins in SLIDING windows as "text", "mermaid" or "svg"; raises SessionError otherwise."""
        return self.statistics.render_graph(form)

    def done(self) -> list[CommittedBatch]:
        """Return the most recent micro-batches, oldest first; the newest 60 have row counts by query (`emitted_by`)."""
        with self._lock:
            return self._observer.history.list_all()

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The progress of the last micro-batch as a JSON value: durations, rows, streams, state; None before the first."""
        return self._observer.last_progress

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The progress of the newest 60 micro-batches of this session, oldest first."""
        return self._observer.recent_progress

    def add_listener(self, listener: SessionListener) -> None:
        """Tell a listener of queries, micro-batches and streams from now on, in a thread of its own: it delays nothing."""
        self._observer.listeners.add(listener)

    def remove_listener(self, listener: SessionListener) -> None:
        """Tell a listener of nothing more; a listener that was not added is ignored."""
        self._observer.listeners.remove(listener)

    @property
    def waiting_changes(self) -> QueueFigures:
        """How many query changes wait for a micro-batch, for how long, how many may wait, and how many were refused."""
        return self.statistics.measure_queue()
