"""Sinks: destinations of query results.

Sinks *written by workers* receive the rows of each partition before the batch is committed, as pending files, which no reader
sees; the driver publishes those of the attempts that count after the commit (`pending_files`). Sinks *delivered by the driver*
receive all rows of a batch after its commit.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from headrace.connectors.pending_files import OutputPlace, PendingFile, write_pending_file
from headrace.connectors.row_text import format_table, write_json_lines
from headrace.errors import SinkError, StorageError
from headrace.storage.locations import parse_location


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

    def to_json(self) -> dict[str, Any]:
        """Return the sink as a JSON value for `sink_from_json`."""
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
class FileSink(Sink):
    """Base class of sinks that write files for each batch and partition to a directory, which no other query may use."""

    written_by_workers: ClassVar[bool] = True
    suffix: ClassVar[str]
    path: str

    def __post_init__(self) -> None:
        """Make the path absolute: workers may run in another directory than the driver."""
        object.__setattr__(self, "path", parse_location(self.path, SinkError, "sink"))

    def write(self, table: pa.Table, place: OutputPlace) -> PendingFile | None:
        """See `Sink`; without rows there is no file."""
        if table.num_rows == 0:
            return None
        try:
            return write_pending_file(self.path, place, self.suffix, self._encode(table))
        except (pa.ArrowException, OSError, ValueError, OverflowError, StorageError) as error:
            name = f"{self.path}/{place.format_name(self.suffix)}"
            reason = error.detail if isinstance(error, StorageError) else str(error)
            raise SinkError(f"sink file '{name}' cannot be written", detail=reason or type(error).__name__) from error

    def _encode(self, table: pa.Table) -> Any:
        """Return the content of a file with the rows of a table."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ParquetSink(FileSink):
    """Writes Parquet files to the directory `path`, one for each batch and partition."""

    kind: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"

    def _encode(self, table: pa.Table) -> Any:
        buffer = pa.BufferOutputStream()
        pa.parquet.write_table(table, buffer)
        return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class JsonLinesSink(FileSink):
    """Writes files with one JSON object on each line to the directory `path`, one for each batch and partition.

    Times are ISO-8601 with Z, dates are ISO-8601; decimals, NaN and ±Infinity are text.
    """

    kind: ClassVar[str] = "jsonl"
    suffix: ClassVar[str] = ".jsonl"

    def _encode(self, table: pa.Table) -> Any:
        text = io.StringIO(newline="\n")
        write_json_lines(text, table)
        return text.getvalue().encode()


SinkSpec: TypeAlias = str | Mapping[str, Any] | Sink | Callable[[pa.Table], object] | None

_PLAIN_SINKS: Mapping[str, Callable[[], Sink]] = {"memory": MemorySink, "noop": NoopSink, "console": ConsoleSink}
_FILE_SINKS: Mapping[str, Callable[[str], Sink]] = {"parquet": ParquetSink, "jsonl": JsonLinesSink}


def sink_from_json(value: Mapping[str, Any]) -> Sink:
    """Return the sink of a JSON value of `Sink.to_json`; raises SinkError for an unknown kind."""
    kinds: Mapping[str, Callable[..., Sink]] = {**_PLAIN_SINKS, **_FILE_SINKS}
    if value.get("kind") not in kinds:
        raise _unknown_sink_error(value)
    return kinds[value["kind"]](**{name: part for name, part in value.items() if name != "kind"})


def parse_sink(spec: SinkSpec) -> Sink:
    """Return the sink for a user's specification.

    A specification is None or 'memory', 'noop' or 'console'; {'parquet': DIR}, 'parquet:DIR' or a name that ends in '.parquet';
    the same with jsonl; a function of a table; or a sink. Raises SinkError for anything else.
    """
    if spec is None:
        return MemorySink()
    if isinstance(spec, Sink):
        return spec
    if isinstance(spec, str):
        return _parse_text(spec)
    if isinstance(spec, Mapping):
        return _parse_mapping(spec)
    if callable(spec):
        return CallbackSink(spec)
    raise _unknown_sink_error(spec)


def _parse_text(spec: str) -> Sink:
    if spec in _PLAIN_SINKS:
        return _PLAIN_SINKS[spec]()
    for kind, make in _FILE_SINKS.items():
        path = spec.removeprefix(f"{kind}:")
        if path and (path != spec or spec.endswith(f".{kind}")):
            return make(path)
    raise _unknown_sink_error(spec)


def _parse_mapping(spec: Mapping[str, Any]) -> Sink:
    if "kind" in spec:
        return sink_from_json(spec)
    if len(spec) == 1:
        kind, path = next(iter(spec.items()))
        if kind in _FILE_SINKS and isinstance(path, str | Path) and str(path):
            return _FILE_SINKS[kind](str(path))
    raise _unknown_sink_error(spec)


def _unknown_sink_error(spec: object) -> SinkError:
    return SinkError(
        f"unknown sink {spec!r}",
        detail="known: memory, noop, console, parquet:DIR, jsonl:DIR, {'parquet': DIR}, {'jsonl': DIR}, a function",
    )
