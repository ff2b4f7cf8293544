"""Avro object container files: a header with the writer's schema, and blocks of records between sync markers.

This module reads the frame of a file in plain Python, a few microseconds for each block; the driver needs it without the kernels.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_BLOCK_BYTES = 1 << 30
_STREAM_CODECS = {"zstandard": "zstd", "bzip2": "bz2"}
CODECS = ("null", "deflate", "snappy", *_STREAM_CODECS)


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """The header of a file: its size, the schema of the writer, the codec of the blocks, and the sync marker behind each."""

    schema: str
    codec: str
    sync: bytes
    size: int


@dataclass(frozen=True, slots=True)
class AvroBlock:
    """A block of records: the bounds of its content in the file and its number of records, or why it cannot be read."""

    start: int
    stop: int
    rows: int
    problem: str = ""


def read_header(content: memoryview) -> AvroHeader:
    """Return the header of a file; raises ArrowInvalid if there is none, or the codec is unknown."""
    if content[:4] != _MAGIC:
        raise pa.ArrowInvalid("it is no Avro object container file: it does not begin with 'Obj' and 1")
    metadata: dict[bytes, bytes] = {}
    try:
        at = _read_metadata(content, metadata)
    except (IndexError, ValueError):
        raise pa.ArrowInvalid("the header of the Avro file is cut off or malformed") from None
    sync = bytes(content[at : at + _SYNC_BYTES])
    if len(sync) < _SYNC_BYTES or b"avro.schema" not in metadata:
        raise pa.ArrowInvalid("the header of the Avro file is cut off or malformed")
    codec = metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec not in CODECS:
        raise pa.ArrowInvalid(f"unknown codec '{codec}' of the Avro file; one of: {', '.join(CODECS)}")
    return AvroHeader(metadata[b"avro.schema"].decode("utf-8", "replace"), codec, sync, at + _SYNC_BYTES)


def _read_metadata(content: memoryview, metadata: dict[bytes, bytes]) -> int:
    """Fill in the metadata, and return where it ends; raises IndexError or ValueError if it is damaged."""
    at = len(_MAGIC)
    while True:
        count, at = _read_long(content, at)
        if count == 0:
            return at
        if count < 0:
            count, (_, at) = -count, _read_long(content, at)
        for _ in range(count):
            key, at = _read_bytes(content, at)
            metadata[key], at = _read_bytes(content, at)


def _read_bytes(content: memoryview, at: int) -> tuple[bytes, int]:
    size, at = _read_long(content, at)
    if not 0 <= size <= len(content) - at:
        raise ValueError(size)
    return bytes(content[at : at + size]), at + size


def _read_long(content: memoryview, at: int) -> tuple[int, int]:
    """Return a number and where it ends; raises IndexError at the end of the file, and ValueError for more than 64 bits."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError(value)


def list_blocks(content: memoryview, header: AvroHeader) -> Iterator[AvroBlock]:
    """Yield the blocks of a file; behind a damaged one, the next begins at the sync marker that follows."""
    at = header.size
    while at < len(content):
        start = at
        try:
            rows, at = _read_long(content, at)
            size, at = _read_long(content, at)
        except (IndexError, ValueError):
            rows, size = -1, -1
        stop = at + size
        if rows >= 0 and size >= 0 and content[stop : stop + _SYNC_BYTES] == header.sync:
            yield AvroBlock(at, stop, rows)
            at = stop + _SYNC_BYTES
            continue
        problem = "its count or size is damaged"
        if rows >= 0 and size >= 0:
            is_cut = stop + _SYNC_BYTES > len(content)
            problem = "the file ends within it" if is_cut else f"no sync marker at byte {stop}"
        found = bytes(content[start:]).find(header.sync)
        at = len(content) if found < 0 else start + found + _SYNC_BYTES
        yield AvroBlock(start, at, 1, problem)


def count_block_rows(content: memoryview, *, allows_damage: bool) -> list[int]:
    """Return the number of records of each block; a damaged one counts as 1. Raises ArrowInvalid unless damage is allowed."""
    counts = []
    for number, block in enumerate(list_blocks(content, read_header(content))):
        if block.problem and not allows_damage:
            raise pa.ArrowInvalid(f"block {number} is damaged: {block.problem}")
        counts.append(block.rows)
    return counts


def unpack_block(content: memoryview, block: AvroBlock, codec: str) -> bytes | memoryview:
    """Return the records of a block; raises ArrowInvalid if it cannot be decompressed, or has fewer bytes than records."""
    packed = content[block.start : block.stop]
    try:
        records = _decompress(packed, codec)
    except (zlib.error, pa.ArrowException, OSError, ValueError) as error:
        raise pa.ArrowInvalid(f"it cannot be decompressed ({codec}): {error}") from None
    if len(records) > _MAX_BLOCK_BYTES:
        raise pa.ArrowInvalid("it has more than 1 GiB")
    if block.rows > len(records):
        raise pa.ArrowInvalid(f"it claims {block.rows} records in {len(records)} bytes")
    return records


def _decompress(packed: memoryview, codec: str) -> bytes | memoryview:
    if codec == "null":
        return packed
    if codec == "deflate":
        inflater = zlib.decompressobj(-15)
        records = inflater.decompress(packed, _MAX_BLOCK_BYTES + 1)
        if not inflater.eof and len(records) <= _MAX_BLOCK_BYTES:
            raise ValueError("it is cut off")
        return records
    if codec == "snappy":
        return _decompress_snappy(packed)
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), _STREAM_CODECS[codec]) as stream:
        return bytes(stream.read(_MAX_BLOCK_BYTES + 1))


def _decompress_snappy(packed: memoryview) -> bytes:
    """Return the content of a snappy block, which begins with its size and is followed by a check sum."""
    size = shift = 0
    for byte in packed[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > _MAX_BLOCK_BYTES:
        raise ValueError("it has more than 1 GiB")
    records = bytes(pa.Codec("snappy").decompress(pa.py_buffer(packed[:-4]), size, asbytes=True))
    if zlib.crc32(records) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("its check sum does not match")
    return records
