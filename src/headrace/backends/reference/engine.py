"""Runs many queries, each in isolation: streams, commands between batches, watermarks, failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.reference.evaluate import Row
from headrace.backends.reference.query import ReferenceNestedQuery, ReferenceQuery, RowsByStream
from headrace.backends.reference.time import to_micros
from headrace.errors import EvaluationError, NameTakenError, NotFoundError
from headrace.model.stream import Stream
from headrace.plan.derived import AnyQuery, NestedQuery


@dataclass(slots=True)
class ReferenceStreamState:
    """A stream and its greatest event time so far; `ended` after the input was drained."""

    stream: Stream
    time_column: str
    newest_time: int | None = None
    ended: bool = False

    @property
    def watermark(self) -> float:
        """The lower bound of event times still expected: −∞ before the first row, ∞ after the last."""
        if self.ended:
            return math.inf
        return -math.inf if self.newest_time is None else self.newest_time - self.stream.delay


@dataclass(slots=True)
class ReferenceQueryState:
    """An added query, the results it emitted, and whether it still runs."""

    query: ReferenceQuery | ReferenceNestedQuery
    emitted: list[dict[str, Any]] = field(default_factory=list)
    running: bool = True


class ReferenceEngine:
    """The test oracle. Commands take effect at the next `advance`; a failing query does not affect the others."""

    def __init__(self) -> None:
        """Start without streams and queries."""
        self.errors: dict[str, EvaluationError] = {}
        """The error of each failed query, by name; it emits nothing from that batch on."""
        self.dropped: dict[str, int] = {}
        """The number of rows dropped for lack of an event time, by stream."""
        self._streams: dict[str, ReferenceStreamState] = {}
        self._queries: dict[str, ReferenceQueryState] = {}
        self._live: set[str] = set()

    def add_stream(self, stream: Stream) -> None:
        """Declare a stream; queries added from now on may read it."""
        if stream.name in self._streams:
            raise NameTakenError(f"stream '{stream.name}' already exists")
        column = stream.schema.find(stream.time)
        assert column is not None
        self._streams[stream.name] = ReferenceStreamState(stream, column.name)
        self.dropped[stream.name] = 0

    def add(self, name: str, plan: AnyQuery) -> None:
        """Add a query; from the next batch on, it reads the rows newer than all earlier rows of its streams.

        The name of a removed query may be reused; that discards the results, late-row counts and error of the former query.
        """
        if name in self._live:
            raise NameTakenError(f"query '{name}' already exists")
        streams = [self._get_stream(stream) for stream in plan.streams]
        newest_times = [state.newest_time for state in streams if state.newest_time is not None]
        times = {state.stream.name: state.time_column for state in streams}
        query_class = ReferenceNestedQuery if isinstance(plan, NestedQuery) else ReferenceQuery
        self._queries[name] = ReferenceQueryState(query_class(plan, max(newest_times) + 1 if newest_times else None, times))  # type: ignore[arg-type]
        self._live.add(name)
        self.errors.pop(name, None)

    def remove(self, name: str) -> None:
        """Remove a query, failed or not; keep its results."""
        if name not in self._live:
            raise NotFoundError(f"query '{name}' does not exist", detail=f"queries: {', '.join(sorted(self._live)) or 'none'}")
        self._live.remove(name)
        self._queries[name].running = False

    def advance(self, rows: Mapping[str, Sequence[Row]]) -> dict[str, list[dict[str, Any]]]:
        """Run one micro-batch; return the rows that each live query emitted in it (none for a failed query)."""
        timed = {stream: self._drop_untimed_rows(stream, stream_rows) for stream, stream_rows in rows.items()}
        before = {name: state.watermark for name, state in self._streams.items()}
        for stream, stream_rows in timed.items():
            self._streams[stream].newest_time = _find_newest_time(self._streams[stream], stream_rows)
        return self._run_queries(timed, before)

    def drain(self) -> dict[str, list[dict[str, Any]]]:
        """End all streams and emit every open window. Later rows are late in every window."""
        before = {name: state.watermark for name, state in self._streams.items()}
        for state in self._streams.values():
            state.ended = True
        return self._run_queries({}, before)

    def get_results(self, name: str) -> list[dict[str, Any]]:
        """Return all rows that a live, failed or removed query emitted, in order."""
        return list(self._get_query(name).emitted)

    def get_late_counts(self, name: str) -> dict[str, int]:
        """Return the number of late rows of a query, by stream."""
        return dict(self._get_query(name).query.late_rows)

    def _run_queries(self, rows: RowsByStream, before: Mapping[str, float]) -> dict[str, list[dict[str, Any]]]:
        after = {name: state.watermark for name, state in self._streams.items()}
        return {name: self._run_query(name, rows, before, after) for name in self._queries if name in self._live}

    def _run_query(
        self, name: str, rows: RowsByStream, before: Mapping[str, float], after: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        state = self._queries[name]
        if not state.running:
            return []
        try:
            emitted = self._run_batch(state.query, rows, before, after)
        except EvaluationError as error:
            self.errors[name], state.running = error, False
            return []
        state.emitted += emitted
        return emitted

    def _run_batch(
        self,
        query: ReferenceQuery | ReferenceNestedQuery,
        rows: RowsByStream,
        before: Mapping[str, float],
        after: Mapping[str, float],
    ) -> list[dict[str, Any]]:
        if isinstance(query, ReferenceNestedQuery):
            return query.run_batch(rows, before, after)
        streams = query.plan.streams
        return query.run_batch(rows, min(before[s] for s in streams), min(after[s] for s in streams))

    def _drop_untimed_rows(self, stream: str, rows: Sequence[Row]) -> list[Row]:
        column = self._get_stream(stream).time_column
        timed = [row for row in rows if row.get(column) is not None]
        self.dropped[stream] += len(rows) - len(timed)
        return timed

    def _get_stream(self, name: str) -> ReferenceStreamState:
        if name not in self._streams:
            raise NotFoundError(f"stream '{name}' does not exist", detail=f"streams: {', '.join(self._streams) or 'none'}")
        return self._streams[name]

    def _get_query(self, name: str) -> ReferenceQueryState:
        if name not in self._queries:
            raise NotFoundError(f"query '{name}' does not exist", detail=f"queries: {', '.join(self._queries) or 'none'}")
        return self._queries[name]


def _find_newest_time(state: ReferenceStreamState, rows: Sequence[Row]) -> int | None:
    times: list[Any] = [row[state.time_column] for row in rows]
    return max([*map(to_micros, times), *([] if state.newest_time is None else [state.newest_time])], default=None)
