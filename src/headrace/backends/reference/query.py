"""Runs one query in isolation, one micro-batch after another; every other back-end must emit the same rows.

A nested query runs its parts one after another, with the results of a part as input rows of later parts. An unnested stream has
one row per list element, with all columns of the original row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from headrace.backends.reference.aggregation import compute_aggregate
from headrace.backends.reference.evaluate import Row, evaluate, is_true
from headrace.backends.reference.joins import SlidingJoinState, WindowJoinState
from headrace.backends.reference.numbers import displayed_key, group_key
from headrace.backends.reference.time import from_micros, to_micros
from headrace.backends.reference.windows import ClosedWindow, RowOutcome, WindowItem, make_window_state
from headrace.model.expression import Expression
from headrace.plan.derived import (
    HIDDEN_TIME,
    NestedQuery,
    RowStream,
    UnitedStream,
    UnnestedStream,
    compute_start_times,
    resolve_declared_names,
)
from headrace.plan.logical import AggregateBranch, AggregateQuery, LogicalQuery, StatelessQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import JoinGrouping, WindowJoinQuery

RowsByStream = Mapping[str, Sequence[Row]]


class ReferenceQuery:
    """A query and its state. The caller passes every batch, in order, from the one at which the query was added."""

    def __init__(self, plan: LogicalQuery, since: int | None, times: Mapping[str, str]) -> None:
        """`since` is the T of DESIGN §4 in microseconds, None for −∞; `times` maps a stream to its event-time column."""
        self.plan = plan
        self.late_rows: dict[str, int] = dict.fromkeys(plan.streams, 0)
        """The number of late rows by stream: all their windows were final (a row read by two branches counts twice)."""
        self._since = -math.inf if since is None else since
        self._time_columns = dict(times)
        self._windows = make_window_state(plan.window, self._since) if isinstance(plan, AggregateQuery) else None
        self._window_join = WindowJoinState(plan, self._since) if isinstance(plan, WindowJoinQuery) else None
        self._sliding_join = SlidingJoinState(plan) if isinstance(plan, SlidingJoinQuery) else None

    def backfill(self, index: int, donor: ReferenceQuery, donor_index: int) -> None:
        """Backfill input `index` with the rows that an input of another query has read so far."""
        assert self._sliding_join is not None
        assert donor._sliding_join is not None
        self._sliding_join.backfill(index, donor._sliding_join, donor_index, self._since)

    def run_batch(self, rows: RowsByStream, watermark: float | None, next_watermark: float | None) -> list[dict[str, Any]]:
        """Run a batch and return the emitted rows.

        `watermark` is w(b) of this query and decides which rows are late; `next_watermark` is w(b+1) and decides which windows
        are final (None is −∞, `math.inf` closes every window). No row may have a NULL event time. Raises EvaluationError; the
        query is unusable afterwards.
        """
        if isinstance(self.plan, StatelessQuery):
            return list(self._emit_selected(self.plan, rows))
        before = -math.inf if watermark is None else watermark
        after = -math.inf if next_watermark is None else next_watermark
        if isinstance(self.plan, SlidingJoinQuery):
            return list(self._emit_sliding_join(self.plan, rows, before, after))
        if isinstance(self.plan, WindowJoinQuery):
            self._collect_join_rows(self.plan, rows, before)
            return list(self._emit_window_join(self.plan, after))
        self._collect_rows(self.plan, rows, before)
        return list(self._emit_windows(self.plan, after))

    def _select_rows(self, stream: str, predicate: Expression, rows: RowsByStream) -> Iterator[tuple[int, Row]]:
        """Yield event time and row for the rows of the stream, from `since` on, that satisfy the predicate."""
        for row in rows.get(stream, ()):
            time = _get_event_time(row, self._time_columns[stream])
            if time >= self._since and is_true(predicate, row):
                yield time, row

    def _emit_selected(self, plan: StatelessQuery, rows: RowsByStream) -> Iterator[dict[str, Any]]:
        for branch in plan.branches:
            for _, row in self._select_rows(branch.stream, branch.predicate, rows):
                yield _evaluate_outputs(plan, branch.outputs, row)

    def _collect_rows(self, plan: AggregateQuery, rows: RowsByStream, watermark: float) -> None:
        assert self._windows is not None
        for branch in plan.branches:
            for time, row in self._select_rows(branch.stream, branch.predicate, rows):
                outcome = self._windows.add(time, watermark, lambda b=branch, t=time, r=row: _make_item(b, t, r))  # type: ignore[misc]
                self.late_rows[branch.stream] += outcome is RowOutcome.LATE

    def _emit_windows(self, plan: AggregateQuery, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._windows is not None
        for window in self._windows.close(watermark):
            row = _aggregate_window(plan, window)
            if is_true(plan.having, row):
                yield _evaluate_outputs(plan, plan.output, row)

    def _collect_join_rows(self, plan: WindowJoinQuery, rows: RowsByStream, watermark: float) -> None:
        assert self._window_join is not None
        for index, join_input in enumerate(plan.inputs):
            for time, row in self._select_rows(join_input.stream, join_input.predicate, rows):
                self.late_rows[join_input.stream] += self._window_join.add(index, time, watermark, row) is RowOutcome.LATE

    def _emit_sliding_join(
        self, plan: SlidingJoinQuery, rows: RowsByStream, watermark: float, next_watermark: float
    ) -> Iterator[dict[str, Any]]:
        for row in self._join_sliding_rows(plan, rows, watermark, next_watermark):
            if is_true(plan.predicate, row):
                yield _evaluate_outputs(plan, plan.output, row)

    def _join_sliding_rows(
        self, plan: SlidingJoinQuery, rows: RowsByStream, watermark: float, next_watermark: float
    ) -> Iterator[Row]:
        assert self._sliding_join is not None
        for index, join_input in enumerate(plan.inputs):
            for time, row in self._select_rows(join_input.stream, join_input.predicate, rows):
                outcome, joined = self._sliding_join.add(index, time, watermark, row)
                self.late_rows[join_input.stream] += outcome is RowOutcome.LATE
                yield from joined
        yield from self._sliding_join.take_unmatched(next_watermark)

    def _emit_window_join(self, plan: WindowJoinQuery, watermark: float) -> Iterator[dict[str, Any]]:
        assert self._window_join is not None
        for end, joined in self._window_join.close(watermark):
            bounds = {"window_start": from_micros(end - plan.longest_span), "window_end": from_micros(end)}
            selected = [{**row, **bounds} for row in joined if is_true(plan.predicate, row)]
            rows = selected if plan.grouping is None else list(_aggregate_groups(plan.grouping, selected, bounds))
            for row in rows:
                yield _evaluate_outputs(plan, plan.output, row)


def _aggregate_groups(grouping: JoinGrouping, rows: Sequence[Row], bounds: Row) -> Iterator[dict[str, Any]]:
    """Aggregate joined rows by group and yield the groups that satisfy HAVING."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(group_key(evaluate(key, row)) for key in grouping.keys), []).append(row)
    for members in groups.values():
        output_row: dict[str, Any] = dict(bounds)
        output_row |= {f"key{index}": displayed_key(evaluate(key, members[0])) for index, key in enumerate(grouping.keys)}
        for index, call in enumerate(grouping.aggregates):
            output_row[f"agg{index}"] = compute_aggregate(
                call, [tuple(evaluate(arg, row) for arg in call.args) for row in members]
            )
        if is_true(grouping.having, output_row):
            yield output_row


