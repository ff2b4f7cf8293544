"""Observation of a session: its history of micro-batches, their progress documents, and the listeners that receive them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from headrace.errors import log_internal_error
from headrace.runtime.engine_state import QueryState
from headrace.runtime.listeners import ListenerHub
from headrace.runtime.metrics import DETAILED_BATCHES, BatchHistory, BatchReport, CommittedBatch
from headrace.runtime.progress import Progress, build_progress
from headrace.runtime.task_totals import TaskTotals

_LOG = logging.getLogger("headrace")


class SessionObserver:
    """Records what a session does. Callers serialize calls of `record_batch`; any thread may call the others."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        """Start without batches; `name_of` returns the name of a query."""
        self._name_of = name_of
        self.history, self.listeners, self.totals = BatchHistory(), ListenerHub(), TaskTotals()

    @property
    def last_progress(self) -> Progress | None:
        """The progress of the last batch; None before the first."""
        batches = self.history.list_all()[-2:]
        return build_progress(batches[-1], batches[0] if len(batches) > 1 else None, self._name_of) if batches else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the newest batches, oldest first."""
        batches = self.history.list_all()[-DETAILED_BATCHES - 1 :]
        documents = [
            build_progress(batch, before, self._name_of) for before, batch in zip([None, *batches], batches, strict=False)
        ]
        return documents[-DETAILED_BATCHES:]

    def record_batch(self, report: BatchReport, started: float, committed: float, queries: Mapping[int, QueryState]) -> None:
        """Record a committed batch, log it, and tell the listeners; never raises, because the batch is committed.

        `started` and `committed` are times of the monotonic clock; its results were passed on between `committed` and now.
        """
        ended = time.monotonic()
        batch = CommittedBatch(report, time.time(), ended - started, ended - committed)
        self.history.append(batch)
        self.totals.add(report)
        try:
            for number, error in report.failed.items():
                _LOG.warning("query '%s' failed: %s", self._name_of(number), error, extra={"query": self._name_of(number)})
            text = "batch %d: %d rows in, %d rows out, %d live queries, %.3f s"
            _LOG.info(text, report.batch, report.rows, report.emitted, report.live, batch.seconds)
            if self.listeners.has_listeners:
                self._notify_listeners(batch, queries)
        except Exception as problem:  # noqa: BLE001
            log_internal_error(f"batch {report.batch} is not reported", problem)

    def _notify_listeners(self, batch: CommittedBatch, queries: Mapping[int, QueryState]) -> None:
        report, notify = batch.report, self.listeners.notify
        for number in report.added:
            if number in queries:
                notify("on_query_added", queries[number].name, queries[number].sql)
        for number in report.removed:
            notify("on_query_ended", self._name_of(number), None)
        for number, error in report.failed.items():
            notify("on_query_ended", self._name_of(number), error)
        notify("on_batch", self.last_progress)

    def record_stream_health(self, stream: str, error: str | None) -> None:
        """Tell the listeners that a stream is degraded, or readable again (None)."""
        if error is None:
            self.listeners.notify("on_stream_recovered", stream)
        else:
            self.listeners.notify("on_stream_degraded", stream, error)
