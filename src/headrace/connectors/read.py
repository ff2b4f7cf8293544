"""The one function workers call: a range in, an Arrow table out.

Uncompressed Arrow files are memory-mapped and never copied or cast where the types already fit; that is the hot path.
Every failure is a SourceError that names the file. Whether a failure stops the stream or is skipped and counted
(`on_error` in the options of the range) is for the caller to decide.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headrace.connectors.conform import UNFIT, conform
from headrace.connectors.formats import is_arrow_file
from headrace.connectors.generate import generate_range
from headrace.connectors.source import Range
from headrace.connectors.tcp import read_rows
from headrace.errors import SchemaError, SourceError
from headrace.model.schema import TIMESTAMP, Field, Schema

_HINT = "repair or remove it, or create the source with on_error='skip' to leave such files out"
_BLOCK = 1 << 26


def read_range(wanted: Range, schema: Schema, columns: Sequence[str]) -> pa.Table:
    """Return the rows of a range: the given columns, in that order, of exactly the schema's types.

    With no columns the table still knows its number of rows. Raises SourceError for anything that cannot be read.
    """
    fields = [_declared(schema, name) for name in columns]
    try:
        _check_unchanged(wanted)
        table = _READERS[wanted.reader](wanted, schema, fields or [schema.fields[0]])
        return _conformed(table, fields, wanted)
    except SourceError:
        raise
    except FileNotFoundError as error:
        raise SourceError(f"file '{wanted.path}' of stream '{wanted.stream}' has vanished", hint=_HINT) from error
    except (*UNFIT, OSError, KeyError) as error:
        raise _unreadable(wanted, str(error)) from error


def _declared(schema: Schema, name: str) -> Field:
    field = schema.find(name)
    if field is None:
        raise SchemaError(f"column '{name}' is not declared", detail=f"columns: {', '.join(schema.names)}")
    return field


def _unreadable(wanted: Range, detail: str) -> SourceError:
    return SourceError(f"file '{wanted.path}' of stream '{wanted.stream}' cannot be read", detail=detail, hint=_HINT)


def _check_unchanged(wanted: Range) -> None:
    """Refuse a file that is not as it was discovered: one that grows or shrinks would give rows twice, or never."""
    size = wanted.options.get("size")
    if size is not None and os.stat(wanted.path).st_size != size:  # noqa: PTH116
        raise _unreadable(wanted, f"its size was {size} bytes when it was discovered; write elsewhere, then rename into place")


def _conformed(table: pa.Table, fields: Sequence[Field], wanted: Range) -> pa.Table:
    """`table` has the columns of `fields` in that order, under any names."""
    if not fields:
        return table.select([])
    if table.num_columns == len(fields) and all(c.type == f.type for c, f in zip(table.columns, fields, strict=True)):
        done = table.columns
    else:
        done = [_fitted(column, field, wanted) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(done, schema=pa.schema([(field.name, field.type) for field in fields]))


def _fitted(column: pa.ChunkedArray, field: Field, wanted: Range) -> pa.ChunkedArray:
    try:
        return conform(column, field.type, str(wanted.options.get("timestamp_format", "")))
    except UNFIT as error:
        raise _unreadable(wanted, f"column '{field.name}': {error}") from error


def _places(names: Sequence[str], fields: Sequence[Field], wanted: Range) -> list[int]:
    """Return where each field is in a file with columns `names`; an exact match goes before one in another case."""
    exact = {name: at for at, name in reversed(list(enumerate(names)))}
    folded = {name.lower(): at for at, name in reversed(list(enumerate(names)))}
    found = [exact.get(field.name, folded.get(field.name.lower())) for field in fields]
    for field, at in zip(fields, found, strict=True):
        if at is None or names.count(names[at]) > 1:
            problem = "is missing" if at is None else "is there twice"
            raise _unreadable(wanted, f"column '{field.name}' {problem}; the file has: {', '.join(names)}")
    return [at for at in found if at is not None]


def _read_arrow(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    source = pa.memory_map(wanted.path)
    opened = pa.ipc.open_file if is_arrow_file(source) else pa.ipc.open_stream
    reader = opened(source)
    names = reader.schema.names
    chosen = [names[place] for place in _places(names, fields, wanted)]
    if 2 * len(chosen) < len(names):  # else it is cheaper to open once and to map (or unpack) a few columns too many
        source.seek(0)
        places = sorted({names.index(name) for name in chosen})
        reader = opened(source, options=pa.ipc.IpcReadOptions(included_fields=places, use_threads=False))
    batches = _batches(reader, wanted)
    for batch in batches:
        batch.validate()
    return pa.Table.from_batches(batches, reader.schema).select(chosen)


def _batches(reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader, wanted: Range) -> list[pa.RecordBatch]:
    if isinstance(reader, pa.RecordBatchFileReader):
        return [reader.get_batch(i) for i in range(wanted.start, wanted.stop)]
    found = [batch for i, batch in zip(range(wanted.stop), reader, strict=False) if i >= wanted.start]
    if len(found) != wanted.stop - wanted.start:
        raise _unreadable(wanted, f"it ends before record batch {wanted.stop - 1}")
    return found


def _read_parquet(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    with pa.parquet.ParquetFile(wanted.path, memory_map=True, coerce_int96_timestamp_unit="us") as file:
        names = file.schema_arrow.names
        chosen = [names[place] for place in _places(names, fields, wanted)]
        groups = list(range(wanted.start, wanted.stop))
        return file.read_row_groups(groups, columns=chosen, use_threads=False).select(chosen)


def _content(path: str) -> pa.Buffer:
    if path.lower().endswith(".gz"):
        with pa.input_stream(path, compression="gzip") as stream:
            return stream.read_buffer()
    with pa.memory_map(path) as source:
        return source.read_buffer()


def _read_csv(wanted: Range, schema: Schema, fields: Sequence[Field]) -> pa.Table:
    content, options = _content(wanted.path), wanted.options
    delimiter, header = str(options.get("delimiter", ",")), bool(options.get("header", True))
    names = _header(content, delimiter) if header else list(schema.names)
    if not names or content.size == 0:
        return _nothing(fields)
    chosen = [names[place] for place in _places(names, fields, wanted)]
    return pa.csv.read_csv(
        pa.BufferReader(content),
        pa.csv.ReadOptions(use_threads=False, column_names=None if header else names),
        pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types={name: _text_type(field) for name, field in zip(chosen, fields, strict=True)},
            include_columns=chosen,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _header(content: pa.Buffer, delimiter: str) -> list[str]:
    lines = io.TextIOWrapper(pa.BufferReader(content), encoding="utf-8-sig", newline="")
    return next(csv.reader(lines, delimiter=delimiter), [])


def _read_json(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    content = _content(wanted.path)
    if content.size == 0:
        return _nothing(fields)
    if content.slice(0, 1).to_pybytes() == b"[":
        raise _unreadable(wanted, "it is one JSON array; expected one object a line")
    types = {field.name: _text_type(field) for field in fields}
    table = pa.json.read_json(
        pa.BufferReader(content),
        pa.json.ReadOptions(use_threads=False, block_size=min(content.size + 1, _BLOCK)),
        pa.json.ParseOptions(explicit_schema=pa.schema(types.items()), unexpected_field_behavior="ignore"),
    )
    return table.select([field.name for field in fields])


def _text_type(field: Field) -> pa.DataType:
    """Take times and dates as text first: Arrow's own parsers want all of them with an offset, or none."""
    return pa.string() if field.type in {TIMESTAMP, pa.date32()} else field.type


def _nothing(fields: Sequence[Field]) -> pa.Table:
    return pa.schema([(field.name, field.type) for field in fields]).empty_table()


def _read_rate(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    return generate_range(wanted.options, wanted.start, wanted.stop, [field.name for field in fields])


def _read_tcp(wanted: Range, _: Schema, fields: Sequence[Field]) -> pa.Table:
    return read_rows(wanted, [field.name for field in fields])


_READERS: Mapping[str, Callable[[Range, Schema, Sequence[Field]], pa.Table]] = {
    "arrow": _read_arrow,
    "parquet": _read_parquet,
    "csv": _read_csv,
    "json": _read_json,
    "rate": _read_rate,
    "tcp": _read_tcp,
}
