"""Messages that are Arrow IPC streams or files, each with any number of rows; columns are found by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.connectors.formats import CONVERSION_ERRORS, conform_column, open_arrow
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.model.types import Field, Schema


class ArrowFormat:
    """Arrow IPC payloads of a declared schema."""

    def __init__(self, schema: Schema, options: FormatOptions) -> None:
        """Keep the columns and options."""
        self._schema, self._options = schema, options

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`; a message is rejected with all its rows. One without a value has no rows."""
        data = pa.py_buffer(np.ascontiguousarray(messages.data))
        tables, positions = [Schema(tuple(columns)).to_arrow().empty_table()], [np.empty(0, np.int64)]
        rejected, reasons = list[int](), list[str]()
        for row in range(len(messages)):
            if messages.absent is not None and messages.absent[row]:
                continue
            start, stop = int(messages.offsets[row]), int(messages.offsets[row + 1])
            try:
                table = self._read(data.slice(start, stop - start), columns)
            except (*CONVERSION_ERRORS, OSError) as error:
                rejected.append(row)
                reasons.append(f"no Arrow stream with the declared columns: {error}")
                continue
            tables.append(table)
            positions.append(np.full(table.num_rows, row, np.int64))
        places = np.concatenate(positions)
        table = pa.concat_tables(tables) if columns else pa.table({"rows": pa.nulls(len(places))}).select([])
        return DecodedMessages(table, places, np.array(rejected, np.int64), reasons)

    def _read(self, content: pa.Buffer, columns: Sequence[Field]) -> pa.Table:
        with open_arrow(pa.BufferReader(content)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        arrays = {}
        for column in self._schema if self._options.checks_all else columns:
            index = table.schema.get_field_index(self._options.path_of(column.name)[0])
            missing = pa.chunked_array([pa.nulls(table.num_rows, column.type)])
            arrays[column.name] = missing if index < 0 else conform_column(table.column(index), column.type)
        schema = Schema(tuple(columns)).to_arrow()
        if not columns:
            return table.select([])
        return pa.Table.from_arrays([arrays[column.name] for column in columns], schema=schema)

    @staticmethod
    def encode(table: pa.Table) -> Messages:
        """See `MessageFormat`; each row is a stream of its own."""
        parts = []
        for batch in table.combine_chunks().to_batches(max_chunksize=1):
            output = pa.BufferOutputStream()
            with pa.ipc.new_stream(output, batch.schema) as writer:
                writer.write_batch(batch)
            parts.append(output.getvalue())
        return Messages(np.cumsum([0, *map(len, parts)]).astype(np.int64), np.frombuffer(b"".join(parts), np.uint8))
