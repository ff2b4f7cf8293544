"""Programs that read the columns of a schema out of Avro records of a writer's schema.

The declared columns are the reader's schema: fields are found by name, whatever their order; a field that no column needs is
skipped, and a column without a field is NULL. A value is converted as Avro promotes it: int → long → float → double, bytes →
string; an enum is text. Integers may be declared narrower than they are written: a value out of range is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.columns import MAX_MICROS, MIN_MICROS, DecodedColumns, choose_kind
from headrace.connectors.message_formats.kernels import avro_messages as kernel
from headrace.connectors.message_formats.kernels import decoded as codes
from headrace.connectors.message_formats.paths import PathNode
from headrace.errors import SchemaError
from headrace.model.types import TIMESTAMP, Field, type_name

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_TIME_UNITS = {
    "timestamp-micros": 1, "timestamp-millis": 1000, "local-timestamp-micros": 1, "local-timestamp-millis": 1000,
    "epoch_us": 1, "epoch_ms": 1000, "epoch_s": 1_000_000,
}  # fmt: skip
_MIN_DAYS, _MAX_DAYS = -719_162, 2_932_896
_LARGEST = (1 << 63) - 1


def parse_avro(text: str) -> AvroSchema:
    """Return the schema of a writer; raises SchemaError if the text is none."""
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise SchemaError("the Avro schema is not JSON", detail=str(error)) from None
    names: dict[str, dict[str, Any]] = {}
    root = _resolve(definition, "", names, 0)
    if not isinstance(root, dict) or root["type"] != "record":
        raise SchemaError("the Avro schema is not a record", hint="declare a record whose fields are the columns")
    return AvroSchema(root, names)


def _resolve(definition: Any, namespace: str, names: dict[str, dict[str, Any]], depth: int) -> Any:
    """Return a definition with types as objects, unions as lists and named types under their full names."""
    if depth > 100:
        raise SchemaError("the Avro schema is nested deeper than 100 levels")
    if isinstance(definition, str):
        if definition in _PRIMITIVES:
            return {"type": definition}
        full = definition if "." in definition or not namespace else f"{namespace}.{definition}"
        if full not in names and definition not in names:
            raise SchemaError(f"the Avro schema names the unknown type '{definition}'")
        return {"type": "reference", "name": full if full in names else definition}
    if isinstance(definition, list):
        return [_resolve(branch, namespace, names, depth + 1) for branch in definition]
    if not isinstance(definition, dict) or "type" not in definition:
        raise SchemaError(f"the Avro schema has the invalid type {json.dumps(definition)[:100]}")
    kind = definition["type"]
    if isinstance(kind, dict | list) or (isinstance(kind, str) and kind not in _COMPLEX | _PRIMITIVES):
        return _resolve(kind, namespace, names, depth + 1)
    resolved = dict(definition)
    if kind in {"record", "error", "enum", "fixed"}:
        name = str(definition.get("name", ""))
        space = str(definition.get("namespace", namespace))
        full = name if "." in name or not space else f"{space}.{name}"
        names[full] = resolved
        resolved.update(type="record" if kind == "error" else kind, name=full)
        inner = full.rpartition(".")[0]
        if resolved["type"] == "record":
            resolved["fields"] = [
                {"name": str(part["name"]), "type": _resolve(part["type"], inner, names, depth + 1)}
                for part in definition.get("fields", [])
            ]
    elif kind in {"array", "map"}:
        resolved["inner"] = _resolve(definition["items" if kind == "array" else "values"], namespace, names, depth + 1)
    return resolved


_COMPLEX = {"record", "error", "enum", "fixed", "array", "map"}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A writer's schema: its record, and its named types."""

    root: dict[str, Any]
    names: Mapping[str, dict[str, Any]]

    def find(self, definition: Any) -> Any:
        """Return the definition behind a reference."""
        return self.names[definition["name"]] if _kind_of(definition) == "reference" else definition


def _kind_of(definition: Any) -> str:
    return "union" if isinstance(definition, list) else str(definition["type"])


