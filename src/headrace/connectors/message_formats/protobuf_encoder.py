"""Rows as Protobuf messages, of a type that an option names or that is derived from the columns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.connectors.message_formats.arrow_buffers import get_fixed_values, get_text_buffers, get_validity
from headrace.connectors.message_formats.kernels import protobuf_encoding as kernel
from headrace.connectors.message_formats.proto_schema import ProtoField, ProtoTypes
from headrace.connectors.messages import Messages
from headrace.errors import SinkError


def derive_proto(schema: pa.Schema) -> str:
    """Return the text of a file with one message that has the columns as its fields, all of them optional."""
    fields = [f"  optional {_derive_type(part)} {_make_name(part.name)} = {number};" for number, part in enumerate(schema, 1)]
    uses_time = any(pa.types.is_timestamp(part.type) for part in schema)
    imports = 'import "google/protobuf/timestamp.proto";\n' if uses_time else ""
    return f'syntax = "proto3";\npackage headrace;\n{imports}message Row {{\n' + "\n".join(fields) + "\n}\n"


def _make_name(name: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return cleaned if re.match("[A-Za-z]", cleaned) else f"c_{cleaned}"


def _derive_type(part: pa.Field) -> str:
    kind = part.type
    if pa.types.is_integer(kind):
        return "int64" if kind.bit_width == 64 else "int32"
    if pa.types.is_floating(kind):
        return "double" if kind.bit_width == 64 else "float"
    if pa.types.is_timestamp(kind):
        return "google.protobuf.Timestamp"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_string(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return "string"
    raise SinkError(f"column '{part.name}' of type '{kind}' cannot be written as Protobuf", hint="cast it in the query")


def encode_protobuf(table: pa.Table, types: ProtoTypes, message: str, header: bytes) -> Messages:
    """Return a message for each row; raises SinkError if a column does not fit its field."""
    fields = {part.name: part for part in types.messages[message]}
    records, kept, rows = np.zeros((table.num_columns, kernel.WIDTH), np.int64), list[Any](), table.num_rows
    room = rows * (len(header) + kernel.LONGEST_VALUE * table.num_columns)
    for place, name in enumerate(table.column_names):
        part = fields.get(_make_name(name))
        if part is None:
            raise SinkError(f"column '{name}' has no field in the Protobuf message '{message}'", hint="leave it out of the query")
        record, used, size = _describe_field(name, table.column(place).combine_chunks(), part, types)
        records[place] = record
        room += size
        kept += used
    target, ends = np.empty(room + 64, np.uint8), np.zeros(rows + 1, np.int64)
    prefix = np.frombuffer(header + bytes(8), np.uint8)
    kernel.encode_fields(records.ctypes.data, table.num_columns, prefix.ctypes.data, len(header), rows, target.ctypes.data, ends)
    del kept
    return Messages(ends, target)


def _describe_field(name: str, array: pa.Array, part: ProtoField, types: ProtoTypes) -> tuple[list[int], list[Any], int]:
    """Return the record of a field, what must live as long, and how many bytes its texts have."""
    op, wire, wanted = _choose_operation(name, array.type, part, types)
    number = part.number << 3 | wire
    tag = bytearray()
    while number > 127:
        tag.append(number & 127 | 128)
        number >>= 7
    tag.append(number)
    written, valid = np.frombuffer(bytes(tag) + bytes(8), np.uint8), get_validity(array)
    mask = 0 if valid is None else valid.ctypes.data
    record = [op, written.ctypes.data, len(tag)]
    if op == kernel.BYTES:
        ends, data = get_text_buffers(array.cast(pa.string()))
        return [*record, data.ctypes.data, ends.ctypes.data, mask], [written, ends, data, valid], len(data)
    values = get_fixed_values(array, wanted)
    return [*record, values.ctypes.data, 0, mask], [written, values, valid], 0


def _choose_operation(name: str, kind: pa.DataType, part: ProtoField, types: ProtoTypes) -> tuple[int, int, pa.DataType]:
    """Return how values are written, the wire type, and the type that they are converted to first."""
    bits = kind.bit_width if pa.types.is_integer(kind) else 99
    written = part.type
    if part.label == "repeated":
        raise SinkError(f"column '{name}' cannot be written to the repeated field '{part.name}'")
    if written in {"int64", "int32"} and bits <= int(written[3:]):
        return kernel.VARINT, 0, pa.int64()
    if written in {"sint64", "sint32"} and bits <= int(written[4:]):
        return kernel.ZIGZAG, 0, pa.int64()
    if written == "sfixed64" and bits <= 64:
        return kernel.EIGHT, 1, pa.int64()
    if written == "double" and pa.types.is_floating(kind):
        return kernel.EIGHT, 1, pa.float64()
    if written == "float" and pa.types.is_float32(kind):
        return kernel.FOUR, 5, pa.float32()
    if written == "bool" and pa.types.is_boolean(kind):
        return kernel.ONE, 0, kind
    if written == "string" and (pa.types.is_string(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind)):
        return kernel.BYTES, 2, pa.string()
    if (
        pa.types.is_timestamp(kind)
        and "Timestamp" in written
        and types.resolve(written, part.scope) == "google.protobuf.Timestamp"
    ):
        return kernel.TIME, 2, pa.timestamp("us", "UTC")
    raise SinkError(f"column '{name}' of type '{kind}' cannot be written as the Protobuf type '{written}'")
