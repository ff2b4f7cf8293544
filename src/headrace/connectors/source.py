"""The interface of sources: the driver plans input ranges, workers read them.

A source never passes rows to the driver. `plan` returns everything new since a position as `Range` values, which are sent to
workers as JSON and read there by `headrace.connectors.read.read_range`. A position is a JSON value that only its source
interprets; None is the start of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from headrace.errors import SourceError
from headrace.model.record import record
from headrace.model.types import Schema
from headrace.storage.store import Store

Option: TypeAlias = str | int | float | bool
Position: TypeAlias = Any  # a JSON value; None at the start of the stream

RANGE_ROWS = 1 << 18  # rows of a range: few enough to balance tasks, enough to make the cost of opening a file negligible


@record("range")
@dataclass(frozen=True, slots=True)
class Range:
    """An input range: a part of a stream that one worker reads at a time.

    `start` and `stop` count record batches (reader 'arrow'), row groups ('parquet'), blocks ('avro') or rows ('rate', 'tcp'), or
    are 0 and 1 for a complete file ('csv', 'json', 'protobuf'). `rows` is an estimate, used only to balance tasks.
    """

    stream: str
    reader: str
    path: str
    start: int
    stop: int
    rows: int
    options: Mapping[str, Option] = field(default_factory=dict)

    @property
    def partition(self) -> int:
        """The partition of the source that the rows are in; 0 if the source has none."""
        return int(self.options.get("partition", 0))


class Source(Protocol):
    """A source plans input ranges in the driver. Callers serialize calls of `plan`; `pending` may be called beside it.

    Several streams of a session may read one source object: it is attached once, and called with the position of each stream.

    A source may also have `verify(position)`, which is called after a restart and raises CheckpointError if the metadata of the
    source does not reach that position, because a file was damaged; `prune(*positions)`, which releases the rows before all of
    these positions, one for each stream that reads the source; `detach()`, which is called when the last of its streams was
    dropped, so that the source may be attached again; `count_lag(position)`, which returns at once how many rows after the
    position the source already has, or None if it does not know; `count_partition_lag(position)`, the same by partition;
    `list_partitions(position)`, which returns the numbers of the
    partitions that the stream has at that position, whose ranges have their number in the option "partition";
    `count_lost(position)`, which returns how many rows before the position were deleted before they were read, by partition;
    `record_message_sizes(messages, bytes)`, which is called after a batch with the size of its messages; and `close()`, which
    releases its resources. `attach` and `schema` may take long; nothing else waits for them.

    Attributes may have defaults of its streams: `default_max_ahead` in microseconds, and `default_watermark_by`.
    """

    @property
    def schema(self) -> Schema:
        """The columns of the source; a file source may read its first file to infer them."""

    def attach(self, stream: str, store: Store) -> None:
        """Attach the source to a stream; `store` is for its durable metadata, and is the same after a restart."""

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """Return the ranges of new rows, up to about `limit_rows` but at least one unit, and the position after them.

        The same position and limit give the same ranges as long as no more data arrives. The position may advance without ranges
        (empty files); without new data it is returned unchanged.
        """

    def pending(self, position: Position) -> bool:
        """Return, at low cost, whether `plan` would return anything new."""

    def definition(self) -> dict[str, Any]:
        """Return a JSON description; sources with equal definitions read the same data, which recovery verifies."""


def take_units(units: Sequence[int], start: int, limit: int) -> int:
    """Return the end of the longest run of units from `start` with at most `limit` rows, but at least one unit if any."""
    stop, rows = start, 0
    while stop < len(units) and (stop == start or rows + units[stop] <= limit):
        rows += units[stop]
        stop += 1
    return stop


def split_units(units: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Split units [start, stop) into (start, stop, rows) of about RANGE_ROWS each; omit those without rows."""
    ranges = []
    while start < stop:
        end = min(take_units(units, start, RANGE_ROWS), stop)
        if rows := sum(units[start:end]):
            ranges.append((start, end, rows))
        start = end
    return ranges


def require_attached(stream: str, store: Store | None) -> Store:
    """Return the store of an attached source; raises SourceError if the source is not attached."""
    if store is None:
        raise SourceError(f"source of stream '{stream}' is not attached", hint="create a stream over it first")
    return store
