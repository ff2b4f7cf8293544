"""Ranges of files of messages to rows, in workers.

A message that does not fit is rejected with its number in the file, counted from 1: the line of JSON, the record of Avro, the
message of Protobuf. Damage of the frame of a file is rejected as a whole: what is lost with it has no numbers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.formats import read_content
from headrace.connectors.message_files.avro_container import AvroBlock, AvroHeader, list_blocks, read_header, unpack_block
from headrace.connectors.message_files.framing import Bytes, split_delimited, split_lines
from headrace.connectors.message_formats import make_message_format
from headrace.connectors.message_formats.avro_format import AvroFormat
from headrace.connectors.message_formats.kernels import PADDING_BYTES
from headrace.connectors.messages import DecodedMessages, MessageFormat
from headrace.connectors.source import Option, Range
from headrace.model.types import Field, Schema

Rejected: TypeAlias = tuple[int, str, str]  # number in the file, reason, text

_CHUNK_BYTES = 1 << 25
_SHOWN_TEXT = 200
_MAX_KNOWN_FILES = 16


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The rows of some messages, and those that are none."""

    table: pa.Table
    rejected: Sequence[Rejected] = ()


def read_file(wanted: Range, schema: Schema, columns: Sequence[Field], *, skips: bool) -> tuple[pa.Table, list[Rejected]]:
    """Return the rows of a range with these columns, and the messages that are none.

    Unless they are skipped, raises ArrowInvalid at the first of them; SchemaError if a column never fits the schema of the file.
    """
    content = read_content(wanted.path, str(wanted.options.get("version", "")))
    tables, rejected = [pa.schema([(field.name, field.type) for field in columns]).empty_table()], list[Rejected]()
    for chunk in _READERS[wanted.reader](wanted, schema, columns, content) if content.size else ():
        tables.append(chunk.table)
        rejected += chunk.rejected
        if rejected and not skips:
            number, reason, text = rejected[0]
            place = f"{_NOUNS[wanted.reader]} {number}: " if number else ""
            raise pa.ArrowInvalid(f"{place}{reason}{': ' if text else ''}{text[:_SHOWN_TEXT]}")
    return pa.concat_tables(tables), rejected


@functools.lru_cache(maxsize=64)
def make_format(name: str, schema: Schema, options: str) -> MessageFormat:
    """Return a format of messages for options as JSON text; raises SchemaError if they do not fit the columns."""
    return make_message_format(name, schema, json.loads(options))


def _open_format(wanted: Range, schema: Schema, own: Mapping[str, Option]) -> MessageFormat:
    """Return the format for the options of a range and those that the file or its source has of its own."""
    given: Mapping[str, Option] = json.loads(str(wanted.options.get("format_options", "{}")))
    options = {**own, **given, "on_error": str(wanted.options.get("on_error", "fail"))}
    return make_format(wanted.reader, schema, json.dumps(options, sort_keys=True))


def _read_json(wanted: Range, schema: Schema, columns: Sequence[Field], content: pa.Buffer) -> Iterator[_Chunk]:
    data = np.frombuffer(content, np.uint8)
    if data[0] == ord("["):
        raise pa.ArrowInvalid("it is one JSON array; expected one object on each line")
    decoder = _open_format(wanted, schema, {"timestamp_format": str(wanted.options.get("timestamp_format", ""))})
    lines = _LineCounter(data)
    for chunk in split_lines(data):
        decoded, rejected = decoder.decode(chunk.messages, columns), list[Rejected]()
        for index, reason in zip(decoded.rejected.tolist(), decoded.reasons, strict=True):
            start, stop = (chunk.start + int(chunk.messages.offsets[i]) for i in (index, index + 1))
            line = data[start:stop].tobytes().partition(b"\n")[0].rstrip(b"\r")
            rejected.append((lines.find_line(start), reason, line.decode("utf-8", "replace")))
        yield _Chunk(decoded.table, rejected)


@dataclass(slots=True)
class _LineCounter:
    """Counts the lines of a file up to places in ascending order."""

    content: Bytes
    line: int = 1
    at: int = 0

    def find_line(self, place: int) -> int:
        """Return the number of the line that begins at a place."""
        self.line += int(np.count_nonzero(self.content[self.at : place] == ord("\n")))
        self.at = place
        return self.line


def _read_protobuf(wanted: Range, schema: Schema, columns: Sequence[Field], content: pa.Buffer) -> Iterator[_Chunk]:
    decoder, count = _open_format(wanted, schema, {}), 0
    for chunk in split_delimited(np.frombuffer(content, np.uint8)):
        decoded = decoder.decode(chunk.messages, columns)
        rejected = _list_rejected(decoded, chunk.messages.offsets, chunk.messages.data, count + 1)
        count += len(chunk.messages)
        if chunk.problem:
            rejected.append((count + 1, chunk.problem, ""))
        yield _Chunk(decoded.table, rejected)


