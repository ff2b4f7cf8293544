"""Tables of the fields that the columns of a schema are read from, for the decoder of Protobuf messages.

A column is found by the name of its field; one without a field is NULL. A field with presence (`optional`, of a oneof, in proto2)
that a message lacks is NULL, any other is 0, false or empty, as Protobuf defines it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.avro_schema import plan_integer, plan_text
from headrace.connectors.message_formats.columns import DecodedColumns
from headrace.connectors.message_formats.kernels import decoded as codes
from headrace.connectors.message_formats.kernels import protobuf_messages as kernel
from headrace.connectors.message_formats.paths import PathNode
from headrace.connectors.message_formats.proto_schema import ProtoField, ProtoTypes
from headrace.errors import SchemaError
from headrace.model.types import TIMESTAMP, Field, type_name

_INTEGERS = {  # how a number is written, and its wire type
    "int32": (kernel.SIGNED_32, 0), "int64": (kernel.SIGNED, 0), "uint32": (kernel.UNSIGNED_32, 0),
    "uint64": (kernel.UNSIGNED, 0), "sint32": (kernel.ZIGZAG, 0), "sint64": (kernel.ZIGZAG, 0),
    "fixed32": (kernel.UNSIGNED_32, 5), "fixed64": (kernel.UNSIGNED, 1), "sfixed32": (kernel.SIGNED_32, 5),
    "sfixed64": (kernel.SIGNED, 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MessageTable:
    """The records of fields, with numbers in place of addresses; `symbols` are the names of the enum of a field, by number."""

    fields: npt.NDArray[np.int64]
    slots: int
    symbols: Mapping[int, tuple[tuple[int, bytes], ...]]

    def point_to(self, decoded: DecodedColumns) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Return a copy with addresses, and the arrays that it points into."""
        fields, slots = self.fields.copy(), np.zeros(self.slots, np.int64)
        begin, size = fields.ctypes.data, fields.strides[0]
        for item in (kernel.OWNER, kernel.FIRST, kernel.END):
            fields[:, item] = begin + size * fields[:, item]
        fields[:, kernel.RIVAL] = np.where(fields[:, kernel.RIVAL], begin + size * fields[:, kernel.RIVAL], 0)
        fields[:, kernel.SLOTS] = slots.ctypes.data + 8 * fields[:, kernel.SLOTS]
        fields[:, kernel.SEEN] = -1
        kept: list[npt.NDArray[Any]] = [slots]
        for record in fields:
            index = record[kernel.NUMBER]
            if index >= 0:
                record[codes.VALUES], record[codes.SIZES] = (
                    lane.ctypes.data for lane in decoded.lanes[2 * index : 2 * index + 2]
                )
                record[codes.STATES] = decoded.states[index].ctypes.data
        for number, values in self.symbols.items():
            names = b"".join(name for _, name in values)
            text, sizes = np.frombuffer(names + bytes(8), np.uint8), np.array([len(name) for _, name in values], np.int64)
            starts = text.ctypes.data + np.cumsum(sizes) - sizes
            table = np.stack([np.array([value for value, _ in values], np.int64), starts, sizes], axis=1).astype(np.int64)
            fields[number, kernel.SYMBOLS], fields[number, kernel.SYMBOL_COUNT] = table.ctypes.data, len(values)
            kept += [text, table]
        kernel.fill_numbers(begin, begin + size * len(fields))
        return fields, kept


def compile_table(
    types: ProtoTypes, message: str, wanted: PathNode, columns: Sequence[Field], timestamp_format: str
) -> MessageTable:
    """Return the table that reads the given columns; raises SchemaError if a column never fits its field."""
    compiler = _TableCompiler(types, {column.name: index for index, column in enumerate(columns)}, timestamp_format)
    root = compiler.add(0)
    compiler.add_fields(message, wanted, 0, root)
    return MessageTable(np.array(compiler.records, np.int64), compiler.slots, compiler.symbols)


