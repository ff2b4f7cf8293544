"""Ranges of offsets to rows, in workers: librdkafka reads messages by pointer, the format of a stream decodes chunks of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.kafka.client_options import resolve_options
from headrace.connectors.kafka.consumer_pool import get_pool
from headrace.connectors.kafka.librdkafka import Pointers, TopicConsumer, get_address, read_headers
from headrace.connectors.kafka.rejected import REJECTED_SCHEMA
from headrace.connectors.message_formats import make_message_format
from headrace.connectors.message_formats.kernels import PADDING_BYTES
from headrace.connectors.messages import DecodedMessages, MessageFormat, Messages
from headrace.connectors.source import Range
from headrace.engine.kernels import gather
from headrace.errors import SourceError
from headrace.model.types import TIMESTAMP, Field, Schema

METADATA = ("key", "headers", "timestamp", "partition", "offset")
_PAYLOAD, _KEY = (32, 24), (48, 40)  # where a message has the size and the address of a text


def _borrow_consumer(wanted: Range) -> AbstractContextManager[TopicConsumer]:
    """Borrow a consumer of this process, or create one."""
    client, stall_seconds = str(wanted.options["client"]), float(wanted.options["stall_seconds"])
    key = (client, str(stall_seconds), wanted.path, str(wanted.options["topic_id"]))
    return get_pool().borrow(key, lambda: TopicConsumer(wanted.path, resolve_options(json.loads(client)), stall_seconds))


@functools.lru_cache(maxsize=64)
def _make_format(name: str, schema: Schema, options: str) -> MessageFormat:
    return make_message_format(name, schema, json.loads(options))


def name_metadata(options: Mapping[str, object]) -> dict[str, str]:
    """Return the kind of metadata of each column that has some, by the lower-case name of the column."""
    return {str(options[f"column.{kind}"]).lower(): kind for kind in METADATA}


@dataclass(frozen=True, slots=True)
class RangeContent:
    """The rows of a range, the messages that are none, as `REJECTED_SCHEMA`, and how many messages and bytes of values it has."""

    rows: pa.Table
    rejected: pa.Table
    messages: int
    bytes: int


def read_messages(wanted: Range, schema: Schema, columns: Sequence[str]) -> RangeContent:
    """Return the content of a range, with the values of these columns."""
    kinds = name_metadata(wanted.options)
    values = Schema(tuple(field for field in schema if field.name.lower() not in kinds))
    fields = [field for name in columns if (field := schema.find(name)) is not None]
    reader = _RangeReader(wanted, values, fields, kinds)
    partition = int(wanted.options["partition"])
    with _borrow_consumer(wanted) as consumer, closing(consumer.read(partition, wanted.start, wanted.stop)) as chunks:
        tables = [reader.read_chunk(pointers) for pointers in chunks if pointers.size]
    rows = pa.concat_tables([pa.schema([(field.name, field.type) for field in fields]).empty_table(), *tables])
    rejected = pa.concat_tables([REJECTED_SCHEMA.empty_table(), *reader.rejected])
    return RangeContent(rows, rejected, reader.messages, reader.bytes)


class _RangeReader:
    """Decodes the messages of one range."""

    def __init__(self, wanted: Range, values: Schema, fields: Sequence[Field], kinds: Mapping[str, str]) -> None:
        options = wanted.options
        self._wanted, self._fields, self._kinds = wanted, fields, kinds
        self._columns = [field for field in fields if field.name.lower() not in kinds]
        self._format = _make_format(str(options["format"]), values, str(options["format_options"])) if len(values) else None
        self.rejected: list[pa.Table] = []
        self.messages = self.bytes = 0

    def read_chunk(self, pointers: Pointers) -> pa.Table:
        """Return the rows of some messages."""
        messages = _gather_texts(pointers, _PAYLOAD)
        count = len(messages)
        self.messages, self.bytes = self.messages + count, self.bytes + int(messages.offsets[-1])
        decoded = DecodedMessages(pa.table({})) if self._format is None else self._format.decode(messages, self._columns)
        if len(decoded.rejected):
            self._reject(pointers, decoded)
        columns = {name: decoded.table.column(name) for name in decoded.table.column_names}
        for field in self._fields:
            kind = self._kinds.get(field.name.lower())
            if kind is not None:
                column = pa.array([], field.type) if count == 0 else _METADATA_READERS[kind](self._wanted, pointers)
                columns[field.name] = column if decoded.positions is None else column.take(pa.array(decoded.positions))
        arrays = [columns[field.name].cast(field.type) for field in self._fields]
        return pa.table(arrays, schema=pa.schema([(field.name, field.type) for field in self._fields]))

    def _reject(self, pointers: Pointers, decoded: DecodedMessages) -> None:
        """Keep messages that are no rows; raises SourceError if the policy is to fail."""
        wanted, bad = self._wanted, pointers[decoded.rejected]
        offsets, values = _read_offsets(bad), _make_binary_column(_gather_texts(bad, _PAYLOAD))
        if wanted.options["on_error"] == "fail":
            place = f"message {offsets[0]} of partition {wanted.options['partition']} of topic '{wanted.path}'"
            text = (values[0].as_py() or b"")[:200].decode("utf-8", "replace")
            raise SourceError(
                f"{place} is no row of stream '{wanted.stream}'",
                stream=wanted.stream,
                detail=f"{decoded.reasons[0]}: {text}",
                hint="declare the stream with on_error='skip_row', which counts such messages and leaves them out",
            )
        columns = [
            pa.array([wanted.path] * bad.size, pa.string()),
            _make_partition_column(wanted, bad),
            pa.array(offsets),
            _make_timestamp_column(wanted, bad),
            pa.array(list(decoded.reasons), pa.string()),
            _make_binary_column(_gather_texts(bad, _KEY)),
            [[{"name": name, "value": value} for name, value in read_headers(int(message))] for message in bad],
            values,
        ]
        self.rejected.append(pa.table(columns, schema=REJECTED_SCHEMA))


def _gather_texts(pointers: Pointers, place: tuple[int, int]) -> Messages:
    ends, absent = np.empty(pointers.size + 1, np.int64), np.empty(pointers.size, np.bool_)
    gather.add_sizes(pointers, place[0], ends)
    data = np.empty(ends[-1] + PADDING_BYTES, np.uint8)
    data[ends[-1] :] = 0
    count = gather.copy_texts(pointers, place[1], ends, data, absent)
    return Messages(ends, data, absent if count else None)


def _make_binary_column(texts: Messages) -> pa.Array:
    valid = None if texts.absent is None else pa.array(~texts.absent).buffers()[1]
    buffers = [valid, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(texts), buffers)


def _read_offsets(pointers: Pointers) -> npt.NDArray[np.int64]:
    errors, offsets = np.empty(pointers.size, np.int32), np.empty(pointers.size, np.int64)
    gather.read_heads(pointers, errors, offsets)
    return offsets


def _make_key_column(_: Range, pointers: Pointers) -> pa.Array:
    """Return the keys as text; a key that is not UTF-8 has replacement characters."""
    binary = _make_binary_column(_gather_texts(pointers, _KEY))
    try:
        return binary.cast(pa.large_string()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if key is None else key.decode("utf-8", "replace") for key in binary.to_pylist()], pa.string())


def _make_header_column(_: Range, pointers: Pointers) -> pa.Array:
    """Return the headers as JSON objects; of several with one name, the last counts. An object of Python for each message."""
    texts = []
    for message in pointers:
        headers = {
            name: None if value is None else value.decode("utf-8", "replace") for name, value in read_headers(int(message))
        }
        texts.append(json.dumps(headers, ensure_ascii=False) if headers else None)
    return pa.array(texts, pa.string())


def _make_timestamp_column(_: Range, pointers: Pointers) -> pa.Array:
    times = np.empty(pointers.size, np.int64)
    gather.read_timestamps(pointers, get_address("message_timestamp"), np.empty(1, np.int64), times)
    return pa.array(times * 1000, mask=times < 0).view(TIMESTAMP)


def _make_partition_column(wanted: Range, pointers: Pointers) -> pa.Array:
    return pa.array(np.full(pointers.size, int(wanted.options["partition"]), np.int32))


def _make_offset_column(_: Range, pointers: Pointers) -> pa.Array:
    return pa.array(_read_offsets(pointers))


_METADATA_READERS: Mapping[str, Callable[[Range, Pointers], pa.Array]] = {
    "key": _make_key_column,
    "headers": _make_header_column,
    "timestamp": _make_timestamp_column,
    "partition": _make_partition_column,
    "offset": _make_offset_column,
}
