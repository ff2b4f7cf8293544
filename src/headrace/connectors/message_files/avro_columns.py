"""The columns that an Avro file declares."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.connectors.message_formats.avro_schema import parse_avro
from headrace.model.types import TIMESTAMP

_AVRO_TYPES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.string(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip


def infer_avro_schema(text: str) -> pa.Schema:
    """Return the columns of a writer's schema; those of a type that no column has, such as an array, have the null type.

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
        precision = int(definition.get("precision", 0))
        return pa.decimal128(precision, int(definition.get("scale", 0))) if 0 < precision <= 38 else pa.null()
    if kind == "long" and "timestamp" in logical:
        return TIMESTAMP
    return pa.date32() if kind == "int" and logical == "date" else _AVRO_TYPES.get(kind, pa.null())
