"""Memory source: rows that the program appends, for tests, notebooks and small feeds.

Every `append` writes one Arrow file to the stream's own directory, and a line with its check sum to the log `rows.jsonl`. Workers
read the file like any other. The rows survive a crash and a loss of power.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.row_input import RowInput, build_table
from headrace.connectors.source import RANGE_ROWS, Position, Range, require_attached, split_units
from headrace.model.types import Schema
from headrace.storage.append_log import AppendLog
from headrace.storage.checksum import compute_checksum
from headrace.storage.documents import damaged_error
from headrace.storage.store import Store

_LOG_FILE = "rows.jsonl"
_NUMBER_LENGTH = 8  # digits at the start of the name of a file
_MAX_PRUNED_LINES = 1_000  # lines of the log whose files are deleted, before the log is written again
_MIN_PRUNED_FILES = 16  # that are deleted together where each deletion is a request


@dataclass(frozen=True, slots=True)
class _AppendedFile:
    """The rows of one `append`: the number of its file, the rows of its record batches, the check sum of its bytes.

    An append that fails may be followed by another one with the same number: the check sum tells their files apart.
    """

    number: int
    units: list[int]
    checksum: str

    @property
    def key(self) -> str:
        """The name of the file."""
        return f"{self.number:0{_NUMBER_LENGTH}d}-{self.checksum}.arrow"


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
        self._store: Store | None = None
        self._log: AppendLog  # once attached
        self._unattached_tables: list[pa.Table] = []
        self._files: deque[_AppendedFile] = deque()
        self._pruned = 0
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
            if self._store is None:
                self._unattached_tables.append(_copy_table(table))
            else:
                self._write_file(self._store, table)

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; writes the buffered rows, after the files of an earlier session."""
        with self._lock:
            self._log = AppendLog(store, _LOG_FILE)
            last_number = max((int(key[:_NUMBER_LENGTH]) for key in store.list("") if key.endswith(".arrow")), default=-1)
            if last_number >= 0 and not self._log.exists():
                raise damaged_error(store, _LOG_FILE, FileNotFoundError())
            self._files = deque(_AppendedFile(**value) for value in self._log.read())
            if last_number > self._next_number:  # the file of the next number may be of an append that did not return
                raise damaged_error(store, _LOG_FILE, ValueError(f"it does not list the file with number {last_number}"))
            self._stream, self._store = stream, store
            while self._unattached_tables:
                self._write_file(store, self._unattached_tables[0])
                self._unattached_tables.pop(0)

    def detach(self) -> None:
        """See `Source`; rows that are appended from now on are buffered."""
        with self._lock:
            self._stream, self._store = "", None
            self._files.clear()

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"files": number of files read}, and a unit has the rows of one `append`."""
        store = require_attached(self._stream, self._store)
        first = number = _files_read(position)
        ranges: list[Range] = []
        total = 0
        for file in self._list_unread(first):
            total += sum(file.units)
            if number > first and total > limit_rows:
                break
            ranges += [self._make_range(store, file, *piece) for piece in split_units(file.units, 0, len(file.units))]
            number += 1
        return (ranges, {"files": number}) if number > first else ([], position)

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        require_attached(self._stream, self._store)
        return _files_read(position) < self._next_number

    def verify(self, position: Position) -> None:
        """See `Source`."""
        if _files_read(position) > self._next_number:
            reason = f"it lists {self._next_number} files, but {_files_read(position)} were read"
            raise damaged_error(require_attached(self._stream, self._store), _LOG_FILE, ValueError(reason))

    def prune(self, *positions: Position) -> None:
        """See `Source`; the log keeps the newest file, whose number determines that of the next."""
        store, first_kept = require_attached(self._stream, self._store), min(map(_files_read, positions))
        with self._lock:
            read = [file.key for file in list(self._files)[:-1] if file.number < first_kept]
            if store.is_remote and len(read) < _MIN_PRUNED_FILES:
                return
            store.delete_many(read)
            for _ in read:
                self._files.popleft()
            self._pruned += len(read)
            if self._pruned > _MAX_PRUNED_LINES:
                self._log.replace(asdict(file) for file in self._files)
                self._pruned = 0

    def definition(self) -> dict[str, Any]:
        """See `Source`."""
        return {"kind": "memory", "schema": self.schema.to_ddl()}

    @property
    def _next_number(self) -> int:
        return self._files[-1].number + 1 if self._files else 0

    def _list_unread(self, first: int) -> Iterator[_AppendedFile]:
        """Yield the files from number `first` on, those of them that exist by now."""
        with self._lock:
            offset = first - self._files[0].number if self._files else 0
            return itertools.islice(list(self._files), max(0, offset), None)

    def _make_range(self, store: Store, file: _AppendedFile, start: int, stop: int, rows: int) -> Range:
        path = store.name_of(file.key)
        return Range(self._stream, "arrow", path, start, stop, rows, {"checksum": file.checksum})

    def _write_file(self, store: Store, table: pa.Table) -> None:
        """Write rows, durably, and then the line of the log that makes them part of the stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=RANGE_ROWS)
        content = sink.getvalue()
        units = [batch.num_rows for batch in table.to_batches(max_chunksize=RANGE_ROWS)]
        file = _AppendedFile(self._next_number, units, compute_checksum(content))
        store.put(file.key, [content])
        self._log.append(asdict(file))
        self._files.append(file)


def _copy_table(table: pa.Table) -> pa.Table:
    """Return a table with buffers of its own: the program may modify a frame after `append`."""
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(output.getvalue()).read_all()


def _files_read(position: Position) -> int:
    return 0 if position is None else int(position["files"])
