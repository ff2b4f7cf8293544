"""Avro messages: single records in the binary encoding, with the writer's schema from a registry, an option, or the columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.message_formats.avro_encoder import derive_schema, encode_avro
from headrace.connectors.message_formats.avro_schema import AvroSchema, RecordProgram, compile_program, parse_avro
from headrace.connectors.message_formats.columns import DecodedColumns, assemble_rows, choose_kind, pad_data
from headrace.connectors.message_formats.kernels import avro_messages as kernel
from headrace.connectors.message_formats.options import FormatOptions
from headrace.connectors.message_formats.paths import place_columns
from headrace.connectors.message_formats.registry import HEADER_BYTES, RegisteredSchema, open_registry, split_by_schema
from headrace.connectors.message_formats.rejects import Rejects, decode_halves, is_large
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.errors import SchemaError
from headrace.model.types import Field, Schema

_MAX_PROGRAMS = 1000


class AvroFormat:
    """Avro records of a declared schema."""

    def __init__(self, schema: Schema, options: FormatOptions) -> None:
        """Check the writer's schema, if an option has it; raises SchemaError if a column does not fit it."""
        options.refuse_patterns()
        self._schema, self._options = schema, options
        self._root = place_columns(schema, options)
        self._registry = open_registry(options.registry) if options.registry else None
        self._own = None
        if self._registry is None:
            self._own = parse_avro(options.schema_text or derive_schema(schema.to_arrow()))
        self._programs: dict[tuple[int, tuple[str, ...]], RecordProgram | str] = {}
        if self._own is not None:
            compile_program(self._own, self._root, tuple(schema), options.timestamp_format)

    def decode(self, messages: Messages, columns: Sequence[Field]) -> DecodedMessages:
        """See `MessageFormat`."""
        if is_large(messages):
            return decode_halves(self.decode, messages, columns)
        checked = tuple(self._schema if self._options.checks_all else columns)
        data, rows = pad_data(messages), len(messages)
        rejects, decoded = Rejects.allocate("Avro record", rows), DecodedColumns.allocate(data, len(checked), rows)
        header = 0
        if self._registry is not None:
            groups, header = split_by_schema(messages, data, rejects), HEADER_BYTES
        else:
            groups = {0: np.arange(rows) if messages.absent is None else np.flatnonzero(~messages.absent)}
        for schema_id, group in groups.items():
            program = self._find_program(schema_id, checked)
            if isinstance(program, str):
                rejects.add_text(group, program)
            else:
                self._run(program, messages, header, group, decoded, rejects)
        kinds = [choose_kind(column.type, "") for column in checked]
        return assemble_rows(decoded, rejects, checked, kinds, columns, messages.offsets)

    def decode_blocks(
        self, data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], columns: Sequence[Field]
    ) -> tuple[DecodedMessages, npt.NDArray[np.int64]]:
        """Return the rows of blocks of a file, with the option's schema, and the bounds of all records in the data.

        Block i is between `bounds` i and i + 1, and has a number of records back to back; `data` has room as kernels need it.
        """
        checked, rows = tuple(self._schema if self._options.checks_all else columns), int(counts.sum())
        rejects, decoded = Rejects.allocate("Avro record", rows), DecodedColumns.allocate(data, len(checked), rows)
        program, skipper = self._find_program(0, checked), self._find_program(0, ())
        assert isinstance(program, RecordProgram)
        assert isinstance(skipper, RecordProgram)
        (steps, kept), (skips, kept_too) = program.point_to(decoded), skipper.point_to(decoded)
        offsets = np.zeros(rows + 1, np.int64)
        kernel.decode_blocks(
            data.ctypes.data, bounds, counts, steps.ctypes.data, skips.ctypes.data, offsets,
            rejects.codes, rejects.columns, rejects.positions,
        )  # fmt: skip
        decoded.keep([*kept, *kept_too])
        kinds = [choose_kind(column.type, "") for column in checked]
        return assemble_rows(decoded, rejects, checked, kinds, columns, offsets), offsets

    def _run(
        self,
        program: RecordProgram,
        messages: Messages,
        header: int,
        rows: npt.NDArray[np.int64],
        decoded: DecodedColumns,
        rejects: Rejects,
    ) -> None:
        steps, kept = program.point_to(decoded)
        offsets = np.array(messages.offsets, np.int64)
        kernel.decode_records(
            decoded.data.ctypes.data, offsets[:-1] + header, offsets[1:].copy(), rows, steps.ctypes.data,
            rejects.codes, rejects.columns, rejects.positions,
        )  # fmt: skip
        decoded.keep(kept)

    def _find_program(self, schema_id: int, columns: tuple[Field, ...]) -> RecordProgram | str:
        """Return the program for a writer's schema, or why its messages are rejected."""
        key = (schema_id, tuple(column.name for column in columns))
        program = self._programs.get(key)
        if program is not None:
            return program
        if self._own is not None:
            program = compile_program(self._own, self._root, columns, self._options.timestamp_format)
        else:
            program = self._compile_registered(schema_id, columns)
            if program is None:
                return f"the registry has no schema with id {schema_id}"
        while len(self._programs) >= _MAX_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        self._programs[key] = program
        return program

    def _compile_registered(self, schema_id: int, columns: tuple[Field, ...]) -> RecordProgram | str | None:
        registered = None if self._registry is None else self._registry.find_schema(schema_id)
        if registered is None:
            return None
        if registered.type != "AVRO":
            return f"schema {schema_id} of the registry is {registered.type}, not AVRO"
        try:
            schema: AvroSchema = parse_avro(registered.text)
            return compile_program(schema, self._root, columns, self._options.timestamp_format)
        except SchemaError as error:
            return f"{error.message}, in schema {schema_id} of the registry"

    def encode(self, table: pa.Table) -> Messages:
        """See `MessageFormat`; with a registry, the schema is registered first."""
        header = b""
        text = self._options.schema_text or derive_schema(table.schema)
        if self._registry is not None:
            schema_id = self._registry.register(self._options.subject, RegisteredSchema("AVRO", text))
            header = b"\0" + schema_id.to_bytes(4, "big")
        return encode_avro(table, text, header)
