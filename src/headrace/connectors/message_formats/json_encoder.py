"""Rows as JSON objects: Arrow converts numbers to text, a compiled loop writes the objects.

Values are written as sinks of files write them: times as ISO-8601 with Z, decimals and non-finite numbers as text, NULL as null.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.message_formats.arrow_buffers import get_text_buffers, get_validity
from headrace.connectors.message_formats.kernels import json_encoding as kernel
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.messages import Messages
from headrace.errors import SinkError

_EPOCH_UNITS = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}


@dataclass(slots=True)
class _Node:
    """An object to be written: names with the column or the object below them."""

    members: dict[str, _Node | int] = field(default_factory=dict)


def encode_json(table: pa.Table, options: FormatOptions) -> Messages:
    """Return a JSON object for each row, with the columns at their paths, the others in order."""
    order, prefixes, suffix = _lay_out(table.column_names, options)
    rows, room = table.num_rows, len(suffix) * table.num_rows
    records = np.zeros((len(order), kernel.WIDTH), np.int64)
    kept: list[Any] = []  # what the records point into
    for place, (index, prefix) in enumerate(zip(order, prefixes, strict=True)):
        column = table.column(index)
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        record, size, used = _describe_column(array, options.timestamp_format)
        text = _to_bytes(prefix)
        records[place] = record
        records[place, [kernel.PREFIX, kernel.SIZE]] = text.ctypes.data, len(prefix)
        room += size + rows * (len(prefix) + kernel.LONGEST_VALUE)
        kept += [text, *used]
    target, ends, end_text = np.empty(room + 64, np.uint8), np.empty(rows + 1, np.int64), _to_bytes(suffix)
    kernel.encode_objects(records.ctypes.data, len(order), end_text.ctypes.data, len(suffix), rows, target.ctypes.data, ends)
    del kept
    return Messages(ends, target)


def _to_bytes(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text + bytes(8), np.uint8)


def _lay_out(names: list[str], options: FormatOptions) -> tuple[list[int], list[bytes], bytes]:
    """Return the columns in the order in which they are written, the text before each, and the text after the last."""
    root = _Node()
    for index, name in enumerate(names):
        node = root
        *parents, last = options.path_of(name)
        for parent in parents:
            below = node.members.setdefault(parent, _Node())
            if not isinstance(below, _Node):
                raise _shared_error(name)
            node = below
        if last in node.members:
            raise _shared_error(name)
        node.members[last] = index
    order, prefixes, text = list[int](), list[bytes](), bytearray()

    def write(node: _Node) -> None:
        nonlocal text
        separator = "{"
        for member, below in node.members.items():
            text += f"{separator}{json.dumps(member, ensure_ascii=False)}:".encode("utf-8", "replace")
            separator = ","
            if isinstance(below, _Node):
                write(below)
            else:
                order.append(below)
                prefixes.append(bytes(text))
                text = bytearray()
        text += b"}" if node.members else b"{}"

    write(root)
    return order, prefixes, bytes(text)


def _shared_error(name: str) -> SinkError:
    return SinkError(f"column '{name}' has the place of another column", hint="give it another path, or leave it out")


def _describe_column(array: pa.Array, timestamp_format: str) -> tuple[list[int], int, list[Any]]:
    """Return the record of a column, how many bytes its texts need at most, and what the record points into."""
    valid = get_validity(array)
    mask = 0 if valid is None else valid.ctypes.data
    if pa.types.is_boolean(array.type):
        values = np.asarray(array.fill_null(False)).view(np.uint8)
        return [kernel.TRUTH, 0, 0, values.ctypes.data, 0, mask], 0, [values, valid]
    if pa.types.is_timestamp(array.type) and not timestamp_format:
        micros = np.asarray(array.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).fill_null(0))
        return [kernel.TIME, 0, 0, micros.ctypes.data, 0, mask], 0, [micros, valid]
    kind, texts = _to_texts(array, timestamp_format)
    ends, data = get_text_buffers(texts)
    special = int(np.count_nonzero((data < 32) | (data == 34) | (data == 92))) if kind == kernel.QUOTED else 0
    return [kind, 0, 0, data.ctypes.data, ends.ctypes.data, mask], len(data) + 5 * special, [ends, data, valid]


def _to_texts(array: pa.Array, timestamp_format: str) -> tuple[int, pa.Array]:
    """Return how values are written, and their texts."""
    kind = array.type
    if pa.types.is_floating(kind):
        quoted = pc.if_else(pc.is_finite(array), pa.scalar(None, pa.string()), _name_non_finite(array))
        return kernel.LITERAL, pc.coalesce(quoted, array.cast(pa.string()))
    if pa.types.is_integer(kind):
        return kernel.LITERAL, array.cast(pa.string())
    if pa.types.is_decimal(kind):
        return kernel.QUOTED, _write_decimals(array)
    if timestamp_format in _EPOCH_UNITS and pa.types.is_timestamp(kind):
        return kernel.LITERAL, _write_epochs(array, _EPOCH_UNITS[timestamp_format])
    if pa.types.is_timestamp(kind):
        return kernel.QUOTED, pc.strftime(
            pc.floor_temporal(array, unit="second").cast(pa.timestamp("s", "UTC")), timestamp_format
        )
    if pa.types.is_date(kind) or pa.types.is_large_string(kind):
        return kernel.QUOTED, array.cast(pa.string())
    if not pa.types.is_string(kind):
        raise SinkError(f"a column of type '{kind}' cannot be written as JSON", hint="cast it in the query")
    return kernel.QUOTED, array


def _name_non_finite(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'))


def _write_decimals(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if text is None else f"{Decimal(text):f}" for text in texts.to_pylist()], pa.string())


def _write_epochs(array: pa.Array, unit: int) -> pa.Array:
    micros = array.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    whole = pc.divide(micros, unit)
    if pc.all(pc.equal(pc.multiply(whole, unit), micros)).as_py() in {True, None}:
        return whole.cast(pa.string())
    quotients = pc.divide(micros.cast(pa.decimal128(19, 0)), pa.scalar(Decimal(unit), pa.decimal128(8, 0)))
    return _write_decimals(quotients.cast(pa.decimal128(38, 3 if unit == 1_000 else 6)))  # no digits beyond microseconds