@dataclass(slots=True)
class _TableCompiler:
    types: ProtoTypes
    indices: Mapping[str, int]
    timestamp_format: str
    records: list[list[int]] = field(default_factory=list)
    symbols: dict[int, tuple[tuple[int, bytes], ...]] = field(default_factory=dict)
    slots: int = 0

    def add(self, owner: int) -> list[int]:
        record = [0] * kernel.WIDTH
        record[kernel.OWNER], record[kernel.NUMBER], record[codes.KIND] = owner, -1, codes.OBJECT
        self.records.append(record)
        return record

    def add_fields(self, message: str, wanted: PathNode, owner: int, record: list[int]) -> None:
        """Add the fields of a message that columns need, and complete the record of the message."""
        record[kernel.FIRST] = len(self.records)
        by_name = {part.name: part for part in self.types.messages[message]}
        oneofs: dict[str, list[int]] = {}
        count = 0
        for member in wanted.members.values():
            part = by_name.get(member.name)
            if part is not None and member.contains_any(self.indices):
                count += 1
                number = len(self.records)
                self._add_field(part, member, owner)
                if part.oneof:
                    oneofs.setdefault(part.oneof, []).append(number)
        for oneof, numbers in oneofs.items():
            for part in by_name.values():  # rivals without a column clear the others, too
                if part.oneof == oneof and part.number not in [self.records[number][kernel.FIELD] for number in numbers]:
                    numbers.append(len(self.records))
                    self._add_rival(part, owner)
                    count += 1
            for place, number in enumerate(numbers):
                self.records[number][kernel.RIVAL] = numbers[(place + 1) % len(numbers)]
        size = 1 << (2 * count).bit_length()
        record[kernel.SLOTS], record[kernel.MASK] = self.slots, size - 1
        self.slots += size
        record[kernel.END] = len(self.records)

    def _add_rival(self, part: ProtoField, owner: int) -> None:
        """Add a field of a oneof that no column needs: a message without fields, whatever it is."""
        record = self.add(owner)
        record[kernel.FIELD], record[kernel.WIRE] = part.number, self._find_wire(part)
        record[kernel.OP], record[codes.KIND] = kernel.RIVAL_ONLY, codes.OBJECT
        record[kernel.FIRST] = record[kernel.END] = len(self.records)

    def _find_wire(self, part: ProtoField) -> int:
        if part.type in _INTEGERS:
            return _INTEGERS[part.type][1]
        if part.type in {"double", "float", "bool", "string", "bytes"}:
            return {"double": 1, "float": 5, "bool": 0}.get(part.type, 2)
        return 0 if self.types.resolve(part.type, part.scope) in self.types.enums else 2

    def _add_field(self, part: ProtoField, member: PathNode, owner: int) -> None:
        column = next(member.list_columns(self.indices))
        if part.label == "repeated":
            raise SchemaError(f"column '{column.name}' needs the repeated field '{part.name}'", hint="a column has one value")
        number, record = len(self.records), self.add(owner)
        record[kernel.FIELD], record[kernel.WIRE] = part.number, self._find_wire(part)
        record[kernel.FIRST] = record[kernel.END] = number + 1
        full = "" if part.type in _INTEGERS or part.type in _SCALARS else self.types.resolve(part.type, part.scope)
        if full in self.types.messages and not (full == "google.protobuf.Timestamp" and member.column is not None):
            if member.column is not None:
                if not full.startswith("google.protobuf.") or not full.endswith("Value"):
                    raise _unfit_error(column, full)
                member = PathNode(part.name, None, {"value": PathNode("value", member.column)})
            record[kernel.OP] = kernel.MESSAGE
            self.add_fields(full, member, number, record)
            return
        if member.column is None:
            raise _unfit_error(column, part.type)
        op, plan = self._plan_field(part, full, column.type)
        if plan is None:
            raise _unfit_error(column, full or part.type)
        record[: len(plan)] = plan
        record[kernel.OP], record[kernel.NUMBER] = op, self.indices[column.name]
        is_parsed = op == kernel.STRING and plan[0] != codes.TEXT  # an empty text is no time and no number
        record[kernel.IMPLICIT] = 0 if part.has_presence or op == kernel.TIME or is_parsed else 1
        if op == kernel.ENUM_NAME:
            self.symbols[number] = tuple((value, name.encode()) for name, value in self.types.enums[full].items())

    def _plan_field(self, part: ProtoField, full: str, declared: pa.DataType) -> tuple[int, list[int] | None]:
        """Return how a field is written, and kind, scale and bounds of its column; None if it does not fit."""
        if part.type in _INTEGERS:
            return _INTEGERS[part.type][0], plan_integer(declared, self.timestamp_format or "date")
        if part.type in {"float", "double"}:
            fits = pa.types.is_float64(declared) or (part.type == "float" and pa.types.is_float32(declared))
            op = kernel.FLOAT_BITS if part.type == "float" else kernel.DOUBLE_BITS
            return op, [codes.DOUBLE if declared.bit_width == 64 else codes.FLOAT] if fits else None
        if part.type == "bool":
            return kernel.BOOL, [codes.BOOLEAN] if pa.types.is_boolean(declared) else None
        if part.type in {"string", "bytes"}:
            plan = plan_text(declared)
            return kernel.STRING, plan if part.type == "string" or pa.types.is_string(declared) else None
        if full == "google.protobuf.Timestamp":
            return kernel.TIME, [codes.INTEGER] if declared == TIMESTAMP else None
        if pa.types.is_string(declared):
            return kernel.ENUM_NAME, [codes.TEXT]
        return kernel.SIGNED_32, plan_integer(declared, "") if pa.types.is_integer(declared) else None


_SCALARS = {"double", "float", "bool", "string", "bytes", "map"}


def _unfit_error(column: Field, written: str) -> SchemaError:
    return SchemaError(
        f"column '{column.name}' {type_name(column.type)} does not fit the Protobuf type '{written}'",
        hint="declare the type that docs/formats.md maps it to",
    )
