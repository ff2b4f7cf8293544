"""Protobuf messages: fields by number, with the types from a .proto text, a registry, or the columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.columns import DecodedColumns, assemble_rows, choose_kind, pad_data
from headrace.connectors.message_formats.kernels import protobuf_messages as kernel
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.message_formats.paths import place_columns
from headrace.connectors.message_formats.proto_schema import ProtoTypes, parse_proto
from headrace.connectors.message_formats.protobuf_encoder import derive_proto, encode_protobuf
from headrace.connectors.message_formats.protobuf_tables import MessageTable, compile_table
from headrace.connectors.message_formats.registry import HEADER_BYTES, RegisteredSchema, open_registry, split_by_schema
from headrace.connectors.message_formats.rejects import Rejects, decode_halves, is_large
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.errors import SchemaError
from headrace.model.types import Field, Schema

_MAX_TABLES = 1000


class ProtobufFormat:
    """Protobuf messages of a declared schema."""

    def __init__(self, schema: Schema, options: FormatOptions) -> None:
        """Check the message type, if an option has it; raises SchemaError if a column does not fit it."""
        options.refuse_patterns()
        self._schema, self._options = schema, options
        self._root = place_columns(schema, options)
        self._registry = open_registry(options.registry) if options.registry else None
        self._own: ProtoTypes | None = None
        if self._registry is None:
            self._own = parse_proto(options.schema_text or derive_proto(schema.to_arrow()))
            name = self._own.find_message(options.message)
            compile_table(self._own, name, self._root, tuple(schema), options.timestamp_format)
        self._tables: dict[tuple[int, int, tuple[str, ...]], MessageTable | str] = {}

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`."""
        if is_large(messages):
            return decode_halves(self.decode, messages, columns)
        checked = tuple(self._schema if self._options.checks_all else columns)
        data, rows = pad_data(messages), len(messages)
        rejects, decoded = Rejects.allocate("Protobuf message", rows), DecodedColumns.allocate(data, len(checked), rows)
        starts = np.array(messages.offsets[:-1], np.int64)
        ends = np.array(messages.offsets[1:], np.int64)
        for (schema_id, place), group in self._split(messages, data, starts, ends, rejects).items():
            table = self._find_table(schema_id, place, checked)
            if isinstance(table, str):
                rejects.add_text(group, table)
                continue
            fields, kept = table.point_to(decoded)
            kernel.decode_fields(
                data.ctypes.data, starts, ends, group, fields.ctypes.data, rejects.codes, rejects.columns, rejects.positions
            )
            decoded.keep([fields, *kept])
        kinds = [choose_kind(column.type, "") for column in checked]
        return assemble_rows(decoded, rejects, checked, kinds, columns, messages.offsets)

    def _split(
        self,
        messages: Messages,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        rejects: Rejects,
    ) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
        """Return the rows of each message type of each schema, and move the starts behind what names them."""
        if self._registry is None:
            present = np.arange(len(messages)) if messages.absent is None else np.flatnonzero(~messages.absent)
            return {(0, 1): present}
        groups = {}
        for schema_id, rows in split_by_schema(messages, data, rejects).items():
            starts[rows] += HEADER_BYTES
            places = np.empty(len(rows), np.int64)
            kernel.read_indexes(data.ctypes.data, starts, ends, rows, places)
            for place in np.unique(places).tolist():
                groups[schema_id, place] = rows[places == place]
        return groups

    def _find_table(self, schema_id: int, place: int, columns: tuple[Field, ...]) -> MessageTable | str:
        """Return the table for a message type, or why its messages are rejected."""
        if place < 0:
            return "the message does not name its type after the header of the registry"
        key = (schema_id, place, tuple(column.name for column in columns))
        table = self._tables.get(key)
        if table is not None:
            return table
        if self._own is not None:
            name = self._own.find_message(self._options.message)
            table = compile_table(self._own, name, self._root, columns, self._options.timestamp_format)
        else:
            registered = None if self._registry is None else self._registry.find_schema(schema_id)
            if registered is None:
                return f"the registry has no schema with id {schema_id}"
            table = self._compile_registered(registered, schema_id, place, columns)
        while len(self._tables) >= _MAX_TABLES:
            del self._tables[next(iter(self._tables))]
        self._tables[key] = table
        return table

    def _compile_registered(
        self, registered: RegisteredSchema, schema_id: int, place: int, columns: tuple[Field, ...]
    ) -> MessageTable | str:
        if registered.type != "PROTOBUF":
            return f"schema {schema_id} of the registry is {registered.type}, not PROTOBUF"
        indexes = tuple((place >> (15 * level) & 0x7FFF) - 1 for level in range(4) if place >> (15 * level))
        try:
            types = parse_proto(registered.text, dict(registered.references))
            return compile_table(types, types.find_by_indexes(indexes), self._root, columns, self._options.timestamp_format)
        except SchemaError as error:
            return f"{error.message}, in schema {schema_id} of the registry"

    def encode(self, table: pa.Table) -> Messages:
        """See `MessageFormat`; with a registry, the schema is registered first."""
        text = self._options.schema_text or derive_proto(table.schema)
        types = parse_proto(text)
        name, header = types.find_message(self._options.message), b""
        if self._registry is not None:
            place = types.children[""].index(name) if name in types.children[""] else -1
            if place < 0:
                raise SchemaError(f"message '{name}' is nested in another", hint="encode a message at the top of the file")
            schema_id = self._registry.register(self._options.subject, RegisteredSchema("PROTOBUF", text))
            header = b"\0" + schema_id.to_bytes(4, "big") + (b"\0" if place == 0 else bytes([2]) + _write_zigzag(place))
        return encode_protobuf(table, types, name, header)


def _write_zigzag(value: int) -> bytes:
    value, groups = value << 1, bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
