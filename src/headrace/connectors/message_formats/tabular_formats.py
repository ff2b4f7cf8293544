"""Messages of CSV, one record in each, and messages that are one text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.message_formats.arrow_buffers import get_text_buffers
from headrace.connectors.message_formats.columns import DecodedColumns, assemble_rows, choose_kind, pad_data
from headrace.connectors.message_formats.kernels import csv_messages as kernel
from headrace.connectors.message_formats.kernels import decoded as codes
from headrace.connectors.message_formats.kernels.memory import is_ascii
from headrace.connectors.message_formats.kernels.scalars import make_powers_of_five
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.message_formats.rejects import Rejects, decode_halves, is_large
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.errors import SchemaError, SinkError
from headrace.model.types import Field, Schema

_POWERS = make_powers_of_five()
_NEEDS_QUOTES = r'["\n\r{delimiter}]|^$'


class RawFormat:
    """The value of a message as the text of the only column."""

    def __init__(self, schema: Schema, _: FormatOptions) -> None:
        """Check that there is one column, of texts."""
        if len(schema) != 1 or schema.fields[0].type != pa.string():
            raise SchemaError("the format 'raw' needs one column of type STRING", detail=f"columns: {', '.join(schema.names)}")
        self._columns = schema.fields

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`; a message that is not UTF-8 is rejected."""
        if is_large(messages):
            return decode_halves(self.decode, messages, columns)
        data, rows = pad_data(messages), len(messages)
        offsets, base = np.array(messages.offsets, np.int64), data.ctypes.data
        rejects, decoded = Rejects.allocate("text", rows), DecodedColumns.allocate(data, 1, rows)
        decoded.lanes[0], decoded.lanes[1] = base + offsets[:-1], np.diff(offsets)
        decoded.states[0] = codes.PRESENT if messages.absent is None else np.where(messages.absent, codes.MISSING, codes.PRESENT)
        if not is_ascii(base + int(offsets[0]), base + int(offsets[-1])):
            kernel.check_utf8(base, offsets, rejects.codes, codes.NOT_UTF8)
        return assemble_rows(decoded, rejects, self._columns, [choose_kind(pa.string(), "")], columns, offsets)

    def encode(self, table: pa.Table) -> Messages:
        """See `MessageFormat`; a table must have one column of texts, of which NULL becomes a message without a value."""
        if table.num_columns != 1 or not pa.types.is_string(table.schema.field(0).type):
            raise SinkError("the format 'raw' writes one column of type STRING", hint="select one column, and cast it")
        column = table.column(0).combine_chunks()
        return _make_messages(column, np.asarray(column.is_null()) if column.null_count else None)


class CsvFormat:
    """Records of CSV without a header; the values are those of the declared columns, in order."""

    def __init__(self, schema: Schema, options: FormatOptions) -> None:
        """Check the delimiter."""
        if len(options.delimiter.encode()) != 1 or options.delimiter in '"\r\n':
            raise SchemaError(f"invalid delimiter '{options.delimiter}'", hint="give one ASCII character")
        options.refuse_patterns()
        self._schema, self._options = schema, options

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`."""
        if is_large(messages):
            return decode_halves(self.decode, messages, columns)
        names = {column.name for column in columns}
        checked = [column for column in self._schema if self._options.checks_all or column.name in names]
        data, rows = pad_data(messages), len(messages)
        rejects, decoded = Rejects.allocate("CSV record", rows), DecodedColumns.allocate(data, len(checked), rows)
        kinds = [choose_kind(column.type, self._options.timestamp_format) for column in checked]
        records = np.zeros((len(self._schema), kernel.WIDTH), np.int64)
        for index, (column, kind) in enumerate(zip(checked, kinds, strict=True)):
            record = records[self._schema.fields.index(column)]
            record[: codes.VALUES] = kind.kind, kind.scale, kind.low, kind.high
            record[codes.VALUES], record[codes.SIZES] = (lane.ctypes.data for lane in decoded.lanes[2 * index : 2 * index + 2])
            record[codes.STATES], record[kernel.NUMBER] = decoded.states[index].ctypes.data, index
        offsets, delimiter = np.array(messages.offsets, np.int64), ord(self._options.delimiter)
        kernel.decode_csv(
            data.ctypes.data, offsets, records.ctypes.data, len(records), delimiter, _POWERS, rejects.codes, rejects.columns,
            rejects.positions,
        )  # fmt: skip
        if messages.absent is not None:
            rejects.codes[messages.absent] = 0
        return assemble_rows(decoded, rejects, checked, kinds, columns, messages.offsets)

    def encode(self, table: pa.Table) -> Messages:
        """See `MessageFormat`; NULL is nothing, an empty text is a pair of quotes."""
        columns = [
            self._write_column(name, column.combine_chunks())
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        if not columns:
            raise SinkError("a CSV message needs a column", hint="select at least one")
        return _make_messages(pc.binary_join_element_wise(*columns, self._options.delimiter), None)

    def _write_column(self, name: str, array: pa.Array) -> pa.Array:
        kind = array.type
        if pa.types.is_timestamp(kind):
            micros = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
            texts = pc.binary_join_element_wise(pc.replace_substring(micros.cast(pa.string()), " ", "T"), "Z", "")
        elif pa.types.is_string(kind):
            pattern = _NEEDS_QUOTES.replace("{delimiter}", f"\\x{ord(self._options.delimiter):02x}")
            doubled = pc.binary_join_element_wise('"', pc.replace_substring(array, '"', '""'), '"', "")
            texts = pc.if_else(pc.match_substring_regex(array, pattern), doubled, array)
        else:
            try:
                texts = array.cast(pa.string())
            except pa.ArrowInvalid as error:
                raise SinkError(f"column '{name}' of type '{kind}' cannot be written as CSV", detail=str(error)) from None
        return pc.fill_null(texts, "")


def _make_messages(texts: pa.Array, absent: np.ndarray | None) -> Messages:
    ends, data = get_text_buffers(texts)
    return Messages(ends[:-1].astype(np.int64), data, absent)
