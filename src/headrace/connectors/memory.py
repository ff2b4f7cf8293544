"""Memory source: rows that the program appends, for tests, notebooks and small feeds.

Every `append` writes one Arrow file to the stream's own directory. Workers read it like any other file, and the rows survive a
crash of the process.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.formats import count_unit_rows
from headrace.connectors.row_input import RowInput, build_table
from headrace.connectors.source import RANGE_ROWS, Position, Range, require_attached, split_units
from headrace.errors import SourceError
from headrace.model.types import Schema
from headrace.storage.posix import write_atomically


class MemorySource:
    """A source of rows that the program appends.

    `append` is thread-safe, and may be called before the source is attached to a stream: the rows are buffered until then.
    """

    def __init__(self, schema: Schema | str) -> None:
        """Create a source with these columns: a Schema, or text such as `user_id INT, price DOUBLE, time TIMESTAMP`.

        Raises SchemaError for an invalid schema.
        """
        self.schema = Schema.parse(schema) if isinstance(schema, str) else schema
        self._stream = ""
        self._directory: Path | None = None
        self._unattached_tables: list[pa.Table] = []
        self._next_file = 0
        self._lock = threading.Lock()

    def append(self, rows: RowInput) -> None:
        """Append rows: a pandas or polars DataFrame, an Arrow table or record batch, or mappings from column names to values.

        Any object with the Arrow PyCapsule interface is a frame. Missing columns are NULL, and NaN in a pandas frame is NULL; the
        index of a pandas frame is a column if it has a name. Times without an offset are in UTC; texts for times are ISO-8601.
        One micro-batch reads all rows of a call. Raises SchemaError if a row does not fit the schema; then no row is appended.
        """
        table = build_table(rows, self.schema, f"stream '{self._stream}'" if self._stream else "this source")
        if table.num_rows == 0:
            return
        with self._lock:
            if self._directory is None:
                self._unattached_tables.append(_copy_table(table))
            else:
                self._write_file(table)

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; writes the buffered rows, after the files of an earlier session."""
        with self._lock:
            self._stream, self._directory = stream, Path(directory)
            self._next_file = 1 + max((int(path.stem) for path in self._directory.glob("[0-9]*.arrow")), default=-1)
            while self._unattached_tables:
                self._write_file(self._unattached_tables[0])
                self._unattached_tables.pop(0)

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"files": number of files read}, and a unit has the rows of one `append`."""
        first = number = _files_read(position)
        ranges: list[Range] = []
        total = 0
        while (path := self._file_path(number)).exists():
            units = self._count_unit_rows(path)
            total += sum(units)
            if number > first and total > limit_rows:
                break
            ranges += [Range(self._stream, "arrow", str(path), *piece) for piece in split_units(units, 0, len(units))]
            number += 1
        return (ranges, {"files": number}) if number > first else ([], position)

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        return self._file_path(_files_read(position)).exists()

    def prune(self, *positions: Position) -> None:
        """See `Source`; keeps the newest file: its number determines that of the next file."""
        first_kept = min(self._next_file - 1, *map(_files_read, positions))
        for path in require_attached(self._stream, self._directory).glob("[0-9]*.arrow"):
            if int(path.stem) < first_kept:
                path.unlink(missing_ok=True)

    def definition(self) -> dict[str, Any]:
        """See `Source`."""
        return {"kind": "memory", "schema": self.schema.to_ddl()}

    def _file_path(self, number: int) -> Path:
        return require_attached(self._stream, self._directory) / f"{number:08d}.arrow"

    def _count_unit_rows(self, path: Path) -> list[int]:
        try:
            return count_unit_rows(str(path), "arrow")
        except (pa.ArrowException, OSError) as error:
            message = f"file '{path}' of stream '{self._stream}' cannot be read"
            raise SourceError(message, detail=str(error), hint="the checkpoint directory has been damaged") from error

    def _write_file(self, table: pa.Table) -> None:
        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=RANGE_ROWS)

        write_atomically(self._file_path(self._next_file), write, sync=False)
        self._next_file += 1


def _copy_table(table: pa.Table) -> pa.Table:
    """Return a table with buffers of its own: the program may modify a frame after `append`."""
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(output.getvalue()).read_all()


def _files_read(position: Position) -> int:
    return 0 if position is None else int(position["files"])
