"""Rows as Avro records, of a schema that an option has or that is derived from the columns: each a union with null."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.arrow_buffers import get_fixed_values, get_text_buffers, get_validity
from headrace.connectors.message_formats.avro_schema import parse_avro
from headrace.connectors.message_formats.kernels import avro_encoding as kernel
from headrace.connectors.messages import Messages
from headrace.errors import SinkError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def derive_schema(schema: pa.Schema) -> str:
    """Return the Avro schema of columns; characters that Avro's names cannot have become underscores."""
    fields = [{"name": _make_name(field.name), "type": ["null", _derive_type(field)], "default": None} for field in schema]
    return json.dumps({"type": "record", "name": "Row", "namespace": "headrace", "fields": fields})


def _make_name(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return cleaned if _NAME.fullmatch(cleaned) else f"_{cleaned}"


def _derive_type(field: pa.Field) -> Any:
    kind = field.type
    if pa.types.is_integer(kind):
        return "long" if kind.bit_width == 64 else "int"
    if pa.types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_string(kind):
        return "string"
    raise SinkError(f"column '{field.name}' of type '{kind}' cannot be written as Avro", hint="cast it in the query")


def encode_avro(table: pa.Table, schema_text: str, header: bytes) -> Messages:
    """Return a message for each row; raises SinkError if a column is missing, or does not fit its field."""
    fields = parse_avro(schema_text).root["fields"]
    columns = {_make_name(name): index for index, name in enumerate(table.column_names)}
    records, kept, rows = np.zeros((len(fields), kernel.WIDTH), np.int64), list[Any](), table.num_rows
    room = rows * (len(header) + kernel.LONGEST_VALUE * len(fields))
    for place, part in enumerate(fields):
        null_branch, value_branch, definition = _split_union(part)
        index = columns.pop(part["name"], None)
        if index is None and null_branch < 0:
            raise SinkError(
                f"the Avro field '{part['name']}' has no column", hint="select it, or declare it as a union with null"
            )
        array = pa.nulls(rows) if index is None else table.column(index).combine_chunks()
        record, used, size = _describe_field(part["name"], array, definition)
        records[place] = [record[0], null_branch, value_branch, *record[1:]]
        room += size
        kept += used
    if columns:
        raise SinkError(f"column '{next(iter(columns))}' has no field in the Avro schema", hint="leave it out of the query")
    target, ends = np.empty(room + 64, np.uint8), np.zeros(rows + 1, np.int64)
    prefix = np.frombuffer(header + bytes(8), np.uint8)
    missing = kernel.encode_records(
        records.ctypes.data, len(fields), prefix.ctypes.data, len(header), rows, target.ctypes.data, ends
    )
    del kept
    if missing >= 0:
        raise SinkError(f"column '{fields[missing]['name']}' is NULL, but its Avro field is no union with null")
    return Messages(ends, target)


def _split_union(part: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Return the branch for NULL, the branch for values, or −1 for both, and the type of values."""
    branches = part["type"]
    if not isinstance(branches, list):
        return -1, -1, branches
    values = [index for index, branch in enumerate(branches) if branch.get("type") != "null"]
    nulls = [index for index, branch in enumerate(branches) if branch.get("type") == "null"]
    if len(values) != 1 or len(nulls) > 1:
        raise SinkError(f"the Avro field '{part['name']}' is a union of several types", hint="use a union of null and one type")
    return (nulls[0] if nulls else -1), values[0], branches[values[0]]


def _describe_field(name: str, array: pa.Array, definition: dict[str, Any]) -> tuple[list[int], list[Any], int]:
    """Return how values are written, where they and the NULLs are, what must live as long, and how many bytes texts have."""
    if pa.types.is_null(array.type):
        nothing = np.zeros(len(array) + 1, np.uint8)
        return [kernel.ONE, 0, 0, nothing.ctypes.data], [nothing], 0
    valid = get_validity(array)
    mask = 0 if valid is None else valid.ctypes.data
    op, wanted = _choose_operation(name, array.type, definition)
    if op == kernel.BYTES:
        ends, data = get_text_buffers(array)
        return [op, data.ctypes.data, ends.ctypes.data, mask], [ends, data, valid], len(data)
    values: npt.NDArray[Any] = get_fixed_values(array, wanted)
    return [op, values.ctypes.data, 0, mask], [values, valid], 0


def _choose_operation(name: str, kind: pa.DataType, definition: dict[str, Any]) -> tuple[int, pa.DataType]:
    """Return how values are written, and the type that they are converted to first; raises SinkError if they do not fit."""
    written, logical = definition["type"], definition.get("logicalType")
    if written in {"int", "long"}:
        if pa.types.is_integer(kind) and kind.bit_width <= (64 if written == "long" else 32):
            return kernel.VARINT, pa.int64()
        units = {
            "timestamp-micros": "us",
            "timestamp-millis": "ms",
            "local-timestamp-micros": "us",
            "local-timestamp-millis": "ms",
        }
        if pa.types.is_timestamp(kind) and logical in units:
            return kernel.VARINT, pa.timestamp(units[logical], "UTC")
        if pa.types.is_date(kind) and logical == "date":
            return kernel.VARINT, pa.date32()
    elif written == "double" and (pa.types.is_floating(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32)):
        return kernel.EIGHT, pa.float64()
    elif written == "float" and pa.types.is_float32(kind):
        return kernel.FOUR, pa.float32()
    elif written == "boolean" and pa.types.is_boolean(kind):
        return kernel.ONE, kind
    elif written == "bytes" and logical == "decimal" and pa.types.is_decimal(kind):
        if kind.scale <= int(definition.get("scale", 0)) and kind.precision <= int(definition["precision"]):
            return kernel.DECIMAL, pa.decimal128(int(definition["precision"]), int(definition.get("scale", 0)))
    elif written in {"string", "bytes"} and not logical and pa.types.is_string(kind):
        return kernel.BYTES, kind
    detail = f" ({logical})" if logical else ""
    raise SinkError(f"column '{name}' of type '{kind}' cannot be written as the Avro type '{written}'{detail}")
