"""Conversion of input columns to their declared types.

A column that already has the type is returned unchanged. Any other column is cast without loss (apart from the rounding of
FLOAT), or refused with a ValueError or TypeError (Arrow's own errors are both), to which the caller adds the name of the file or
column.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.schema import TIMESTAMP, type_name

CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)  # the errors of conversions and of Arrow's parsers

_NAIVE_TIMESTAMP = pa.timestamp("us")


def conform_column(column: pa.ChunkedArray, kind: pa.DataType, timestamp_format: str = "") -> pa.ChunkedArray:
    """Return the column as type `kind`; `timestamp_format` (strptime, default ISO-8601) is the format of times in text columns.

    Raises one of the conversion errors above if the column does not fit the type.
    """
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return conform_column(column.cast(column.type.value_type), kind, timestamp_format)
    if _is_ambiguous_cast(column.type, kind):
        raise TypeError(f"{type_name(column.type)} is not converted to {type_name(kind)}")
    if kind == TIMESTAMP:
        return _to_timestamps(column, timestamp_format)
    return column.cast(kind)


def to_utc(value: str | datetime | date) -> datetime:
    """Return a point in time in UTC; a value without an offset is in UTC already. Raises ValueError for invalid text."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    elif not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _is_ambiguous_cast(source: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether Arrow would perform a cast whose meaning only the writer of the data knows."""
    if pa.types.is_date(kind) and pa.types.is_timestamp(source):
        return True
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return bool(pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_boolean(source))
    if pa.types.is_boolean(kind) or pa.types.is_boolean(source):
        return not pa.types.is_null(source) and not pa.types.is_string(source) and not pa.types.is_string(kind)
    return bool(pa.types.is_temporal(source) and not pa.types.is_string(kind))


def _to_timestamps(column: pa.ChunkedArray, timestamp_format: str) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return _parse_timestamps(column.cast(pa.string()), timestamp_format)
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(TIMESTAMP)


def _parse_timestamps(column: pa.ChunkedArray, timestamp_format: str) -> pa.ChunkedArray:
    if "%z" in timestamp_format:  # Arrow parses the offset and then ignores it
        return _parse_each(column, lambda text: to_utc(datetime.strptime(text, timestamp_format)))  # noqa: DTZ007
    if timestamp_format:
        return pc.strptime(column, format=timestamp_format, unit="us").cast(TIMESTAMP)
    for kind in (TIMESTAMP, _NAIVE_TIMESTAMP):  # first all with an offset, then all without
        try:
            return column.cast(kind).cast(TIMESTAMP)
        except pa.ArrowInvalid:
            continue
    return _parse_each(column, to_utc)


def _parse_each(column: pa.ChunkedArray, parse: Callable[[str], datetime]) -> pa.ChunkedArray:
    values = [None if text is None else parse(text) for text in column.to_pylist()]
    return pa.chunked_array([pa.array(values, TIMESTAMP)])
