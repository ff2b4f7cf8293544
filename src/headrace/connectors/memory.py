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

from headrace.connectors.conform import UNFIT, conform, instant
from headrace.connectors.durable import write_whole
from headrace.connectors.formats import unit_rows
from headrace.connectors.source import RANGE_ROWS, Position, Range, attached, pieces
from headrace.errors import SchemaError, SourceError
from headrace.model.schema import Field, Schema, type_name


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
        self._waiting: list[pa.Table] = []
        self._next = 0
        self._lock = threading.Lock()

    def append(self, rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]) -> None:
        """Append rows: an Arrow table or record batch, or a sequence of mappings from column names to values.

        Missing columns are NULL. Times without an offset are in UTC; texts for times are ISO-8601. One micro-batch reads all
        rows of a call. Raises SchemaError if a row does not fit the schema; then no row is appended.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        table = self._from_table(rows) if isinstance(rows, pa.Table) else self._from_rows(rows)
        if table.num_rows == 0:
            return
        with self._lock:
            if self._directory is None:
                self._waiting.append(table)
            else:
                self._write(table)

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; writes the buffered rows, after the files of an earlier session."""
        with self._lock:
            self._stream, self._directory = stream, Path(directory)
            self._next = 1 + max((int(path.stem) for path in self._directory.glob("[0-9]*.arrow")), default=-1)
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting.pop(0)

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"files": number of files read}, and a unit has the rows of one `append`."""
        first = number = _files(position)
        ranges: list[Range] = []
        total = 0
        while (path := self._path(number)).exists():
            units = self._units(path)
            total += sum(units)
            if number > first and total > limit_rows:
                break
            ranges += [Range(self._stream, "arrow", str(path), *piece) for piece in pieces(units, 0, len(units))]
            number += 1
        return (ranges, {"files": number}) if number > first else ([], position)

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        return self._path(_files(position)).exists()

    def prune(self, position: Position) -> None:
        """Delete the files before `position`, except the newest: its number determines that of the next file."""
        newest = self._next - 1
        for path in attached(self._stream, self._directory).glob("[0-9]*.arrow"):
            if int(path.stem) < min(_files(position), newest):
                path.unlink(missing_ok=True)

    def definition(self) -> dict[str, Any]:
        """See `Source`."""
        return {"kind": "memory", "schema": self.schema.to_ddl()}

    def _path(self, number: int) -> Path:
        return attached(self._stream, self._directory) / f"{number:08d}.arrow"

    def _units(self, path: Path) -> list[int]:
        try:
            return unit_rows(str(path), "arrow")
        except (pa.ArrowException, OSError) as error:
            message = f"file '{path}' of stream '{self._stream}' cannot be read"
            raise SourceError(message, detail=str(error), hint="the checkpoint directory has been damaged") from error

    def _write(self, table: pa.Table) -> None:
        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=RANGE_ROWS)

        write_whole(self._path(self._next), write, sync=False)
        self._next += 1

    def _known(self, name: str) -> Field:
        field = self.schema.find(name)
        if field is None:
            raise SchemaError(
                f"column '{name}' is not a column of {_called(self._stream)}", detail=f"columns: {', '.join(self.schema.names)}"
            )
        return field

    def _from_table(self, table: pa.Table) -> pa.Table:
        conformed: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            field = self._known(name)
            if field.name in conformed:
                raise SchemaError(f"column '{field.name}' is given twice")
            try:
                conformed[field.name] = conform(column, field.type)
            except UNFIT as error:
                raise SchemaError(f"column '{field.name}' does not fit {type_name(field.type)}", detail=str(error)) from error
        columns = [conformed.get(f.name, pa.chunked_array([pa.nulls(table.num_rows, f.type)])) for f in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema.to_arrow())

    def _from_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        values: dict[str, list[Any]] = {field.name: [None] * len(rows) for field in self.schema}
        fields: dict[str, Field] = {}
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise SchemaError(f"row {number} is a {type(row).__name__}, not a mapping of column names to values")
            for name, value in row.items():
                field = fields.get(name) or fields.setdefault(name, self._known(name))
                values[field.name][number] = _checked(field, value, number)
        return pa.table([_array(field, values[field.name]) for field in self.schema], schema=self.schema.to_arrow())


def _files(position: Position) -> int:
    return 0 if position is None else int(position["files"])


def _called(stream: str) -> str:
    return f"stream '{stream}'" if stream else "this source"


def _refused(field: Field, value: object, number: int, detail: str = "") -> SchemaError:
    message = f"value {value!r} of column '{field.name}' in row {number} does not fit {type_name(field.type)}"
    return SchemaError(message, detail=detail)


def _checked(field: Field, value: Any, number: int) -> Any:
    """Convert a value to the Python type that Arrow expects for the column; raises SchemaError if it does not fit."""
    if value is None:
        return None
    try:
        return _converter(field.type)(value)
    except (*UNFIT, ArithmeticError) as error:
        raise _refused(field, value, number, str(error)) from error


def _array(field: Field, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except UNFIT:
        for number, value in enumerate(values):  # find the value that does not fit
            try:
                pa.array([value], field.type)
            except UNFIT as error:
                raise _refused(field, value, number, str(error)) from error
        raise


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_integer(kind):
        return _integer
    if pa.types.is_floating(kind):
        return _real
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_timestamp(kind):
        return _instant
    return _date if pa.types.is_date(kind) else (_boolean if pa.types.is_boolean(kind) else _text)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("expected an integer")
    return int(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise TypeError("expected a number")
    return float(value)


def _decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Integral | float | Decimal | str):
        raise TypeError("expected a number, or text that spells one")
    number = Decimal(str(value))
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _instant(value: object) -> datetime:
    if not isinstance(value, str | date):
        raise TypeError("expected a datetime or ISO-8601 text")
    return instant(value)


def _date(value: object) -> date:
    if isinstance(value, datetime) or not isinstance(value, str | date):
        raise TypeError("expected a date or ISO-8601 text")
    return date.fromisoformat(value) if isinstance(value, str) else value


def _boolean(value: object) -> bool:
    if type(value).__name__ not in {"bool", "bool_"}:
        raise TypeError("expected True or False")
    return bool(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value
