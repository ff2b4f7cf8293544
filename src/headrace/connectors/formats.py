"""File formats: format by file name, units of a file with their row counts, inferred columns, and conversion to declared types.

The driver uses formats and inference while planning, and reads only metadata or the beginning of a file. A column that already
has its declared type is returned unchanged. Any other column is cast without loss (apart from the rounding of FLOAT), or
refused with a ValueError or TypeError (Arrow's own errors are both), to which the caller adds the name of the file or column.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headrace.connectors import message_files
from headrace.connectors.file_access import FileStatus, open_file, open_parts
from headrace.connectors.message_files.avro_container import count_block_rows, read_header
from headrace.connectors.source import Option
from headrace.errors import SchemaError
from headrace.model.types import TIMESTAMP, Field, Schema, normalize_type, type_name

FORMATS = ("arrow", "parquet", "csv", "json", "avro", "protobuf")

_SUFFIXES = {
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow", ".parquet": "parquet",
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".avro": "avro",
}  # fmt: skip
_SAMPLE_BYTES = 1 << 20
_SMALL_FILE_BYTES = 1 << 20
_INSTANT_PATTERN = r"^\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d"


def format_of(path: str) -> str | None:
    """Return the format for the suffix of a path, or None; `.gz` may follow the suffix of a text format."""
    stem, suffix = os.path.splitext(path.lower())  # noqa: PTH122 - called for every name of a listing
    compressed = suffix == ".gz"
    name = _SUFFIXES.get(os.path.splitext(stem)[1] if compressed else suffix)  # noqa: PTH122
    return None if compressed and name not in {"csv", "json"} else name


def open_arrow(
    source: pa.NativeFile, options: pa.ipc.IpcReadOptions | None = None
) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """Return a reader of a file in the Arrow file format or stream format, from its beginning.

    A small file is read as one mapped buffer: from a file, Arrow reads the footer in another thread, which takes longer than all
    the rest. A large file must not be read as a whole for a few of its columns.
    """
    is_file = source.size() >= 6 and source.read_at(6, 0) == b"ARROW1"
    source.seek(0)
    data = source.read_buffer() if source.size() <= _SMALL_FILE_BYTES else source
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(data, options=options)


def count_unit_rows(status: FileStatus, reader: str, *, allows_damage: bool = False) -> list[int]:
    """Return the row count of each unit of a file: exact for Arrow, Parquet and Avro, estimated for others, which are one unit.

    With `allows_damage`, damaged blocks of an Avro file are units of one row.
    Raises ArrowException or OSError for a file that cannot be opened or has another format.
    """
    if status.size == 0:
        return []
    if reader == "parquet":
        with pa.parquet.ParquetFile(open_parts(status.path), memory_map=True) as file:
            return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    if reader == "avro":
        content = read_content(status.path, status.version)
        return count_block_rows(memoryview(content).cast("B"), allows_damage=allows_damage)
    if reader == "protobuf":
        return _estimate_messages(status)
    with open_file(status.path, status.version) as source:
        return _count_arrow_rows(source) if reader == "arrow" else _estimate_text_rows(status, source)


def _count_arrow_rows(source: pa.NativeFile) -> list[int]:
    reader = open_arrow(source)
    if isinstance(reader, pa.RecordBatchFileReader):
        return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    return [batch.num_rows for batch in reader]


def _estimate_text_rows(status: FileStatus, source: pa.NativeFile) -> list[int]:
    sample, size = read_head(status.path, 1 << 16, status.version), source.size()
    if not sample.strip():
        return []
    if status.path.lower().endswith(".gz"):
        size = int.from_bytes(source.read_at(4, size - 4), "little")  # the length before compression, modulo 4 GiB
    lines = sample.count(b"\n")
    return [max(1, lines, size * lines // len(sample))]


def _estimate_messages(status: FileStatus) -> list[int]:
    """Return the estimated number of messages behind their lengths, from those at the beginning of a file."""
    sample = read_head(status.path, 1 << 16, status.version)
    at = count = 0
    while at < len(sample):
        size = shift = 0
        while at < len(sample) and shift < 70:
            size |= (sample[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if sample[at - 1] < 128:
                break
        at, count = at + size, count + 1
    return [max(1, count, status.size * count // max(1, at))]


def read_head(path: str, size: int, version: str = "") -> bytes:
    """Return up to `size` decompressed bytes from the beginning of a text file; see `open_file`."""
    with open_file(path, version) as source, _decompress(path, source) as stream:
        return bytes(stream.read(size))


def read_content(path: str, version: str = "") -> pa.Buffer:
    """Return the content of a text file, decompressed; see `open_file`. Raises OSError or ArrowException."""
    with open_file(path, version) as source, _decompress(path, source) as stream:
        return stream.read_buffer()


def _decompress(path: str, source: pa.NativeFile) -> pa.NativeFile:
    return pa.CompressedInputStream(source, "gzip") if path.lower().endswith(".gz") else source


def infer_schema(path: str, reader: str, options: Mapping[str, Option]) -> Schema:
    """Return the inferred columns of a file; for text formats, from the first MiB.

    Raises ArrowException or OSError for an unreadable file, and SchemaError for a column of an unsupported type.
    """
    if reader == "arrow":
        with open_file(path) as source:
            schema = open_arrow(source).schema
    elif reader == "parquet":
        schema = pa.parquet.read_schema(open_parts(path))
    elif reader == "avro":
        schema = message_files.infer_avro_schema(read_header(memoryview(read_content(path)).cast("B")).schema)
    elif reader == "protobuf":
        raise SchemaError("files of format 'protobuf' do not name their columns", hint="give the source a schema=…")
    else:
        schema = _infer_text_schema(path, reader, options)
    return Schema(tuple(_to_field(path, field) for field in schema))


def _to_field(path: str, field: pa.Field) -> Field:
    try:
        return Field(field.name, normalize_type(field.type))
    except SchemaError as error:
        raise SchemaError(
            f"column '{field.name}' of file '{path}' has the unsupported type '{field.type}'",
            hint="give the source a schema=… without that column",
        ) from error


def _infer_text_schema(path: str, reader: str, options: Mapping[str, Option]) -> pa.Schema:
    sample = read_head(path, _SAMPLE_BYTES)
    if len(sample) == _SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    if not sample.strip():
        raise SchemaError(f"file '{path}' is empty, so its columns cannot be inferred", hint="give the source a schema=…")
    if reader == "json":
        table = pa.json.read_json(io.BytesIO(sample), read_options=pa.json.ReadOptions(False, _SAMPLE_BYTES))
    else:
        table = pa.csv.read_csv(
            io.BytesIO(sample),
            pa.csv.ReadOptions(use_threads=False, autogenerate_column_names=not options.get("header", True)),
            pa.csv.ParseOptions(delimiter=str(options.get("delimiter", ",")), newlines_in_values=True),
            pa.csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )
    return pa.schema([(name, _guess_type(table.column(name))) for name in table.column_names])


def _guess_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return TIMESTAMP for text that is a point in time in every row, and text for a column of NULLs or times of day."""
    if pa.types.is_string(column.type) and pc.all(pc.match_substring_regex(column, _INSTANT_PATTERN)).as_py():
        return TIMESTAMP
    return pa.string() if pa.types.is_null(column.type) or pa.types.is_time(column.type) else column.type


CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)  # the errors of conversions and of Arrow's parsers

_NAIVE_TIMESTAMP = pa.timestamp("us")


def conform_column(column: pa.ChunkedArray, kind: pa.DataType, timestamp_format: str = "") -> pa.ChunkedArray:
    """Return the column as type `kind`; `timestamp_format` (strptime, default ISO-8601) is the format of times in text columns.

    Raises one of the conversion errors above if the column does not fit the type.
    """
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return conform_column(_decode_dictionary(column), kind, timestamp_format)
    if _is_ambiguous_cast(column.type, kind):
        raise TypeError(f"{type_name(column.type)} is not converted to {type_name(kind)}")
    if kind == TIMESTAMP:
        return _to_timestamps(column, timestamp_format)
    return column.cast(kind)


def _decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string_view(column.type.value_type):
        return column.cast(column.type.value_type)
    chunks = [(chunk.indices, chunk.dictionary.cast(pa.string())) for chunk in column.chunks]  # Arrow has no such cast
    return pa.chunked_array([texts.take(indices) for indices, texts in chunks], pa.string())


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