@dataclass(frozen=True, slots=True)
class RecordProgram:
    """Instructions with numbers in place of addresses: of other instructions, of symbols, and of the columns that are decoded."""

    steps: npt.NDArray[np.int64]
    symbols: tuple[tuple[bytes, ...], ...]

    def point_to(self, decoded: DecodedColumns) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Return a copy with addresses, and the arrays that it points into."""
        steps, kept = self.steps.copy(), list[npt.NDArray[Any]]()
        begin, size = steps.ctypes.data, steps.strides[0]
        for step in steps:
            if step[codes.KIND] != codes.SKIP:
                index = step[kernel.NUMBER]
                step[codes.VALUES], step[codes.SIZES] = (lane.ctypes.data for lane in decoded.lanes[2 * index : 2 * index + 2])
                step[codes.STATES] = decoded.states[index].ctypes.data
            if step[kernel.OP] == kernel.SYMBOL:
                names = self.symbols[step[kernel.JUMP]]
                text = np.frombuffer(b"".join(names) + bytes(8), np.uint8)
                sizes = np.array([len(name) for name in names], np.int64)
                table = np.stack([text.ctypes.data + np.cumsum(sizes) - sizes, sizes], axis=1).astype(np.int64)
                step[kernel.JUMP] = table.ctypes.data
                kept += [text, table]
            else:
                step[kernel.JUMP] = begin + size * step[kernel.JUMP]
        return steps, kept


def compile_program(schema: AvroSchema, wanted: PathNode, columns: Sequence[Field], timestamp_format: str) -> RecordProgram:
    """Return the program that reads the given columns; raises SchemaError if a column never fits the writer's schema."""
    compiler = _Compiler(schema, {column.name: index for index, column in enumerate(columns)}, timestamp_format)
    compiler.emit(schema.root, wanted)
    compiler.add(kernel.STOP)
    compiler.emit_subroutines()
    return RecordProgram(np.array(compiler.steps, np.int64), tuple(compiler.symbols))


@dataclass(slots=True)
class _Compiler:
    schema: AvroSchema
    indices: Mapping[str, int]
    timestamp_format: str
    steps: list[list[int]] = field(default_factory=list)
    symbols: list[tuple[bytes, ...]] = field(default_factory=list)
    calls: dict[str, list[int]] = field(default_factory=dict)  # of types that are skipped: the instructions that call them

    def add(self, op: int, argument: int = 0, jump: int = 0) -> list[int]:
        step = [0] * kernel.WIDTH
        step[kernel.OP], step[kernel.ARGUMENT], step[kernel.JUMP], step[kernel.NUMBER] = op, argument, jump, -1
        self.steps.append(step)
        return step

    def emit(self, definition: Any, wanted: PathNode | None) -> None:
        """Add the instructions that read a value; they store it if it is wanted."""
        definition = self.schema.find(definition)
        kind = _kind_of(definition)
        if wanted is not None and not wanted.contains_any(self.indices):
            wanted = None
        if kind == "union":
            self._emit_union(definition, wanted)
        elif kind == "record":
            self._emit_record(definition, wanted)
        elif wanted is not None and kind != "null":
            self._emit_column(definition, wanted)
        elif kind in {"array", "map"}:
            block = len(self.steps)
            self.add(kernel.BLOCK, 0 if kind == "array" and self._is_empty(definition["inner"], 0) else 1)
            if kind == "map":
                self.add(kernel.BYTES)
            self.emit(definition["inner"], None)
            self.add(kernel.REPEAT, jump=block)
            self.steps[block][kernel.JUMP] = len(self.steps)
        else:
            self._emit_scalar(definition, kind)

    def _emit_scalar(self, definition: Any, kind: str) -> list[int] | None:
        if kind == "null":
            return None
        if kind == "fixed":
            return self.add(kernel.FIXED, int(definition["size"]))
        if kind == "enum":
            self.symbols.append(tuple(str(symbol).encode() for symbol in definition["symbols"]))
            return self.add(kernel.SYMBOL, len(definition["symbols"]), len(self.symbols) - 1)
        return self.add(_OPS[kind])

    def _emit_record(self, definition: Any, wanted: PathNode | None) -> None:
        if wanted is None:
            self.calls.setdefault(definition["name"], []).append(len(self.steps))
            self.add(kernel.CALL)
            return
        if wanted.column is not None:
            raise self._unfit_error(definition, wanted.column)
        for part in definition["fields"]:
            self.emit(part["type"], wanted.members.get(part["name"]))

    def _emit_union(self, branches: Sequence[Any], wanted: PathNode | None) -> None:
        self.add(kernel.BRANCH, len(branches))
        table = [self.add(kernel.GO) for _ in branches]
        ends, unfit = [], 0
        for target, branch in zip(table, branches, strict=True):
            target[kernel.JUMP] = len(self.steps)
            mark = len(self.steps)
            try:
                self.emit(branch, wanted)
            except SchemaError:
                del self.steps[mark:]
                for callers in self.calls.values():
                    callers[:] = [caller for caller in callers if caller < mark]
                self.add(kernel.UNFIT)[kernel.NUMBER] = self._any_index(wanted)
                unfit += 1
            ends.append(self.add(kernel.GO))
        for end in ends:
            end[kernel.JUMP] = len(self.steps)
        if unfit and unfit == sum(_kind_of(branch) != "null" for branch in branches):
            column = next(iter(wanted.list_columns(self.indices))) if wanted is not None else None
            raise self._unfit_error(branches, column)

    def _any_index(self, wanted: PathNode | None) -> int:
        return -1 if wanted is None else next(self.indices[column.name] for column in wanted.list_columns(self.indices))

    def _emit_column(self, definition: Any, wanted: PathNode) -> None:
        kind, column = _kind_of(definition), wanted.column
        plan = None if column is None else _plan_value(definition, kind, column.type, self.timestamp_format)
        step = self._emit_scalar(definition, kind) if plan is not None else None
        if plan is None or step is None or column is None:
            raise self._unfit_error(definition, column or next(iter(wanted.list_columns(self.indices))))
        step[: len(plan)] = plan
        if kind == "bytes" and definition.get("logicalType") == "decimal":
            step[kernel.ARGUMENT] = 1
        step[kernel.NUMBER] = self.indices[column.name]

    def _unfit_error(self, definition: Any, column: Field | None) -> SchemaError:
        name, kind = ("", "") if column is None else (column.name, type_name(column.type))
        written = {"type": _kind_of(definition)} if isinstance(definition, list) else definition
        logical = written.get("logicalType")
        return SchemaError(
            f"column '{name}' {kind} does not fit the Avro type '{written['type']}'{f' ({logical})' if logical else ''}",
            hint="declare the type that docs/formats.md maps it to",
        )

    def _is_empty(self, definition: Any, depth: int) -> bool:
        """Return whether a value has no bytes."""
        definition = self.schema.find(definition)
        kind = _kind_of(definition)
        if kind == "record" and depth < 100:
            return all(self._is_empty(part["type"], depth + 1) for part in definition["fields"])
        return kind == "null" or (kind == "fixed" and int(definition["size"]) == 0)

    def emit_subroutines(self) -> None:
        """Add the records that are skipped, each once: a record may contain itself."""
        done: dict[str, int] = {}
        while pending := next((name for name in self.calls if name not in done), None):
            done[pending] = len(self.steps)
            for part in self.schema.names[pending]["fields"]:
                self.emit(part["type"], None)
            self.add(kernel.RETURN)
        for name, callers in self.calls.items():
            for caller in callers:
                self.steps[caller][kernel.JUMP] = done[name]