def _get_event_time(row: Row, column: str) -> int:
    time: Any = row[column]
    return to_micros(time)


def _make_item(branch: AggregateBranch, time: int, row: Row) -> WindowItem:
    keys = tuple(evaluate(key, row) for key in branch.keys)
    arguments = tuple(tuple(evaluate(arg, row) for arg in call.args) for call in branch.aggregates)
    return WindowItem(time, tuple(map(group_key, keys)), tuple(map(displayed_key, keys)), arguments)


def _aggregate_window(plan: AggregateQuery, window: ClosedWindow) -> dict[str, Any]:
    """Aggregate a closed window to the row that HAVING and the outputs read."""
    row: dict[str, Any] = {"window_start": from_micros(window.start), "window_end": from_micros(window.end)}
    row |= {f"key{index}": key for index, key in enumerate(window.items[0].keys)}
    for index, call in enumerate(plan.branches[0].aggregates):  # branches differ only in the arguments of aggregates
        row[f"agg{index}"] = compute_aggregate(call, [item.arguments[index] for item in window.items])
    return row


def _evaluate_outputs(plan: LogicalQuery, outputs: Sequence[Expression], row: Row) -> dict[str, Any]:
    return {name: evaluate(output, row) for name, output in zip(plan.schema.names, outputs, strict=True)}


