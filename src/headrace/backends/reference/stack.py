"""Runs a nested query: its parts one after another, with the results of a part as input rows of later parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from headrace.backends.reference.query import ReferenceQuery, RowsByStream
from headrace.backends.reference.unfold import unnest_rows
from headrace.plan.stacked import HIDDEN_TIME, NestedQuery, compute_start_times
from headrace.plan.unfolded import resolve_declared_name


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
        unnested = {stream.name: stream for stream in plan.unnested}
        self._declared_streams: dict[str, tuple[str, ...]] = {name: (resolve_declared_name(name, unnested),) for name in unnested}
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
            streams = self._resolve_declared(part.plan.streams)
            emitted = part.run_batch(rows_by_stream, min(before[s] for s in streams), min(after[s] for s in streams))
            if number < len(self._derived_names):
                rows_by_stream[self._derived_names[number]] = add_event_time(emitted)
        return emitted

    def _resolve_declared(self, streams: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for stream in streams for name in self._declared_streams.get(stream, (stream,))))


def add_event_time(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results as rows of a stream; their event time is the last microsecond of their window."""
    return [{**row, HIDDEN_TIME: row[HIDDEN_TIME] - timedelta(microseconds=1)} for row in results]
