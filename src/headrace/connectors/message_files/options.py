"""Options of files of messages, and columns that an Avro file declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.connectors.message_formats import make_message_format
from headrace.connectors.message_formats.avro_schema import parse_avro
from headrace.connectors.source import Option
from headrace.errors import SchemaError
from headrace.model.types import TIMESTAMP, Schema

_TABLE_OPTIONS = ("schema", "message")
_AVRO_TYPES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.string(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip


def check_options(name: str, schema: Schema, options: Mapping[str, Option]) -> None:
    """Raise SchemaError unless the options are those of a file format and fit the columns."""
    known = ("timestamp_format", *(_TABLE_OPTIONS if name == "protobuf" else ()))
    for option in options:
        if option not in known and not option.startswith("field."):
            raise SchemaError(
                f"unknown option '{option}' of files of format '{name}'", detail=f"options: {', '.join(('field.COLUMN', *known))}"
            )
    make_message_format(name, schema, options)


def infer_avro_schema(text: str) -> pa.Schema:
    """Return the columns of a writer's schema; a type that is no column stays as Avro names it, a unit of its own.

    Raises SchemaError if the text is no schema.
    """
    schema = parse_avro(text)
    return pa.schema([(part["name"], _choose_column_type(schema.find(part["type"]))) for part in schema.root["fields"]])


def _choose_column_type(definition: Any) -> pa.DataType:
    if isinstance(definition, list):
        branches = [branch for branch in definition if branch != {"type": "null"}]
        return _choose_column_type(branches[0]) if len(branches) == 1 else pa.null()
    kind, logical = str(definition["type"]), str(definition.get("logicalType", ""))
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        return pa.decimal128(int(definition["precision"]), int(definition.get("scale", 0)))
    if kind == "long" and "timestamp" in logical:
        return TIMESTAMP
    return pa.date32() if kind == "int" and logical == "date" else _AVRO_TYPES.get(kind, pa.null())
