"""Rows as programs pass them – frames, Arrow tables, mappings – converted to an Arrow table with the columns of a schema.

A frame is any object with the Arrow PyCapsule interface: a pandas or polars DataFrame, an Arrow table, record batch or reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from headrace.connectors.formats import CONVERSION_ERRORS, conform_column, to_utc
from headrace.errors import SchemaError
from headrace.model.types import Field, Schema, type_name


class ArrowFrame(Protocol):
    """A frame of any library that exports Arrow data."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a PyCapsule with an ArrowArrayStream."""


RowInput: TypeAlias = ArrowFrame | pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]

_ROWS_HINT = "pass a list of mappings, a pandas or polars DataFrame, or an Arrow table"
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def is_frame(rows: object) -> bool:
    """Return whether rows are a frame, rather than mappings."""
    return hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__")


def build_table(rows: RowInput, schema: Schema, target: str) -> pa.Table:
    """Return rows as a table with the columns of a schema; `target` names the receiver of the rows in errors.

    Missing columns are NULL. Times without an offset are in UTC; texts for times are ISO-8601. NaN in a pandas frame is NULL, and
    the index of a pandas frame is a column if it has a name. Raises SchemaError if the rows do not fit the schema.
    """
    if is_frame(rows):
        return _conform_table(_import_frame(rows), schema, target)
    return _convert_mappings(list_mappings(rows), schema, target)


def list_mappings(rows: Any) -> list[Any]:
    """Return rows that are not a frame as a list; raises SchemaError if they are no rows at all."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise SchemaError(f"a value of type '{_describe_type(rows)}' is not a list of rows", hint=_ROWS_HINT)
    return list(rows)


def _describe_type(value: object) -> str:
    package, name = type(value).__module__.partition(".")[0], type(value).__name__
    return name if package == "builtins" else f"{package}.{name}"


def _import_frame(frame: Any) -> pa.Table:
    try:
        table = pa.table(frame)
    except CONVERSION_ERRORS as error:
        raise SchemaError(
            f"a value of type '{_describe_type(frame)}' cannot be converted to an Arrow table",
            detail="; ".join(map(str, error.args)),
            hint="give every column one name and values of one type, or pass a list of mappings",
        ) from error
    if b"pandas" in (table.schema.metadata or {}):
        table = table.drop_columns([name for name in table.column_names if _UNNAMED_INDEX.fullmatch(name)])
    return table


def _find_field(schema: Schema, name: str, target: str) -> Field:
    field = schema.find(name) if isinstance(name, str) else None
    if field is None:
        raise SchemaError(
            f"column '{name}' is not a column of {target}",
            detail=f"columns: {', '.join(schema.names)}",
            hint="rename or drop the column",
        )
    return field


def _conform_table(table: pa.Table, schema: Schema, target: str) -> pa.Table:
    conformed: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        field = _find_field(schema, name, target)
        if field.name in conformed:
            raise SchemaError(f"column '{field.name}' is given twice", hint="drop one of the two; names ignore case")
        try:
            conformed[field.name] = conform_column(column, field.type)
        except CONVERSION_ERRORS as error:
            raise SchemaError(
                f"column '{field.name}' does not fit {type_name(field.type)}",
                detail=str(error),
                hint=f"convert it; it is a column of {column.type}, and {target} declares {type_name(field.type)}",
            ) from error
    columns = [conformed.get(f.name, pa.chunked_array([pa.nulls(table.num_rows, f.type)])) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema.to_arrow())


def _convert_mappings(rows: Sequence[Any], schema: Schema, target: str) -> pa.Table:
    values: dict[str, list[Any]] = {field.name: [None] * len(rows) for field in schema}
    fields: dict[str, Field] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            message = f"row {number} is a {type(row).__name__}, not a mapping of column names to values"
            raise SchemaError(message, hint=_ROWS_HINT)
        for name, value in row.items():
            field = fields.get(name) or fields.setdefault(name, _find_field(schema, name, target))
            values[field.name][number] = _convert_value(field, value, number)
    return pa.table([_build_array(field, values[field.name]) for field in schema], schema=schema.to_arrow())


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
