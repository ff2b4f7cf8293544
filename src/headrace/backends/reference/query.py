"""Runs one query in isolation, one micro-batch after another; every other back-end must emit the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.backends.reference.aggregation import aggregate
from headrace.backends.reference.calendar_time import instant, micros
from headrace.backends.reference.evaluate import Row, evaluate, holds
from headrace.backends.reference.joins import JoinState
from headrace.backends.reference.multiway import MultiwayState
from headrace.backends.reference.numeric import canonical, representative
from headrace.backends.reference.windows import ClosedWindow, Item, Outcome, window_state
from headrace.model.expression import Expression
from headrace.plan.join import JoinGrouping, WindowJoinQuery
from headrace.plan.logical import AggregateBranch, AggregateQuery, LogicalQuery, StatelessQuery
from headrace.plan.multiway import SlidingJoinQuery

Rows = Mapping[str, Sequence[Row]]


class ReferenceQuery:
    """A query and its state. The caller passes every batch, in order, from the one at which the query was added."""

    def __init__(self, plan: LogicalQuery, since: int | None, times: Mapping[str, str]) -> None:
        """`since` is the T of DESIGN §4 in microseconds, None for −∞; `times` maps a stream to its event-time column."""
        self.plan = plan
        self.late: dict[str, int] = dict.fromkeys(plan.streams, 0)
        """The number of late rows by stream: all their windows were final (a row read by two branches counts twice)."""
        self._since = -math.inf if since is None else since
        self._times = dict(times)
        self._windows = window_state(plan.window, self._since) if isinstance(plan, AggregateQuery) else None
        self._joins = JoinState(plan, self._since) if isinstance(plan, WindowJoinQuery) else None
        self._multiway = MultiwayState(plan) if isinstance(plan, SlidingJoinQuery) else None

    def borrow(self, index: int, donor: ReferenceQuery, donor_index: int) -> None:
        """Backfill input `index` with the rows that an input of another query has read so far."""
        assert self._multiway is not None
        assert donor._multiway is not None
        self._multiway.borrow(index, donor._multiway, donor_index, self._since)

    def batch(self, rows: Rows, watermark: float | None, next_watermark: float | None) -> list[dict[str, Any]]:
        """Run a batch and return the emitted rows.

        `watermark` is w(b) of this query and decides which rows are late; `next_watermark` is w(b+1) and decides which windows
        are final (None is −∞, `math.inf` closes every window). No row may have a NULL event time. Raises EvaluationError; the
        query is unusable afterwards.
        """
        if isinstance(self.plan, StatelessQuery):
            return list(self._selected(self.plan, rows))
        before = -math.inf if watermark is None else watermark
        after = -math.inf if next_watermark is None else next_watermark
        if isinstance(self.plan, SlidingJoinQuery):
            return list(self._completed(self.plan, rows, before))
        if isinstance(self.plan, WindowJoinQuery):
            self._collect_join(self.plan, rows, before)
            return list(self._joined(self.plan, after))
        self._collect(self.plan, rows, before)
        return list(self._closed(self.plan, after))

    def _seen(self, stream: str, predicate: Expression, rows: Rows) -> Iterator[tuple[int, Row]]:
        """Yield event time and row for the rows of the stream, from `since` on, that satisfy the predicate."""
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

    def _collect_join(self, plan: WindowJoinQuery, rows: Rows, watermark: float) -> None:
        assert self._joins is not None
        for index, join_input in enumerate(plan.inputs):
            for time, row in self._seen(join_input.stream, join_input.predicate, rows):
                self.late[join_input.stream] += self._joins.add(index, time, watermark, row) is Outcome.LATE

    def _completed(self, plan: SlidingJoinQuery, rows: Rows, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._multiway is not None
        for index, join_input in enumerate(plan.inputs):
            for time, row in self._seen(join_input.stream, join_input.predicate, rows):
                outcome, joined = self._multiway.add(index, time, watermark, row)
                self.late[join_input.stream] += outcome is Outcome.LATE
                for joined_row in joined:
                    yield _output(plan, plan.output, joined_row)

    def _joined(self, plan: WindowJoinQuery, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._joins is not None
        for end, joined in self._joins.close(watermark):
            bounds = {"window_start": instant(end - plan.longest_span), "window_end": instant(end)}
            selected = [{**row, **bounds} for row in joined if holds(plan.predicate, row)]
            rows = selected if plan.grouping is None else list(_groups(plan.grouping, selected, bounds))
            for row in rows:
                yield _output(plan, plan.output, row)


def _groups(grouping: JoinGrouping, rows: Sequence[Row], bounds: Row) -> Iterator[dict[str, Any]]:
    """Aggregate joined rows by group and yield the groups that satisfy HAVING."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(canonical(evaluate(key, row)) for key in grouping.keys), []).append(row)
    for members in groups.values():
        output_row: dict[str, Any] = dict(bounds)
        output_row |= {f"key{index}": representative(evaluate(key, members[0])) for index, key in enumerate(grouping.keys)}
        for index, call in enumerate(grouping.aggregates):
            output_row[f"agg{index}"] = aggregate(call, [tuple(evaluate(arg, row) for arg in call.args) for row in members])
        if holds(grouping.having, output_row):
            yield output_row


def _time(row: Row, column: str) -> int:
    time: Any = row[column]
    return micros(time)


def _item(branch: AggregateBranch, time: int, row: Row) -> Item:
    keys = tuple(evaluate(key, row) for key in branch.keys)
    arguments = tuple(tuple(evaluate(arg, row) for arg in call.args) for call in branch.aggregates)
    return Item(time, tuple(map(canonical, keys)), tuple(map(representative, keys)), arguments)


def _aggregated(plan: AggregateQuery, window: ClosedWindow) -> dict[str, Any]:
    """Aggregate a closed window to the row that HAVING and the outputs read."""
    row: dict[str, Any] = {"window_start": instant(window.start), "window_end": instant(window.end)}
    row |= {f"key{index}": key for index, key in enumerate(window.items[0].keys)}
    for index, call in enumerate(plan.branches[0].aggregates):  # branches differ only in the arguments of aggregates
        row[f"agg{index}"] = aggregate(call, [item.arguments[index] for item in window.items])
    return row


def _output(plan: LogicalQuery, outputs: Sequence[Expression], row: Row) -> dict[str, Any]:
    return {name: evaluate(output, row) for name, output in zip(plan.schema.names, outputs, strict=True)}