_OPS = {
    "int": kernel.VARINT, "long": kernel.VARINT, "float": kernel.FLOAT_BITS, "double": kernel.DOUBLE_BITS,
    "boolean": kernel.ONE_BYTE, "bytes": kernel.BYTES, "string": kernel.BYTES,
}  # fmt: skip


def _plan_value(definition: Any, kind: str, declared: pa.DataType, timestamp_format: str) -> list[int] | None:
    """Return kind, scale and bounds of a column that is read from a type; None if it does not fit."""
    logical = definition.get("logicalType")
    if kind in {"int", "long"}:
        return plan_integer(declared, str(logical or timestamp_format))
    if kind in {"float", "double"}:
        fits = pa.types.is_float64(declared) or (kind == "float" and pa.types.is_float32(declared))
        return [codes.DOUBLE if declared.bit_width == 64 else codes.FLOAT] if fits else None
    if kind == "boolean":
        return [codes.BOOLEAN] if pa.types.is_boolean(declared) else None
    if kind in {"bytes", "fixed"} and logical == "decimal":
        precision, scale = int(definition.get("precision", 0)), int(definition.get("scale", 0))
        fits = pa.types.is_decimal(declared) and scale == declared.scale and precision <= declared.precision
        return [codes.DECIMAL, scale] if fits else None
    if kind == "string":
        return plan_text(declared)
    return [codes.TEXT] if pa.types.is_string(declared) and kind in {"bytes", "enum"} else None


def plan_text(declared: pa.DataType) -> list[int] | None:
    """Return kind, scale and bounds of a column that is read from text."""
    if pa.types.is_string(declared) or pa.types.is_date(declared) or declared == TIMESTAMP or pa.types.is_decimal(declared):
        kind = choose_kind(declared, "")
        return [kind.kind, kind.scale, kind.low, kind.high]
    return None


def plan_integer(declared: pa.DataType, unit: str) -> list[int] | None:
    """Return kind, factor and bounds of a column that is read from an integer, which may count days or parts of seconds."""
    if pa.types.is_integer(declared):
        high = (1 << (declared.bit_width - 1)) - 1
        return [codes.INTEGER, 1, -high - 1, high]
    if pa.types.is_floating(declared):
        return [codes.DOUBLE if declared.bit_width == 64 else codes.FLOAT]
    if pa.types.is_decimal(declared) and declared.scale <= 18:
        high = min(10**declared.precision - 1, _LARGEST)
        return [codes.DECIMAL, 10**declared.scale, -high, high]
    if declared == TIMESTAMP and unit in _TIME_UNITS:
        return [codes.INTEGER, _TIME_UNITS[unit], MIN_MICROS, MAX_MICROS]
    return [codes.INTEGER, 1, _MIN_DAYS, _MAX_DAYS] if pa.types.is_date(declared) and unit == "date" else None
