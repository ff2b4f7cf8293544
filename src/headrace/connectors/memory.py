"""Memory source: rows that the program appends, for tests, notebooks and small feeds.

Every `append` writes one Arrow file to the stream's own directory. Workers read it like any other file, and the rows survive a
crash of the process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.formats import CONVERSION_ERRORS, conform_column, count_unit_rows, to_utc
from headrace.connectors.source import RANGE_ROWS, Position, Range, require_attached, split_units
from headrace.errors import SchemaError, SourceError
from headrace.model.types import Field, Schema, type_name
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

    def append(self, rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]) -> None:
        """Append rows: an Arrow table or record batch, or a sequence of mappings from column names to values.

        Missing columns are NULL. Times without an offset are in UTC; texts for times are ISO-8601. One micro-batch reads all
        rows of a call. Raises SchemaError if a row does not fit the schema; then no row is appended.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        table = self._conform_table(rows) if isinstance(rows, pa.Table) else self._build_table(rows)
        if table.num_rows == 0:
            return
        with self._lock:
            if self._directory is None:
                self._unattached_tables.append(table)
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

    def prune(self, position: Position) -> None:
        """Delete the files before `position`, except the newest: its number determines that of the next file."""
        newest = self._next_file - 1
        for path in require_attached(self._stream, self._directory).glob("[0-9]*.arrow"):
            if int(path.stem) < min(_files_read(position), newest):
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

    def _find_field(self, name: str) -> Field:
        field = self.schema.find(name)
        if field is None:
            raise SchemaError(
                f"column '{name}' is not a column of {_describe_source(self._stream)}",
                detail=f"columns: {', '.join(self.schema.names)}",
            )
        return field

    def _conform_table(self, table: pa.Table) -> pa.Table:
        conformed: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            field = self._find_field(name)
            if field.name in conformed:
                raise SchemaError(f"column '{field.name}' is given twice")
            try:
                conformed[field.name] = conform_column(column, field.type)
            except CONVERSION_ERRORS as error:
                raise SchemaError(f"column '{field.name}' does not fit {type_name(field.type)}", detail=str(error)) from error
        columns = [conformed.get(f.name, pa.chunked_array([pa.nulls(table.num_rows, f.type)])) for f in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema.to_arrow())

    def _build_table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        values: dict[str, list[Any]] = {field.name: [None] * len(rows) for field in self.schema}
        fields: dict[str, Field] = {}
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise SchemaError(f"row {number} is a {type(row).__name__}, not a mapping of column names to values")
            for name, value in row.items():
                field = fields.get(name) or fields.setdefault(name, self._find_field(name))
                values[field.name][number] = _convert_value(field, value, number)
        return pa.table([_build_array(field, values[field.name]) for field in self.schema], schema=self.schema.to_arrow())


def _files_read(position: Position) -> int:
    return 0 if position is None else int(position["files"])


def _describe_source(stream: str) -> str:
    return f"stream '{stream}'" if stream else "this source"


def _mismatch_error(field: Field, value: object, number: int, detail: str = "") -> SchemaError:
    message = f"value {value!r} of column '{field.name}' in row {number} does not fit {type_name(field.type)}"
    return SchemaError(message, detail=detail)


def _convert_value(field: Field, value: Any, number: int) -> Any:
    """Convert a value to the Python type that Arrow expects for the column; raises SchemaError if it does not fit."""
    if value is None:
        return None
    try:
        return _converter_for(field.type)(value)
    except (*CONVERSION_ERRORS, ArithmeticError) as error:
        raise _mismatch_error(field, value, number, str(error)) from error


def _build_array(field: Field, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except CONVERSION_ERRORS:
        for number, value in enumerate(values):  # find the value that does not fit
            try:
                pa.array([value], field.type)
            except CONVERSION_ERRORS as error:
                raise _mismatch_error(field, value, number, str(error)) from error
        raise


def _converter_for(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_integer(kind):
        return _to_integer
    if pa.types.is_floating(kind):
        return _to_float
    if pa.types.is_decimal(kind):
        return _to_decimal
    if pa.types.is_timestamp(kind):
        return _to_instant
    return _to_date if pa.types.is_date(kind) else (_to_boolean if pa.types.is_boolean(kind) else _to_text)


def _to_integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("expected an integer")
    return int(value)


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise TypeError("expected a number")
    return float(value)


def _to_decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Integral | float | Decimal | str):
        raise TypeError("expected a number, or text that spells one")
    number = Decimal(str(value))
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _to_instant(value: object) -> datetime:
    if not isinstance(value, str | date):
        raise TypeError("expected a datetime or ISO-8601 text")
    return to_utc(value)


def _to_date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, str | date):
        raise TypeError("expected a date or ISO-8601 text")
    return date.fromisoformat(value) if isinstance(value, str) else value


def _to_boolean(value: object) -> bool:
    if type(value).__name__ not in {"bool", "bool_"}:
        raise TypeError("expected True or False")
    return bool(value)


def _to_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value
