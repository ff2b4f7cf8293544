"""One query alone, one micro-batch after the other: what every other back-end must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.backends.reference.aggregation import aggregate
from headrace.backends.reference.calendar_time import instant, micros
from headrace.backends.reference.evaluate import Row, evaluate, holds
from headrace.backends.reference.numeric import canonical, representative
from headrace.backends.reference.windows import ClosedWindow, Item, Outcome, window_state
from headrace.model.expression import Expression
from headrace.plan.logical import AggregateBranch, AggregateQuery, LogicalQuery, StatelessQuery

Rows = Mapping[str, Sequence[Row]]


class ReferenceQuery:
    """A query and its state. The caller gives every batch from the one the query was added at, in order."""

    def __init__(self, plan: LogicalQuery, since: int | None, times: Mapping[str, str]) -> None:
        """`since` is the T of DESIGN §4 in microseconds, None for −∞; `times` maps a stream to its event-time column."""
        self.plan = plan
        self.late: dict[str, int] = dict.fromkeys(plan.streams, 0)
        """Rows dropped because all their windows were final, by stream (a row that two branches read counts in each)."""
        self._since = -math.inf if since is None else since
        self._times = dict(times)
        self._windows = window_state(plan.window, self._since) if isinstance(plan, AggregateQuery) else None

    def batch(self, rows: Rows, watermark: float | None, next_watermark: float | None) -> list[dict[str, Any]]:
        """Take the rows of a batch and return what it emits.

        `watermark` is w(b) of this query and decides which rows are late, `next_watermark` is w(b+1) and decides which
        windows are final (None is −∞, `math.inf` closes everything). No row may have a NULL event time. Raises
        EvaluationError; the query must not be used afterwards.
        """
        if isinstance(self.plan, StatelessQuery):
            return list(self._selected(self.plan, rows))
        self._collect(self.plan, rows, -math.inf if watermark is None else watermark)
        return list(self._closed(self.plan, -math.inf if next_watermark is None else next_watermark))

    def _seen(self, stream: str, predicate: Expression, rows: Rows) -> Iterator[tuple[int, Row]]:
        """Yield time and row for all rows of the stream that are not before `since` and pass."""
        for row in rows.get(stream, ()):
            time = _time(row, self._times[stream])
            if time >= self._since and holds(predicate, row):
                yield time, row

    def _selected(self, plan: StatelessQuery, rows: Rows) -> Iterator[dict[str, Any]]:
        for branch in plan.branches:
            for _, row in self._seen(branch.stream, branch.predicate, rows):
                yield _output(plan, branch.outputs, row)

    def _collect(self, plan: AggregateQuery, rows: Rows, watermark: float) -> None:
        assert self._windows is not None
        for branch in plan.branches:
            for time, row in self._seen(branch.stream, branch.predicate, rows):
                outcome = self._windows.add(time, watermark, lambda b=branch, t=time, r=row: _item(b, t, r))  # type: ignore[misc]
                self.late[branch.stream] += outcome is Outcome.LATE

    def _closed(self, plan: AggregateQuery, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._windows is not None
        for window in self._windows.close(watermark):
            row = _aggregated(plan, window)
            if holds(plan.having, row):
                yield _output(plan, plan.output, row)


def _time(row: Row, column: str) -> int:
    time: Any = row[column]
    return micros(time)


def _item(branch: AggregateBranch, time: int, row: Row) -> Item:
    keys = tuple(evaluate(key, row) for key in branch.keys)
    arguments = tuple(tuple(evaluate(arg, row) for arg in call.args) for call in branch.aggregates)
    return Item(time, tuple(map(canonical, keys)), tuple(map(representative, keys)), arguments)


def _aggregated(plan: AggregateQuery, window: ClosedWindow) -> dict[str, Any]:
    """Return the row that HAVING and the outputs read."""
    row: dict[str, Any] = {"window_start": instant(window.start), "window_end": instant(window.end)}
    row |= {f"key{index}": key for index, key in enumerate(window.items[0].keys)}
    for index, call in enumerate(plan.branches[0].aggregates):  # all branches agree on everything but the arguments
        row[f"agg{index}"] = aggregate(call, [item.arguments[index] for item in window.items])
    return row


def _output(plan: LogicalQuery, outputs: Sequence[Expression], row: Row) -> dict[str, Any]:
    return {name: evaluate(output, row) for name, output in zip(plan.schema.names, outputs, strict=True)}
