"""Observation of a session: its history of micro-batches, their progress documents, and the listeners that receive them.

The fields of a progress document are those of Spark's StreamingQueryProgress where there is one, in snake case
(docs/observability.md).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from headrace.errors import log_internal_error
from headrace.runtime.batch_figures import StreamFigures
from headrace.runtime.engine_state import QueryState
from headrace.runtime.listeners import ListenerHub
from headrace.runtime.metrics import DETAILED_BATCHES, BatchHistory, BatchReport, CommittedBatch, TaskTotals

Progress: TypeAlias = dict[str, Any]

_LOG = logging.getLogger("headrace")


class SessionObserver:
    """Records what a session does. Callers serialize calls of `record_batch`; any thread may call the others."""

    def __init__(self, name_of: Callable[[int], str], identity: str) -> None:
        """Start without batches; `name_of` returns the name of a query, `identity` is that of the checkpoint."""
        self._name_of, self._identity, self._run = name_of, identity, uuid.uuid4().hex
        self.history, self.listeners, self.totals = BatchHistory(), ListenerHub(), TaskTotals()

    @property
    def last_progress(self) -> Progress | None:
        """The progress of the last batch; None before the first."""
        batches = self.history.list_all()[-2:]
        return self._build_progress(batches[-1], batches[0] if len(batches) > 1 else None) if batches else None

    @property
    def recent_progress(self) -> list[Progress]:
        """The progress of the newest batches, oldest first."""
        batches = self.history.list_all()[-DETAILED_BATCHES - 1 :]
        documents = [self._build_progress(batch, before) for before, batch in zip([None, *batches], batches, strict=False)]
        return documents[-DETAILED_BATCHES:]

    def _build_progress(self, batch: CommittedBatch, previous: CommittedBatch | None) -> Progress:
        """Return a document that says whose it is: several sessions may write to one log."""
        return {"id": self._identity, "run_id": self._run, **build_progress(batch, previous, self._name_of)}

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


def build_progress(batch: CommittedBatch, previous: CommittedBatch | None, name_of: Callable[[int], str]) -> Progress:
    """Return the progress document of a batch; `previous` is the batch before it, for input rates."""
    report = batch.report
    interval = batch.at - previous.at if previous is not None else None
    operators = report.figures.sum_by_kind()
    return {
        "batch": report.batch,
        "timestamp": format_time(batch.at),
        "duration_ms": _list_durations(batch),
        "input_rows": report.rows,
        "input_rows_per_second": _divide(report.rows, interval),
        "processed_rows_per_second": _divide(report.rows, batch.seconds),
        "emitted_rows": report.emitted,
        "emitted_by_query": {name_of(number): rows for number, rows in report.emitted_by.items()},
        "live_queries": report.live,
        "added": [name_of(number) for number in report.added],
        "removed": [name_of(number) for number in report.removed],
        "failed": {name_of(number): error for number, error in report.failed.items()},
        "changes": [text for _, text in report.changes],
        "partitions": report.partitions,
        "map_tasks": len(report.map_seconds),
        "state": {
            "bytes": sum(figures.state_bytes for figures in operators.values()),
            "rows": sum(figures.state_rows for figures in operators.values()),
        },
        "component_ms": {name: round(1000 * seconds, 3) for name, seconds in sorted(report.figures.components.items())},
        "operators": {
            kind: {
                "input_rows": figures.rows_in,
                "emitted_rows": figures.rows_out,
                "state_bytes": figures.state_bytes,
                "state_rows": figures.state_rows,
            }
            for kind, figures in operators.items()
        },
        "streams": {name: _describe_stream(figures, interval, batch.seconds) for name, figures in report.figures.streams.items()},
    }


def _list_durations(batch: CommittedBatch) -> dict[str, int]:
    """Return the steps in milliseconds; `map` and `reduce` are the slowest tasks, `run` the whole job that they are a part of."""
    report = batch.report
    tasks = {"map": report.stage_one_seconds, "reduce": report.stage_two_seconds} if report.map_seconds else {}
    seconds: Mapping[str, float] = {**report.figures.steps, **tasks, "delivery": batch.delivery_seconds, "total": batch.seconds}
    return {step: round(1000 * value) for step, value in seconds.items()}


def _describe_stream(figures: StreamFigures, interval: float | None, seconds: float) -> dict[str, Any]:
    return {
        "start": figures.start,
        "end": figures.end,
        "input_rows": figures.rows,
        "input_rows_per_second": _divide(figures.rows, interval),
        "processed_rows_per_second": _divide(figures.rows, seconds),
        "watermark": None if figures.watermark is None else format_time(figures.watermark / 1e6),
        "late_rows": figures.late_rows,
        "lag_rows": figures.lag,
    }


def format_time(seconds: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601 form, in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _divide(rows: int, seconds: float | None) -> float | None:
    return None if not seconds or seconds <= 0 else round(rows / seconds, 3)