class ReferenceNestedQuery:
    """The parts of a nested query, inner ones first; a part uses the watermarks of the declared streams that it depends on."""

    def __init__(self, plan: NestedQuery, since: int | None, times: Mapping[str, str]) -> None:
        """Take the same `since` and `times` as `ReferenceQuery`."""
        self.plan = plan
        starts = compute_start_times(plan, since)
        time_columns = {
            **times,
            **{stream.name: HIDDEN_TIME for stream in plan.inner},
            **{stream.name: stream.stream.time for stream in plan.unnested},
        }
        self._parts = [
            ReferenceQuery(part, start, time_columns)
            for part, start in zip([*(derived.plan for derived in plan.inner), plan.outer], starts, strict=True)
        ]
        self._derived_names = [derived.name for derived in plan.inner]
        self._lags = {stream.name: stream.stream.lag for stream in (*plan.inner, *plan.unnested)}
        unnested = {stream.name: stream for stream in plan.unnested}
        self._declared_streams: dict[str, tuple[str, ...]] = {name: resolve_declared_names(name, unnested) for name in unnested}
        for derived in plan.inner:
            self._declared_streams[derived.name] = self._resolve_declared(derived.plan.streams)

    @property
    def late_rows(self) -> dict[str, int]:
        """The number of late rows of all parts, by declared stream."""
        counts = dict.fromkeys(self.plan.streams, 0)
        for part in self._parts:
            for stream, count in part.late_rows.items():
                (name,) = self._resolve_declared([stream])[:1]
                counts[name] += count  # results of windows are never late
        return counts

    def run_batch(self, rows: RowsByStream, before: Mapping[str, float], after: Mapping[str, float]) -> list[dict[str, Any]]:
        """Run a batch and return the rows that the outermost query emits; watermarks are by stream."""
        rows_by_stream = unnest_rows(dict(rows), self.plan.unnested)
        emitted: list[dict[str, Any]] = []
        for number, part in enumerate(self._parts):
            bounds = (self._find_watermark(part.plan.streams, watermarks) for watermarks in (before, after))
            emitted = part.run_batch(rows_by_stream, *bounds)
            if number < len(self._derived_names):
                rows_by_stream[self._derived_names[number]] = add_event_time(emitted)
        return emitted

    def _find_watermark(self, streams: Iterable[str], watermarks: Mapping[str, float]) -> float:
        """Return the watermark of a part: the least of its streams, each behind the declared ones below by its lag."""
        pairs = ((stream, name) for stream in streams for name in self._resolve_declared([stream]))
        return min(watermarks[name] - self._lags.get(stream, 0) for stream, name in pairs)

    def _resolve_declared(self, streams: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for stream in streams for name in self._declared_streams.get(stream, (stream,))))


def add_event_time(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results as rows of a stream; their event time is the last microsecond of their window."""
    return [{**row, HIDDEN_TIME: row[HIDDEN_TIME] - timedelta(microseconds=1)} for row in results]


def unnest_rows(rows: dict[str, Sequence[Row]], streams: Sequence[RowStream]) -> dict[str, Sequence[Row]]:
    """Return the rows of a batch with those of unnested and united streams added; raises EvaluationError if a value fails."""
    result = dict(rows)
    for derived in streams:
        if isinstance(derived, UnitedStream):
            result[derived.name] = list(_unite_rows(derived, result))
        else:
            result[derived.name] = [element for row in result.get(derived.base, ()) for element in _unnest_row(derived, row)]
    return result


def _unite_rows(united: UnitedStream, rows: Mapping[str, Sequence[Row]]) -> Iterator[Row]:
    for branch in united.branches:
        for row in rows.get(branch.base, ()):
            if evaluate(branch.predicate, row) is True:
                values = (evaluate(column, row) for column in branch.columns)
                yield dict(zip(united.stream.schema.names, values, strict=True))


def _unnest_row(unnested: UnnestedStream, row: Row) -> list[dict[str, Any]]:
    return [{**row, unnested.element.name: element} for element in evaluate(unnested.list_expression, row) or ()]
