"""JSON messages: one object in each, decoded by a compiled loop over the bytes.

A message fits if it is well-formed JSON in UTF-8 and every checked column has a value of its type, NULL or nothing. Members that
are no columns are checked for their syntax only. Of a name that occurs twice, the last value counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.columns import (
    ColumnKind,
    DecodedColumns,
    choose_kind,
    pad_data,
    parse_times,
)
from headrace.connectors.message_formats.json_encoder import encode_json
from headrace.connectors.message_formats.kernels import json_messages as kernel
from headrace.connectors.message_formats.kernels.decoded import (
    HIGH,
    KIND,
    LOW,
    NOT_TIMESTAMP,
    OBJECT,
    SCALE,
    SIZES,
    SKIP,
    STATES,
    TEXT,
    VALUES,
)
from headrace.connectors.message_formats.kernels.memory import is_ascii
from headrace.connectors.message_formats.kernels.scalars import make_powers_of_five
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.message_formats.paths import PathNode, place_columns
from headrace.connectors.message_formats.rejects import Rejects, decode_halves, is_large
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.model.types import Field, Schema

_POWERS = make_powers_of_five()


@dataclass(frozen=True, slots=True)
class _FieldTables:
    """The records of a kernel for a set of columns, with numbers and offsets in place of addresses.

    `indices` are the places of fields among the columns that are decoded; None for other fields.
    """

    records: npt.NDArray[np.int64]
    names: npt.NDArray[np.uint8]
    slots: int
    indices: tuple[int | None, ...]

    def point_to(self, decoded: DecodedColumns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a copy of the records, for one thread, with addresses; and the hash tables, which must live as long."""
        fields, slots = self.records.copy(), np.zeros(self.slots, np.int64)
        begin, size = fields.ctypes.data, fields.strides[0]
        fields[:, kernel.OWNER] = begin + size * fields[:, kernel.OWNER]
        fields[:, kernel.END] = begin + size * fields[:, kernel.END]
        fields[:, kernel.NAME] += self.names.ctypes.data
        fields[:, kernel.SLOTS] = slots.ctypes.data + 8 * fields[:, kernel.SLOTS]
        fields[:, [kernel.NEXT, kernel.INNER]] = begin
        fields[:, kernel.SEEN] = -1
        for number, index in enumerate(self.indices):
            if index is not None:
                fields[number, VALUES] = decoded.lanes[2 * index].ctypes.data
                fields[number, SIZES] = decoded.lanes[2 * index + 1].ctypes.data
                fields[number, STATES] = decoded.states[index].ctypes.data
        kernel.fill_slots(begin, begin + size * len(fields))
        return fields, slots


class JsonFormat:
    """JSON messages of a declared schema."""

    def __init__(self, schema: Schema, options: FormatOptions) -> None:
        """Place the columns on their paths; raises SchemaError if two columns need the same member."""
        self._schema, self._options = schema, options
        self._root = place_columns(schema, options)
        self._tables: dict[tuple[str, ...], _FieldTables] = {}

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`."""
        if is_large(messages):
            return decode_halves(self.decode, messages, columns)
        checked = list(self._schema) if self._options.checks_all else list(columns)
        kinds = [choose_kind(column.type, self._options.timestamp_format) for column in checked]
        data, rows = pad_data(messages), len(messages)
        decoded = DecodedColumns.allocate(data, len(checked), rows)
        rejects = Rejects.allocate("JSON", rows)
        tables = self._get_tables(checked, kinds)
        self._run_kernel(messages, decoded, tables, rejects)
        arrays = {}
        wanted = {column.name for column in columns}
        if messages.absent is not None:
            rejects.codes[messages.absent] = 0
        for index, (column, kind) in enumerate(zip(checked, kinds, strict=True)):
            for row, code, position in decoded.convert_deferred(index, kind):
                rejects.add(row, code, index, position - int(messages.offsets[row]))
            if column.name in wanted or (kind.kind == TEXT and column.type != pa.string()):
                arrays[column.name] = self._build_array(decoded, index, column, kind, rejects)
        return rejects.drop_rows(arrays, columns, checked)

    def encode(self, table: pa.Table) -> Messages:
        """See `MessageFormat`."""
        return encode_json(table, self._options)

    def _run_kernel(self, messages: Messages, decoded: DecodedColumns, tables: _FieldTables, rejects: Rejects) -> None:
        offsets, base = np.array(messages.offsets, np.int64), decoded.data.ctypes.data
        fields, slots = tables.point_to(decoded)
        kernel.decode_messages(
            base, offsets, is_ascii(base + int(offsets[0]), base + int(offsets[-1])), fields, _POWERS,
            rejects.codes, rejects.columns, rejects.positions,
        )  # fmt: skip
        del slots  # the records point into it

    def _build_array(self, decoded: DecodedColumns, index: int, column: Field, kind: ColumnKind, rejects: Rejects) -> pa.Array:
        array = decoded.build_array(index, kind, column.type)
        if array.type == column.type:
            return array
        times = parse_times(array, self._options.timestamp_format)
        for row in np.flatnonzero(np.asarray(times.is_null()) & np.asarray(array.is_valid())).tolist():
            rejects.add(row, NOT_TIMESTAMP, index, 0)
        return times

    def _get_tables(self, columns: Sequence[Field], kinds: Sequence[ColumnKind]) -> _FieldTables:
        key = tuple(column.name for column in columns)
        if key not in self._tables:
            self._tables[key] = _make_tables(self._root, columns, kinds)
        return self._tables[key]


def _make_tables(root: PathNode, columns: Sequence[Field], kinds: Sequence[ColumnKind]) -> _FieldTables:
    """Write the members as records, in depth-first order."""
    places = {column.name: index for index, column in enumerate(columns)}
    records: list[list[int]] = []
    indices: list[int | None] = []
    names, slots = bytearray(), 0

    def add(member: PathNode, owner: int) -> None:
        nonlocal slots
        record, number, name = [0] * kernel.FIELD_WIDTH, len(records), member.name.encode("utf-8", "surrogatepass")
        if number == 0:
            name = b"\xff"  # which no message contains
        records.append(record)
        record[kernel.OWNER], record[kernel.NAME], record[kernel.NAME_SIZE] = owner, len(names), len(name)
        record[kernel.PREDICTABLE] = not any(byte < 32 or byte in b'"\\' for byte in name)
        names.extend(name + b'"')
        index = places.get(member.column.name) if member.column is not None else None
        indices.append(index)
        if index is not None:
            kind = kinds[index]
            record[KIND], record[SCALE] = kind.kind, kind.scale
            record[LOW], record[HIGH], record[kernel.NUMBER] = kind.low, kind.high, index
        elif member.column is None:
            size = 1 << (2 * len(member.members)).bit_length()
            record[kernel.SLOTS], record[kernel.MASK] = slots, size - 1
            slots += size
            for child in member.members.values():
                add(child, number)
            is_read = number == 0 or any(below[KIND] for below in records[number + 1 :])
            record[KIND] = OBJECT if is_read else SKIP
        record[kernel.END] = len(records)

    add(root, 0)
    text = np.frombuffer(bytes(names) + bytes(32), np.uint8)
    return _FieldTables(np.array(records, np.int64), text, slots, tuple(indices))
