"""Read input ranges in workers: `read_range` returns the rows of a range as an Arrow table.

The hot path is uncompressed Arrow files: they are memory-mapped, and neither copied nor cast if the types already fit. Every
failure is a SourceError that names the file; `headrace.connectors.skipped_rows` applies the error policy of the source.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.connectors import message_files
from headrace.connectors.file_access import get_status, open_file, open_parts
from headrace.connectors.formats import CONVERSION_ERRORS, conform_column, open_arrow, read_content
from headrace.connectors.rate import generate_range
from headrace.connectors.source import Range
from headrace.connectors.tcp import read_rows
from headrace.errors import SchemaError, SourceError
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.storage.checksum import compute_checksum
from headrace.storage.locations import is_url

_UNREADABLE_HINT = "repair or remove it, or leave it out: create the source with on_error='skip_row' or 'skip_file'"
_SMALL_CSV_BYTES = 1 << 12


def read_range(wanted: Range, schema: Schema, columns: Sequence[str]) -> pa.Table:
    """Return the given columns of a range, in that order, with the types of the schema.

    Without columns the table still has its number of rows. Raises SourceError if the range cannot be read, and SchemaError for an
    undeclared column.
    """
    fields = [_find_field(schema, name) for name in columns]
    with _name_file(wanted):
        _check_unchanged(wanted)
        table = _READERS[wanted.reader](wanted, schema, fields or [schema.fields[0]])
        return _conform_table(table, fields, wanted)


def read_messages(wanted: Range, schema: Schema, columns: Sequence[str]) -> tuple[pa.Table, list[tuple[int, str, str]]]:
    """Return the given columns of a range of a file of messages, and the messages that are no rows: number, reason and text.

    Raises SourceError if the file cannot be read at all, and SchemaError for an undeclared column.
    """
    fields = [_find_field(schema, name) for name in columns]
    with _name_file(wanted):
        _check_unchanged(wanted)
        table, rejected = message_files.read_file(wanted, schema, fields or [schema.fields[0]], skips=True)
        return table.select(list(columns)), rejected


@contextmanager
def _name_file(wanted: Range) -> Iterator[None]:
    """Raise whatever a reader raises as a SourceError that names the file."""
    try:
        yield
    except SourceError as error:
        error.stream = wanted.stream
        raise
    except FileNotFoundError as error:
        message = f"file '{wanted.path}' of stream '{wanted.stream}' no longer exists"
        raise SourceError(message, stream=wanted.stream, hint=_UNREADABLE_HINT) from error
    except (*CONVERSION_ERRORS, OSError, KeyError) as error:
        raise _unreadable_error(wanted, str(error)) from error
    except SchemaError as error:  # of an Avro file that was written with another schema
        raise _unreadable_error(wanted, error.message) from error
    except Exception as error:  # whatever else a reader raises is an error of this stream, too
        raise _unreadable_error(wanted, f"{type(error).__name__}: {error}") from error


def _find_field(schema: Schema, name: str) -> Field:
    field = schema.find(name)
    if field is None:
        raise SchemaError(f"column '{name}' is not declared", detail=f"columns: {', '.join(schema.names)}")
    return field


def _unreadable_error(wanted: Range, detail: str) -> SourceError:
    message = f"file '{wanted.path}' of stream '{wanted.stream}' cannot be read"
    return SourceError(message, stream=wanted.stream, detail=detail, hint=_UNREADABLE_HINT)


def _check_unchanged(wanted: Range) -> None:
    """Raise SourceError if a file has another size than at its discovery: its rows could be read twice or not at all."""
    size = wanted.options.get("size")
    if size is None or (is_url(wanted.path) and wanted.reader != "parquet"):  # an object is opened in its version
        return
    status = get_status(wanted.path)
    if status.size != size:
        raise _unreadable_error(
            wanted, f"its size was {size} bytes when it was discovered; write elsewhere, then rename into place"
        )
    if status.version != wanted.options.get("version", ""):
        raise _unreadable_error(wanted, "it was replaced after it was discovered; files of a stream must never change")


def get_version(wanted: Range) -> str:
    """Return the version of the object that a range is a part of; an empty text for a file."""
    return str(wanted.options.get("version", ""))


def _conform_table(table: pa.Table, fields: Sequence[Field], wanted: Range) -> pa.Table:
    """Convert and rename the columns of a table to `fields`; they are in that order, under any names."""
    if not fields:
        return table.select([])
    if table.num_columns == len(fields) and all(c.type == f.type for c, f in zip(table.columns, fields, strict=True)):
        converted = table.columns
    else:
        converted = [_conform_field(column, field, wanted) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(converted, schema=pa.schema([(field.name, field.type) for field in fields]))


def _conform_field(column: pa.ChunkedArray, field: Field, wanted: Range) -> pa.ChunkedArray:
    try:
        return conform_column(column, field.type, str(wanted.options.get("timestamp_format", "")))
    except CONVERSION_ERRORS as error:
        raise _unreadable_error(wanted, f"column '{field.name}': {error}") from error


def _find_columns(names: Sequence[str], fields: Sequence[Field], wanted: Range) -> list[int]:
    """Return the index of each field among the columns `names` of a file; an exact match precedes a match in another case."""
    exact = {name: index for index, name in reversed(list(enumerate(names)))}
    folded = {name.lower(): index for index, name in reversed(list(enumerate(names)))}
    indices = [exact.get(field.name, folded.get(field.name.lower())) for field in fields]
    for field, index in zip(fields, indices, strict=True):
        if index is None or names.count(names[index]) > 1:
            problem = "is missing" if index is None else "occurs twice"
            raise _unreadable_error(wanted, f"column '{field.name}' {problem}; the file has: {', '.join(names)}")
    return [index for index in indices if index is not None]


def _read_arrow(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    source = open_file(wanted.path, get_version(wanted), str(wanted.options.get("checksum", "")))
    _verify_checksum(wanted, source)
    reader = open_arrow(source)
    names = reader.schema.names
    chosen = [names[place] for place in _find_columns(names, fields, wanted)]
    if 2 * len(chosen) < len(names):  # otherwise it is cheaper to open once and to map (or unpack) a few extra columns
        indices = sorted({names.index(name) for name in chosen})
        reader = open_arrow(source, pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False))
    batches = _read_batches(reader, wanted)
    for batch in batches:
        batch.validate()
    return pa.Table.from_batches(batches, reader.schema).select(chosen)


def _verify_checksum(wanted: Range, source: pa.NativeFile) -> None:
    """Raise SourceError if the range has the check sum of its file and the file has another."""
    expected = wanted.options.get("checksum")
    if expected is not None and compute_checksum(source.read_buffer()) != expected:
        raise _unreadable_error(wanted, "its check sum does not match its content")


def _read_batches(reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader, wanted: Range) -> list[pa.RecordBatch]:
    if isinstance(reader, pa.RecordBatchFileReader):
        return [reader.get_batch(i) for i in range(wanted.start, wanted.stop)]
    batches = [batch for i, batch in zip(range(wanted.stop), reader, strict=False) if i >= wanted.start]
    if len(batches) != wanted.stop - wanted.start:
        raise _unreadable_error(wanted, f"it ends before record batch {wanted.stop - 1}")
    return batches


def _read_parquet(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    with pa.parquet.ParquetFile(open_parts(wanted.path), memory_map=True, coerce_int96_timestamp_unit="us") as file:
        names = file.schema_arrow.names
        chosen = [names[place] for place in _find_columns(names, fields, wanted)]
        groups = list(range(wanted.start, wanted.stop))
        return file.read_row_groups(groups, columns=chosen, use_threads=False).select(chosen)


def _read_csv(wanted: Range, schema: Schema, fields: Sequence[Field]) -> pa.Table:
    content, header = read_content(wanted.path, get_version(wanted)), bool(wanted.options.get("header", True))
    names = _read_header(content, _get_delimiter(wanted)) if header else list(schema.names)
    if not names or content.size == 0:
        return _empty_table(fields)
    return _parse_csv(content, names, fields, wanted, has_header=header)


def _parse_csv(content: pa.Buffer, names: Sequence[str], fields: Sequence[Field], wanted: Range, *, has_header: bool) -> pa.Table:
    chosen = [names[place] for place in _find_columns(names, fields, wanted)]
    is_small = content.size <= _SMALL_CSV_BYTES  # the reader of whole files prepares blocks of 1 MiB: 0.4 ms for any text
    read_options = pa.csv.ReadOptions(use_threads=False, column_names=None if has_header else names)
    if is_small:
        read_options.block_size = content.size + 1
    options = (
        read_options,
        pa.csv.ParseOptions(delimiter=_get_delimiter(wanted), newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types={name: _parsing_type(field) for name, field in zip(chosen, fields, strict=True)},
            include_columns=chosen,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    source = pa.BufferReader(content)
    return pa.csv.open_csv(source, *options).read_all() if is_small else pa.csv.read_csv(source, *options)


def _get_delimiter(wanted: Range) -> str:
    return str(wanted.options.get("delimiter", ","))


def read_csv_header(lines: Sequence[bytes], schema: Schema, wanted: Range) -> tuple[list[str], int]:
    """Return the column names of a CSV file, given as lines, and the number of lines before its rows.

    Raises SourceError if the file lacks a column of the schema.
    """
    names, count = list(schema.names), 0
    if wanted.options.get("header", True):
        reader = csv.reader((line.decode("utf-8-sig", "replace") for line in lines), delimiter=_get_delimiter(wanted))
        names, count = next(reader, []), reader.line_num
    _find_columns(names, schema.fields, wanted)
    return names, count


def parse_csv(content: bytes, names: Sequence[str], schema: Schema, wanted: Range) -> pa.Table:
    """Return all columns of some lines of a CSV file, without its header; `names` are those of the file.

    Raises SourceError or one of the conversion errors if a line does not fit.
    """
    table = _parse_csv(pa.py_buffer(content), names, schema.fields, wanted, has_header=False)
    return _conform_table(table, schema.fields, wanted)


def _read_header(content: pa.Buffer, delimiter: str) -> list[str]:
    lines = io.TextIOWrapper(pa.BufferReader(content), encoding="utf-8-sig", newline="")
    return next(csv.reader(lines, delimiter=delimiter), [])


def _read_message_file(wanted: Range, schema: Schema, fields: Sequence[Field]) -> pa.Table:
    return message_files.read_file(wanted, schema, fields, skips=False)[0]


def _parsing_type(field: Field) -> pa.DataType:
    """Return text for times and dates: Arrow's own parsers expect an offset in all of them, or in none."""
    return pa.string() if field.type in {TIMESTAMP, pa.date32()} else field.type


def _empty_table(fields: Sequence[Field]) -> pa.Table:
    return pa.schema([(field.name, field.type) for field in fields]).empty_table()


def _read_rate(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    return generate_range(wanted.options, wanted.start, wanted.stop, [field.name for field in fields])


def _read_tcp(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    return read_rows(wanted, [field.name for field in fields])


_READERS: Mapping[str, Callable[[Range, Schema, Sequence[Field]], pa.Table]] = {
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "csv": _read_csv,
    **dict.fromkeys(message_files.MESSAGE_FILES, _read_message_file),
    "rate": _read_rate,
    "tcp": _read_tcp,
}
