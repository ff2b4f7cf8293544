"""Columns of decoded messages: from the words and states that a kernel writes to Arrow arrays.

A kernel leaves a value that it cannot decide exactly as a *deferred* text, which Python converts here: floating-point numbers of
more than 19 digits, decimals of more than 18, unusual forms of times. These are few; a reject names its reason.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats import to_utc
from headrace.connectors.message_formats.kernels import PADDING_BYTES
from headrace.connectors.message_formats.kernels.decoded import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DEFERRED,
    DOUBLE,
    EPOCH,
    ESCAPED,
    FLOAT,
    INTEGER,
    LOST_DIGITS,
    MISSING,
    NOT_DATE,
    NOT_DECIMAL,
    NOT_NUMBER,
    NOT_TIMESTAMP,
    OUT_OF_RANGE,
    PRESENT,
    RAW,
    TEXT,
    TIMESTAMP,
)
from headrace.connectors.message_formats.kernels.texts import gather_texts, sum_sizes
from headrace.connectors.message_formats.rejects import Rejects
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.model.types import TIMESTAMP as TIMESTAMP_TYPE
from headrace.model.types import Field

Words = npt.NDArray[np.int64]

MIN_MICROS, MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999  # of the years 1 … 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pad_data(messages: Messages) -> npt.NDArray[np.uint8]:
    """Return the data with as many bytes of zero after the last message as kernels need; copied only if they are not there."""
    data, end = messages.data, int(messages.offsets[-1])
    if len(data) >= end + PADDING_BYTES and data.flags.c_contiguous and not data[end : end + PADDING_BYTES].any():
        return data
    padded = np.zeros(end + PADDING_BYTES, np.uint8)
    padded[:end] = data[:end]
    return padded


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """How kernels decode a column: kind, digits after the point, the bounds of its integer, and all digits of a decimal."""

    kind: int
    scale: int = 0
    low: int = 0
    high: int = 0
    precision: int = 0


_EPOCH_SCALES = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}
_LARGEST = (1 << 63) - 1


def choose_kind(kind: pa.DataType, timestamp_format: str) -> ColumnKind:
    """Return how a column of a declared type is decoded from text."""
    if pa.types.is_integer(kind):
        high = (1 << (kind.bit_width - 1)) - 1
        return ColumnKind(INTEGER, 0, -high - 1, high)
    if pa.types.is_decimal(kind):
        high = min(10**kind.precision - 1, _LARGEST)
        return ColumnKind(DECIMAL, kind.scale, -high, high, kind.precision)
    if kind == TIMESTAMP_TYPE and timestamp_format in _EPOCH_SCALES:
        return ColumnKind(EPOCH, _EPOCH_SCALES[timestamp_format], MIN_MICROS, MAX_MICROS)
    if kind == TIMESTAMP_TYPE:
        return ColumnKind(TEXT if timestamp_format else TIMESTAMP)
    if pa.types.is_floating(kind):
        return ColumnKind(DOUBLE if kind.bit_width == 64 else FLOAT)
    return ColumnKind(BOOLEAN if pa.types.is_boolean(kind) else DATE if pa.types.is_date(kind) else TEXT)


class ConversionError(ValueError):
    """A deferred value does not fit; the argument is the code of the reason."""

    def __init__(self, code: int) -> None:
        """Keep the code."""
        super().__init__(code)
        self.code = code


_NON_FINITE = {'"NaN': math.nan, '"Infinity': math.inf, '"-Infinity': -math.inf}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")


def _convert_double(text: str, kind: ColumnKind) -> tuple[int, int]:
    value = _NON_FINITE.get(text) or _NON_FINITE.get(f'"{text}')
    if value is None:
        if not _NUMBER.fullmatch(text):
            raise ConversionError(NOT_NUMBER)
        value = float(text)
        if math.isinf(value) or (kind.kind == FLOAT and abs(value) >= 2.0**128 - 2.0**103):
            raise ConversionError(OUT_OF_RANGE)
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits), 0


def _scale_decimal(text: str, scale: int, *, floors: bool) -> int:
    """Return the number · 10^scale as an integer; raises ConversionError if digits would be lost, unless it rounds down."""
    if not _NUMBER.fullmatch(text):
        raise ConversionError(NOT_DECIMAL)
    sign, digits, exponent = Decimal(text).as_tuple()
    value, power = int("".join(map(str, digits))), int(exponent) + scale
    value = -value if sign else value
    if power >= 0:
        if value and len(digits) + power > 80:
            raise ConversionError(OUT_OF_RANGE)
        return value * int(10**power) if value else 0
    divisor = int(10 ** min(-power, len(digits) + 1))
    if value % divisor and not floors:
        raise ConversionError(LOST_DIGITS)
    return value // divisor


def _convert_decimal(text: str, kind: ColumnKind) -> tuple[int, int]:
    """Return the low and the high word of a decimal."""
    value = _scale_decimal(text.removeprefix('"'), kind.scale, floors=False)
    if abs(value) >= 10**kind.precision:
        raise ConversionError(OUT_OF_RANGE)
    return int(np.uint64(value & (2**64 - 1)).astype(np.int64)), value >> 64


def _convert_epoch(text: str, kind: ColumnKind) -> tuple[int, int]:
    value = _scale_decimal(text, kind.scale, floors=True)
    if not kind.low <= value <= kind.high:
        raise ConversionError(OUT_OF_RANGE)
    return value, 0


def _convert_date(text: str, _: ColumnKind) -> tuple[int, int]:
    try:
        return date.fromisoformat(json.loads(f'{text}"')).toordinal() - _EPOCH.toordinal(), 0
    except ValueError:
        raise ConversionError(NOT_DATE) from None


def _convert_timestamp(text: str, _: ColumnKind) -> tuple[int, int]:
    try:
        elapsed = to_utc(json.loads(f'{text}"')) - _EPOCH
    except (ValueError, OverflowError):
        raise ConversionError(NOT_TIMESTAMP) from None
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds, 0


_CONVERTERS: dict[int, Callable[[str, ColumnKind], tuple[int, int]]] = {
    DOUBLE: _convert_double,
    FLOAT: _convert_double,
    DECIMAL: _convert_decimal,
    EPOCH: _convert_epoch,
    DATE: _convert_date,
    TIMESTAMP: _convert_timestamp,
}


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """What a kernel wrote: words by lane and row, states by column and row; column i has the lanes 2 · i and 2 · i + 1.

    `data` is what the addresses of texts point into.
    """

    data: npt.NDArray[np.uint8]
    lanes: Words
    states: npt.NDArray[np.uint8]
    kept: list[npt.NDArray[Any]] = field(default_factory=list)

    def keep(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Keep arrays as long as the columns: texts are in them."""
        self.kept.extend(arrays)

    @staticmethod
    def allocate(data: npt.NDArray[np.uint8], columns: int, rows: int) -> DecodedColumns:
        """Return columns without values."""
        return DecodedColumns(data, np.zeros((2 * columns, rows), np.int64), np.zeros((columns, rows), np.uint8))

    def convert_deferred(self, column: int, kind: ColumnKind) -> list[tuple[int, int, int]]:
        """Convert the deferred values of a column; return row, code and address of those that do not fit, now MISSING."""
        rejected = []
        base, (low, high) = self.data.ctypes.data, self.lanes[2 * column : 2 * column + 2]
        for row in np.flatnonzero(self.states[column] == DEFERRED).tolist():
            address = int(low[row])
            start = address - base
            is_raw = bool(high[row] & RAW)
            quote = not is_raw and start > 0 and self.data[start - 1] == ord('"')
            text = self.data[start - int(quote) : start + (int(high[row]) & ~(ESCAPED | RAW))].tobytes().decode()
            if is_raw and kind.kind in {DATE, TIMESTAMP}:
                text = json.dumps(text)[:-1]
            try:
                low[row], high[row] = _CONVERTERS[kind.kind](text, kind)
                self.states[column, row] = PRESENT
            except ConversionError as error:
                self.states[column, row] = MISSING
                rejected.append((row, error.code, address - base))
        return rejected

    def build_array(self, column: int, kind: ColumnKind, declared: pa.DataType) -> pa.Array:
        """Return a column as an Arrow array of its declared type; texts that are to be parsed remain texts."""
        low, high, states = self.lanes[2 * column], self.lanes[2 * column + 1], self.states[column]
        valid = states == PRESENT
        validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if kind.kind == TEXT:
            return self._build_texts(validity, states, low, high)
        return pa.Array.from_buffers(declared, len(states), [validity, pa.py_buffer(_narrow(low, high, kind, declared))])

    def _build_texts(self, validity: pa.Buffer | None, states: npt.NDArray[np.uint8], starts: Words, sizes: Words) -> pa.Array:
        texts = np.empty(sum_sizes(states, sizes) + 16, np.uint8)
        ends = np.empty(len(states) + 1, np.int32)
        gather_texts(states, starts, sizes, ends, texts.ctypes.data)
        return pa.Array.from_buffers(pa.string(), len(states), [validity, pa.py_buffer(ends), pa.py_buffer(texts)])


