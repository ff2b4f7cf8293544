"""Sinks of files: workers write a file for each batch and partition, which becomes visible after the commit."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet

from headrace.connectors.pending_files import OutputPlace, PendingFile, write_pending_file
from headrace.connectors.row_text import write_json_lines
from headrace.connectors.sinks.base import Sink
from headrace.errors import SinkError, StorageError
from headrace.storage.locations import parse_location


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

    def describe(self) -> str:
        """See `Sink`."""
        return f"{self.kind}:{self.path}"

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
