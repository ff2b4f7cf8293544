"""Sinks as values, and those that need nothing outside of the process: memory, no-op, console, callback.

A sink is *kept* (memory), *written by workers* (files, `sinks.files`), *called* by the driver after the commit (console,
callback), or *published* by the driver after the commit to a destination that keeps a mark (`sinks.destination`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyarrow as pa

from headrace.connectors.pending_files import OutputPlace, PendingFile
from headrace.connectors.row_text import format_table
from headrace.errors import SinkError


@dataclass(frozen=True, slots=True)
class Sink:
    """Base class of sinks; it discards rows. Subclasses override the methods that they need."""

    kind: ClassVar[str]
    written_by_workers: ClassVar[bool] = False

    def write(self, table: pa.Table, place: OutputPlace) -> PendingFile | None:
        """Write the rows of one partition of a batch, or a part of them, in a worker.

        Return the file that is to be published when the batch is committed, or None without one. Raises SinkError if the rows
        cannot be written.
        """
        del table, place
        return None

    def deliver(self, query: str, table: pa.Table) -> None:
        """Deliver the rows of a committed batch, in the driver; an exception fails the query."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise SinkError if the sink cannot take rows with these columns."""

    def describe(self) -> str:
        """Return the destination in a few words, for users; without secrets."""
        return self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the sink as a JSON value for `sink_from_json`; it has no secrets."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class MemorySink(Sink):
    """Keeps results in the session, for `Query.results` and `Query.stream`. The default sink."""

    kind: ClassVar[str] = "memory"


@dataclass(frozen=True, slots=True)
class NoopSink(Sink):
    """Discards results in the workers, after they are computed; for benchmarks."""

    kind: ClassVar[str] = "noop"
    written_by_workers: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ConsoleSink(Sink):
    """Prints results to standard output, at most `max_rows` of each batch."""

    kind: ClassVar[str] = "console"
    max_rows: int = 20

    def deliver(self, query: str, table: pa.Table) -> None:
        """Print the rows, if any, as an aligned table below the name of the query."""
        if table.num_rows:
            print(f"{query}: {table.num_rows} row{'s' * (table.num_rows != 1)}")
            print(format_table(table, self.max_rows), flush=True)


@dataclass(frozen=True, slots=True)
class CallbackSink(Sink):
    """Passes the rows of each batch to `function` as an Arrow table, in the driver.

    After a restart the same batch may be delivered again, and the function must be passed again to `Session.add`.
    """

    kind: ClassVar[str] = "callback"
    function: Callable[[pa.Table], object]

    def deliver(self, query: str, table: pa.Table) -> None:
        """Call the function if the batch has rows."""
        del query
        if table.num_rows:
            self.function(table)

    def to_json(self) -> dict[str, Any]:
        """Raise SinkError: a checkpoint does not store callbacks."""
        raise SinkError("a callback sink cannot be saved", hint="pass the function again after a restart")


@dataclass(frozen=True, slots=True)
class MissingCallback(Sink):
    """The place of a callback after a restart, until the function is passed again; rows wait for it."""

    kind: ClassVar[str] = "callback"
