"""Rows as text: JSON lines, and tables with aligned columns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO

import pyarrow as pa

_BATCH_ROWS = 1 << 14


def write_json_lines(file: TextIO, table: pa.Table) -> None:
    """Write each row as a JSON object on one line, with the columns in order."""
    for line in _iter_json_lines(table):
        file.write(line)
        file.write("\n")


def encode_json_lines(table: pa.Table) -> list[bytes]:
    """Return each row as a JSON object, with the columns in order."""
    return [line.encode() for line in _iter_json_lines(table)]


def encode_json_values(column: pa.ChunkedArray) -> list[str | None]:
    """Return each value of a column as JSON; NULL stays None."""
    return [None if value is None else json.dumps(to_json_value(value), ensure_ascii=False) for value in column.to_pylist()]


def _iter_json_lines(table: pa.Table) -> Iterator[str]:
    names = table.column_names
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        columns = [[to_json_value(value) for value in column.to_pylist()] for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, allow_nan=False)


def to_json_value(value: Any) -> Any:
    """Convert a value for JSON: times to ISO-8601 with Z; decimals, NaN and infinities to text."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def format_table(table: pa.Table, max_rows: int) -> str:
    """Return the first rows as a text table, numbers aligned to the right; a last line counts the omitted rows."""
    shown = table.slice(0, max_rows)
    cells = [[_format_cell(value) for value in column.to_pylist()] for column in shown.columns]
    lines = [""] * (shown.num_rows + 2)
    for name, kind, column in zip(shown.column_names, shown.schema.types, cells, strict=True):
        width = max(map(len, [name, *column]))
        fill = str.rjust if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) else str.ljust
        for index, text in enumerate([name, "-" * width, *column]):
            lines[index] += fill(text, width) + "  "
    more = table.num_rows - shown.num_rows
    return "\n".join([line.rstrip() for line in lines] + ([f"… {more} more"] if more else []))


def _format_cell(value: Any) -> str:
    return "NULL" if value is None else str(to_json_value(value)).replace("\n", "\\n")
