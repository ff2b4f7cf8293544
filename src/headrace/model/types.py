"""Types and schemas of rows.

Types are Arrow types, restricted to those with a SQL name in headrace; a `Schema` is a validated tuple of fields with
case-insensitive names, as in Spark SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.record import record

TIMESTAMP = pa.timestamp("us", tz="UTC")

_TYPES_BY_NAME = {
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
}
_NAMES_BY_TYPE = {kind: name for name, kind in reversed(_TYPES_BY_NAME.items())}
_DECIMAL_TYPE = re.compile(r"(?:DECIMAL|NUMERIC|DEC)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?$")
_COLUMN_DECLARATION = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)\s*:?\s+(.+?)\s*$", re.DOTALL)
_MAX_DECIMAL_PRECISION = 38


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type of a SQL type name; `DECIMAL` alone is `DECIMAL(10, 0)`."""
    name = text.strip().upper()
    if name in _TYPES_BY_NAME:
        return _TYPES_BY_NAME[name]
    if match := _DECIMAL_TYPE.match(name):
        precision, scale = int(match[1] or 10), int(match[2] or 0)
        if 1 <= precision <= _MAX_DECIMAL_PRECISION and scale <= precision:
            return pa.decimal128(precision, scale)
        raise SchemaError(f"decimal type '{text.strip()}' is out of range", hint="1 ≤ precision ≤ 38, 0 ≤ scale ≤ precision")
    raise SchemaError(
        f"unknown type '{text.strip()}'",
        detail="known types: TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), BOOLEAN, STRING, DATE, TIMESTAMP",
    )


def type_name(kind: pa.DataType) -> str:
    """Return the SQL name of a type, for messages and schemas."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return "VOID" if pa.types.is_null(kind) else _NAMES_BY_TYPE.get(kind, str(kind).upper())


def normalize_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that headrace uses for external values of an Arrow type."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return normalize_type(kind.value_type)
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    widened = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}
    kind = widened.get(kind, kind)
    if kind not in _NAMES_BY_TYPE:
        raise SchemaError(f"type '{kind}' is not supported", hint="drop the column, or cast it before headrace reads it")
    return kind


@record("field")
@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column; every column may hold NULL."""

    name: str
    type: pa.DataType


@record("schema")
@dataclass(frozen=True, slots=True)
class Schema:
    """An ordered set of columns; names are unique when case is ignored."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        """Reject columns whose names differ only in case."""
        seen: set[str] = set()
        for field in self.fields:
            if field.name.lower() in seen:
                raise SchemaError(f"column '{field.name}' is declared twice")
            seen.add(field.name.lower())

    def __iter__(self) -> Iterator[Field]:
        """Iterate over the fields, in order."""
        return iter(self.fields)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(field.name for field in self.fields)

    def find(self, name: str) -> Field | None:
        """Return the column of that name, ignoring case, or None."""
        lowered = name.lower()
        return next((field for field in self.fields if field.name.lower() == lowered), None)

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema."""
        return pa.schema([pa.field(field.name, field.type) for field in self.fields])

    def to_ddl(self) -> str:
        """Return the declaration that `parse` accepts."""
        return ", ".join(f"`{f.name.replace('`', '``')}` {type_name(f.type)}" for f in self.fields)

    @staticmethod
    def from_arrow(schema: pa.Schema) -> Schema:
        """Build a schema from the names and (normalized) types of an Arrow schema."""
        return Schema(tuple(Field(field.name, normalize_type(field.type)) for field in schema))

    @staticmethod
    def parse(ddl: str) -> Schema:
        """Parse a declaration such as `user_id INT, price DECIMAL(10, 2), time TIMESTAMP`."""
        fields = []
        for part in _split_columns(ddl):
            match = _COLUMN_DECLARATION.match(part)
            if not match:
                raise SchemaError(f"invalid column declaration '{part.strip()}'", hint="write: name TYPE, name TYPE, …")
            name = match[1][1:-1].replace("``", "`") if match[1].startswith("`") else match[1]
            fields.append(Field(name, parse_type(match[2])))
        return Schema(tuple(fields))


def _split_columns(ddl: str) -> list[str]:
    """Split at commas outside parentheses and back-quotes."""
    parts, depth, quoted, current = [], 0, False, ""
    for char in ddl:
        quoted ^= char == "`"
        if not quoted:
            depth += (char == "(") - (char == ")")
        if char == "," and depth == 0 and not quoted:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]