def _narrow(low: Words, high: Words, kind: ColumnKind, declared: pa.DataType) -> npt.NDArray[Any]:
    """Return the values of a column in the layout of Arrow."""
    if kind.kind == BOOLEAN:
        return np.packbits(low.astype(np.bool_), bitorder="little")
    if kind.kind == DECIMAL:
        return np.ascontiguousarray(np.stack([low, high], axis=1))
    if kind.kind == DOUBLE:
        return low
    if kind.kind == FLOAT:
        return low.view(np.float64).astype(np.float32)
    if declared.bit_width == 64:
        return low
    return low.astype(f"i{declared.bit_width // 8}")


def parse_times(texts: pa.Array, timestamp_format: str) -> pa.Array:
    """Return texts as times by a strptime format; NULL where they do not fit."""
    if "%z" not in timestamp_format:
        return pc.strptime(texts, format=timestamp_format, unit="us", error_is_null=True).cast(TIMESTAMP_TYPE)
    return pa.array([_parse_time(text, timestamp_format) for text in texts.to_pylist()], TIMESTAMP_TYPE)


def _parse_time(text: str | None, timestamp_format: str) -> datetime | None:
    try:
        return None if text is None else to_utc(datetime.strptime(text, timestamp_format))  # noqa: DTZ007 - `to_utc` adds it
    except (ValueError, OverflowError):
        return None


def assemble_rows(
    decoded: DecodedColumns,
    rejects: Rejects,
    checked: Sequence[Field],
    kinds: Sequence[ColumnKind],
    columns: Sequence[Field],
    offsets: npt.NDArray[np.int64],
) -> DecodedMessages:
    """Return the wanted ones of the decoded columns as rows; deferred values are converted, and may reject more messages."""
    names = {column.name for column in columns}
    arrays = {}
    for index, (column, kind) in enumerate(zip(checked, kinds, strict=True)):
        for row, code, position in decoded.convert_deferred(index, kind):
            rejects.add(row, code, index, position - int(offsets[row]))
        if column.name in names:
            arrays[column.name] = decoded.build_array(index, kind, column.type)
    return rejects.drop_rows(arrays, columns, checked)
