"""The history of a run: what clients did, what they were told, and what the batches read; the input of the checker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.model.stream import Stream

Rows: TypeAlias = list[dict[str, Any]]
QueryKey: TypeAlias = tuple[str, int]
"""The name and the id of a query: a name may be used again, an id by a query that was never live."""


class ViolationError(Exception):
    """What was seen cannot be: `kind` is the broken promise, the message says where."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


@dataclass
class AppendRecord:
    """The rows of one append or file; `acknowledged` if the call returned, `dropped` if the stream was dropped afterwards."""

    stream: str
    rows: tuple[Mapping[str, Any], ...]
    acknowledged: bool = False
    dropped: bool = False


@dataclass
class BatchInput:
    """What a committed batch read: ids of rows by stream, and the range of ticks; `final` if it closed every window."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    ticks: list[tuple[int, int]] = field(default_factory=list)
    final: bool = False


@dataclass
class QueryHistory:
    """A query that was live, as the session describes it at the end; it emits in the batches [first_batch, end)."""

    name: str
    id: int
    sql: str
    sink: str
    status: str
    error: str | None
    first_batch: int
    end: int
    late: dict[str, int]
    emitted: int
    replaced: QueryKey | None = None


@dataclass
class Delivery:
    """A table that a callback got; `life` counts the crashes before it."""

    life: int
    rows: Rows


@dataclass
class History:
    """Everything that the checker may know."""

    streams: tuple[Stream, ...]
    appends: list[AppendRecord] = field(default_factory=list)
    batches: list[BatchInput] = field(default_factory=list)
    queries: list[QueryHistory] = field(default_factory=list)
    results: dict[QueryKey, dict[int, Rows]] = field(default_factory=dict)
    read_until: dict[QueryKey, int] = field(default_factory=dict)
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    sink_files: dict[str, dict[int, Rows]] = field(default_factory=dict)
    stream_counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    ticks: Rows = field(default_factory=list)
    declared_at: list[int] = field(default_factory=list)
    """The batches before which a dropped stream was declared again."""
    had_full_disk: bool = False

    def record_read(self, key: QueryKey, after: int, until: int, found: Mapping[int, Rows]) -> None:
        """Add what a reader saw of the batches (after, until]; raises ViolationError if an earlier reader saw something else."""
        seen = self.results.setdefault(key, {})
        batches = list(found)
        if batches != sorted(batches) or any(not after < batch <= until for batch in batches):
            raise ViolationError("positions", f"query {key} after {after} until {until} gave batches {batches}")
        for batch in range(after + 1, min(until, self.read_until.get(key, -1)) + 1):
            if found.get(batch, []) != seen.get(batch, []):
                raise ViolationError(
                    "changed results", f"query {key}, batch {batch}: {seen.get(batch, [])} became {found.get(batch, [])}"
                )
        seen.update(found)
        self.read_until[key] = max(until, self.read_until.get(key, -1))