def _list_rejected(decoded: DecodedMessages, offsets: npt.NDArray[np.int64], data: Bytes, first: int) -> list[Rejected]:
    return [
        (first + row, reason, data[offsets[row] : offsets[row + 1]].tobytes().decode("utf-8", "replace"))
        for row, reason in zip(decoded.rejected.tolist(), decoded.reasons, strict=True)
    ]


@dataclass(slots=True)
class _BlockGroup:
    """Blocks of an Avro file that are decoded together: their numbers, records, and numbers of records."""

    numbers: list[int] = field(default_factory=list)
    records: list[bytes | memoryview] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, number: int, records: bytes | memoryview, rows: int) -> None:
        """Add a block."""
        self.numbers.append(number)
        self.records.append(records)
        self.counts.append(rows)
        self.size += len(records)


def _read_avro(wanted: Range, schema: Schema, columns: Sequence[Field], content: pa.Buffer) -> Iterator[_Chunk]:
    view = memoryview(content).cast("B")
    header = read_header(view)
    decoder = _open_format(wanted, schema, {"schema": header.schema})
    assert isinstance(decoder, AvroFormat)
    blocks = _find_blocks(wanted.path, view, header)
    if len(blocks) < wanted.stop:
        raise pa.ArrowInvalid(f"it ends before block {wanted.stop - 1}")
    empty = pa.schema([(field.name, field.type) for field in columns]).empty_table()
    first = 1 + sum(block.rows for block in blocks[: wanted.start])
    group = _BlockGroup()
    for number in range(wanted.start, wanted.stop):
        block = blocks[number]
        records, problem = _unpack(view, block, header)
        if problem or group.size + len(records) > _CHUNK_BYTES:
            yield _decode_group(decoder, group, columns, first)
            first += sum(group.counts)
            group = _BlockGroup()
        if problem:
            yield _Chunk(empty, [(first, f"block {number} is damaged: {problem}", "")])
            first += block.rows
        else:
            group.add(number, records, block.rows)
    yield _decode_group(decoder, group, columns, first)


_known_blocks: dict[tuple[str, int, AvroHeader], list[AvroBlock]] = {}


def _find_blocks(path: str, view: memoryview, header: AvroHeader) -> list[AvroBlock]:
    """Return the blocks of a file, which are kept for the next of its ranges; its sync marker is random and identifies it.

    A damaged file may be repaired in place, so its blocks are not kept.
    """
    key = (path, len(view), header)
    blocks = _known_blocks.get(key)
    if blocks is None:
        blocks = list(list_blocks(view, header))
        if any(block.problem for block in blocks):
            return blocks
        while len(_known_blocks) >= _MAX_KNOWN_FILES:
            _known_blocks.pop(next(iter(_known_blocks), key), None)
        _known_blocks[key] = blocks
    return blocks


def _unpack(view: memoryview, block: AvroBlock, header: AvroHeader) -> tuple[bytes | memoryview, str]:
    """Return the records of a block, or why there are none."""
    if block.problem:
        return b"", block.problem
    try:
        return unpack_block(view, block, header.codec), ""
    except pa.ArrowInvalid as error:
        return b"", f"{error}; its {block.rows} records are lost" if block.rows else str(error)


def _decode_group(decoder: AvroFormat, group: _BlockGroup, columns: Sequence[Field], first: int) -> _Chunk:
    bounds = np.cumsum([0, *map(len, group.records)], dtype=np.int64)
    data = np.zeros(int(bounds[-1]) + PADDING_BYTES, np.uint8)
    for start, records in zip(bounds.tolist(), group.records, strict=False):
        data[start : start + len(records)] = np.frombuffer(records, np.uint8)
    counts = np.array(group.counts, np.int64)
    decoded, offsets = decoder.decode_blocks(data, bounds, counts, columns)
    ends, rejected = np.cumsum(counts), list[Rejected]()
    for entry in _list_rejected(decoded, offsets, data, 0):
        block = group.numbers[int(np.searchsorted(ends, entry[0], "right"))]
        rejected.append((first + entry[0], f"block {block}: {entry[1]}", entry[2]))
    return _Chunk(decoded.table, rejected)


_READERS: Mapping[str, Callable[[Range, Schema, Sequence[Field], pa.Buffer], Iterator[_Chunk]]] = {
    "json": _read_json,
    "avro": _read_avro,
    "protobuf": _read_protobuf,
}
_NOUNS = {"json": "line", "avro": "record", "protobuf": "message"}
