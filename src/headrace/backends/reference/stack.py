"""A query over results of other windows: its parts one after the other, each result a row for those that read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from headrace.backends.reference.query import ReferenceQuery, Rows
from headrace.backends.reference.unfold import with_unfolded
from headrace.plan.stacked import TIME, StackedQuery, beginnings
from headrace.plan.unfolded import declared


class ReferenceStack:
    """The parts of a query, inner ones first; a part goes by the watermarks of the declared streams below it."""

    def __init__(self, plan: StackedQuery, since: int | None, times: Mapping[str, str]) -> None:
        """`since` and `times` are as of a query without parts."""
        self.plan = plan
        begins = beginnings(plan, since)
        known = {**times, **{one.name: TIME for one in plan.inner}, **{one.name: one.stream.time for one in plan.unfolded}}
        self._parts = [
            ReferenceQuery(p, b, known) for p, b in zip([*(one.plan for one in plan.inner), plan.outer], begins, strict=True)
        ]
        self._names = [one.name for one in plan.inner]
        unfolds = {one.name: one for one in plan.unfolded}
        self._base: dict[str, tuple[str, ...]] = {name: (declared(name, unfolds),) for name in unfolds}
        for one in plan.inner:
            self._base[one.name] = self._declared(one.plan.streams)

    @property
    def late(self) -> dict[str, int]:
        """Rows that came too late for some part, by stream."""
        found = dict.fromkeys(self.plan.streams, 0)
        for part in self._parts:
            for stream, count in part.late.items():
                (name,) = self._declared([stream])[:1]
                found[name] += count  # results of windows are never late
        return found

    def batch(self, rows: Rows, before: Mapping[str, float], after: Mapping[str, float]) -> list[dict[str, Any]]:
        """Take the rows of a batch and return what the outermost query emits; watermarks are given by stream."""
        given = with_unfolded(dict(rows), self.plan.unfolded)
        emitted: list[dict[str, Any]] = []
        for number, part in enumerate(self._parts):
            streams = self._declared(part.plan.streams)
            emitted = part.batch(given, min(before[s] for s in streams), min(after[s] for s in streams))
            if number < len(self._names):
                given[self._names[number]] = with_time(emitted)
        return emitted

    def _declared(self, streams: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in streams for name in self._base.get(one, (one,))))


def with_time(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results as rows of a stream: their event time is the last of their window."""
    return [{**row, TIME: row[TIME] - timedelta(microseconds=1)} for row in results]
