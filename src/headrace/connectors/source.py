"""What a source promises: the driver plans ranges, workers read them.

A source never hands rows to the driver. `plan` turns "everything new since this position" into `Range` values, which
travel to workers as JSON and are read there by `headrace.connectors.read.read_range`. Positions are JSON values made by
the source and only passed back to it; None is the very start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headrace.errors import SourceError
from headrace.model.schema import Schema

Option: TypeAlias = str | int | float | bool
Position: TypeAlias = Any  # a JSON value; None at the very start

RANGE_ROWS = 1 << 18  # ranges of about this size: small enough to balance tasks, large enough to make opening a file free


@dataclass(frozen=True, slots=True)
class Range:
    """What one worker reads in one go.

    `start` and `stop` count record batches ('arrow'), row groups ('parquet'), rows ('rate', 'tcp'), or are 0 and 1: the whole
    file ('csv', 'json'). `rows` is an estimate, for balancing only.
    """

    stream: str
    reader: str
    path: str
    start: int
    stop: int
    rows: int
    options: Mapping[str, Option] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a value that `from_json` reads back, also after a trip through JSON text."""
        return {
            "stream": self.stream,
            "reader": self.reader,
            "path": self.path,
            "start": self.start,
            "stop": self.stop,
            "rows": self.rows,
            "options": dict(self.options),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Range:
        """Rebuild what `to_json` described."""
        return Range(**value)


class Source(Protocol):
    """Lives in the driver, plans only. One thread at a time calls `plan` and `pending`."""

    @property
    def schema(self) -> Schema:
        """The rows this source gives; a file source may look at its first file to tell."""

    def attach(self, stream: str, directory: Path) -> None:
        """Take a name and a durable private directory (it exists); again, with the same directory, after a restart."""

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """Return what is new, up to about `limit_rows` but at least one unit, and the position after it.

        The same position gives the same ranges for as long as no more data arrives and the limit stays. A position may
        move without ranges (empty files); with nothing new at all it is returned as it came.
        """

    def pending(self, position: Position) -> bool:
        """Tell, cheaply, whether `plan` would find anything."""

    def definition(self) -> dict[str, Any]:
        """Describe the source as JSON; equal definitions read the same data, so a restart can compare them."""


def take(units: Sequence[int], start: int, limit: int) -> int:
    """Return the end of the longest run of units from `start` with at most `limit` rows; at least one unit if any."""
    stop, rows = start, 0
    while stop < len(units) and (stop == start or rows + units[stop] <= limit):
        rows += units[stop]
        stop += 1
    return stop


def pieces(units: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Cut units [start, stop) into (start, stop, rows) of about RANGE_ROWS each; pieces without rows are left out."""
    found = []
    while start < stop:
        end = min(take(units, start, RANGE_ROWS), stop)
        if rows := sum(units[start:end]):
            found.append((start, end, rows))
        start = end
    return found


def attached(stream: str, directory: Path | None) -> Path:
    """Return the directory of an attached source; planning without one is a mistake of the caller."""
    if directory is None:
        raise SourceError(f"source of stream '{stream}' is not attached", hint="create a stream over it first")
    return directory
