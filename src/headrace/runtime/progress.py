"""Progress of a session as JSON values: one document for each committed micro-batch, made of its report.

The fields are those of Spark's StreamingQueryProgress where there is one, in snake case (docs/observability.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.runtime.batch_figures import StreamFigures
from headrace.runtime.metrics import CommittedBatch

Progress = dict[str, Any]


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
