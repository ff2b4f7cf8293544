"""One query alone, one micro-batch after the other: what every other back-end must equal."""

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
from headrace.plan.join import JoinGrouping, JoinQuery
from headrace.plan.logical import AggregateBranch, AggregateQuery, LogicalQuery, StatelessQuery
from headrace.plan.multiway import MultiwayQuery

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
        self._joins = JoinState(plan, self._since) if isinstance(plan, JoinQuery) else None
        self._multiway = MultiwayState(plan) if isinstance(plan, MultiwayQuery) else None

    def borrow(self, index: int, lender: ReferenceQuery, theirs: int) -> None:
        """See the rows that an input of another query has seen until now as if they had come to input `index` then."""
        assert self._multiway is not None
        assert lender._multiway is not None
        self._multiway.borrow(index, lender._multiway, theirs, self._since)

    def batch(self, rows: Rows, watermark: float | None, next_watermark: float | None) -> list[dict[str, Any]]:
        """Take the rows of a batch and return what it emits.

        `watermark` is w(b) of this query and decides which rows are late, `next_watermark` is w(b+1) and decides which
        windows are final (None is −∞, `math.inf` closes everything). No row may have a NULL event time. Raises
        EvaluationError; the query must not be used afterwards.
        """
        if isinstance(self.plan, StatelessQuery):
            return list(self._selected(self.plan, rows))
        before = -math.inf if watermark is None else watermark
        after = -math.inf if next_watermark is None else next_watermark
        if isinstance(self.plan, MultiwayQuery):
            return list(self._completed(self.plan, rows, before))
        if isinstance(self.plan, JoinQuery):
            self._collect_join(self.plan, rows, before)
            return list(self._joined(self.plan, after))
        self._collect(self.plan, rows, before)
        return list(self._closed(self.plan, after))

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

    def _collect_join(self, plan: JoinQuery, rows: Rows, watermark: float) -> None:
        assert self._joins is not None
        for index, each in enumerate(plan.inputs):
            for time, row in self._seen(each.stream, each.predicate, rows):
                self.late[each.stream] += self._joins.add(index, time, watermark, row) is Outcome.LATE

    def _completed(self, plan: MultiwayQuery, rows: Rows, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._multiway is not None
        for index, each in enumerate(plan.inputs):
            for time, row in self._seen(each.stream, each.predicate, rows):
                outcome, joined = self._multiway.add(index, time, watermark, row)
                self.late[each.stream] += outcome is Outcome.LATE
                for one in joined:
                    yield _output(plan, plan.output, one)

    def _joined(self, plan: JoinQuery, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._joins is not None
        for end, joined in self._joins.close(watermark):
            bounds = {"window_start": instant(end - plan.span), "window_end": instant(end)}
            kept = [{**row, **bounds} for row in joined if holds(plan.predicate, row)]
            rows = kept if plan.grouping is None else list(_groups(plan.grouping, kept, bounds))
            for row in rows:
                yield _output(plan, plan.output, row)


def _groups(grouping: JoinGrouping, rows: Sequence[Row], bounds: Row) -> Iterator[dict[str, Any]]:
    """Yield the rows of an aggregation over joined rows for which HAVING holds."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(canonical(evaluate(key, row)) for key in grouping.keys), []).append(row)
    for members in found.values():
        group: dict[str, Any] = dict(bounds)
        group |= {f"key{index}": representative(evaluate(key, members[0])) for index, key in enumerate(grouping.keys)}
        for index, call in enumerate(grouping.aggregates):
            group[f"agg{index}"] = aggregate(call, [tuple(evaluate(arg, row) for arg in call.args) for row in members])
        if holds(grouping.having, group):
            yield group


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
