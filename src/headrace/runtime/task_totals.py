"""Totals of tasks and operators since the session was opened, by partition, for metrics.

The number of labels is bounded: the partitions from the 64th on, and the map tasks from the 64th on, are one label, "63+". There
are four kinds of operators, so that at most 256 series of each metric exist, however many queries and partitions there are.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.runtime.metrics import BatchReport

MAX_LABELS = 64


def make_label(number: int) -> str:
    """Return the label of a partition or a task."""
    last = MAX_LABELS - 1
    return str(number) if number < last else f"{last}+"


OperatorKey = tuple[str, str]
"""The kind of an operator and the label of a partition."""


@dataclass(slots=True)
class TotalFigures:
    """Seconds by step, by map task and by partition; rows by operator; and the state after the last batch by operator."""

    step_seconds: dict[str, float] = field(default_factory=dict)
    map_seconds: dict[str, float] = field(default_factory=dict)
    reduce_seconds: dict[str, float] = field(default_factory=dict)
    rows_in: Counter[OperatorKey] = field(default_factory=Counter)
    rows_out: Counter[OperatorKey] = field(default_factory=Counter)
    state_bytes: Counter[OperatorKey] = field(default_factory=Counter)
    state_rows: Counter[OperatorKey] = field(default_factory=Counter)

    def copy(self) -> TotalFigures:
        """Return an independent copy."""
        return TotalFigures(*(getattr(self, name).copy() for name in self.__slots__))


class TaskTotals:
    """Sums the figures of batches. Thread-safe."""

    def __init__(self) -> None:
        """Start with zeros."""
        self._lock = threading.Lock()
        self._totals = TotalFigures()

    def add(self, report: BatchReport) -> None:
        """Add the figures of a committed batch."""
        with self._lock:
            totals = self._totals
            _add_seconds(totals.step_seconds, report.figures.steps.items())
            _add_seconds(totals.map_seconds, ((make_label(n), seconds) for n, seconds in enumerate(report.map_seconds)))
            _add_seconds(totals.reduce_seconds, ((make_label(n), seconds) for n, seconds in enumerate(report.reduce_seconds)))
            totals.state_bytes, totals.state_rows = Counter(), Counter()
            for (kind, partition), figures in report.figures.operators.items():
                key = kind, make_label(partition)
                totals.rows_in[key] += figures.rows_in
                totals.rows_out[key] += figures.rows_out
                totals.state_bytes[key] += figures.state_bytes
                totals.state_rows[key] += figures.state_rows

    def read(self) -> TotalFigures:
        """Return the totals so far."""
        with self._lock:
            return self._totals.copy()


def _add_seconds(totals: dict[str, float], seconds: Iterable[tuple[str, float]]) -> None:
    for label, value in seconds:
        totals[label] = totals.get(label, 0.0) + value
