"""The columnar container: a value of records, NumPy arrays and Arrow arrays in bytes that are read back without copying.

It is the format of state files, result files and shuffle blocks:

    magic (8 bytes) · size of the header (8) · check sum of the header (8) · header · buffers, each aligned to 64 bytes

The header is a JSON object: "place" has the identity of the checkpoint and the name of the file, without its folder, because a
shuffle file may become a state file; "buffers" has size and check sum of every buffer, and "document" the records (`records`).
Arrays refer to buffers by number: {"array": [buffer, NumPy type, shape]}, {"column": [type, length, nulls, buffers]},
{"batch": [names, columns]}, {"ipc": buffer with an Arrow IPC stream}, for types whose buffers are not listed one by one.
Every byte but the padding is covered by a check sum; reading verifies all of them before it returns a value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.storage.checksum import compute_checksum_number
from headrace.storage.documents import check_place, damaged_error
from headrace.storage.records import ArrayDecoder, decode_records, decode_type, encode_records, encode_type
from headrace.storage.store import Store

_MAGIC = b"HRCONT2\0"
_HEAD = struct.Struct("<8sQQ")
_ALIGNMENT = 64
_PADDING = bytes(_ALIGNMENT)


def pack(value: object) -> bytes:
    """Return bytes from which `unpack` restores an equal value; raises TypeError for a value without a stored form."""
    return b"".join(_encode_chunks(value, ""))


def _encode_chunks(value: object, place: str) -> list[Any]:
    """Return the bytes of `pack` in parts, without copying the arrays."""
    writer = _BufferWriter()
    document = encode_records(value, writer.encode)
    buffers = ",".join(f"[{len(buffer)},{compute_checksum_number(buffer)}]" for buffer in writer.buffers)
    header = f'{{"place":{json.dumps(place)},"buffers":[{buffers}],"document":{document}}}'.encode()
    chunks: list[Any] = [_HEAD.pack(_MAGIC, len(header), compute_checksum_number(header)), header]
    chunks.append(_PADDING[: -(_HEAD.size + len(header)) % _ALIGNMENT])
    for buffer in writer.buffers:
        chunks += [buffer, _PADDING[: -len(buffer) % _ALIGNMENT]]
    return chunks


def unpack(data: bytes | pa.Buffer, place: str = "") -> Any:
    """Return the value; its arrays share memory with `data`. Raises ValueError for bytes that are damaged or of another place."""
    content = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if content.size < _HEAD.size:
        raise ValueError("the container is truncated")
    magic, header_size, header_checksum = _HEAD.unpack(content.slice(0, _HEAD.size))
    if magic != _MAGIC:
        raise ValueError("not a headrace container, or one of another version (bad magic number)")
    if header_size > content.size - _HEAD.size:
        raise ValueError("the container is truncated")
    header = content.slice(_HEAD.size, header_size)
    if compute_checksum_number(header) != header_checksum:
        raise ValueError("the header of the container is damaged")
    parsed = json.loads(header.to_pybytes())
    check_place(parsed["place"], place)
    reader = _BufferReader(_split_buffers(content, _align_up(_HEAD.size + header_size), parsed["buffers"]))
    return decode_records(parsed["document"], reader.decoders)


def write(store: Store, key: str, value: object, *, sync: bool = True) -> int:
    """Store a value and return the size of the object; without `sync` a loss of power may lose it."""
    chunks = _encode_chunks(value, _place_of(store, key))
    store.put(key, chunks, sync=sync, keep_local=True)
    return sum(map(len, chunks))


def read(store: Store, key: str) -> Any:
    """Return the value of an object, memory-mapped; raises CheckpointError if it is missing, damaged or of another place."""
    try:
        return unpack(store.open_local(key), _place_of(store, key))
    except (OSError, ValueError) as error:
        raise damaged_error(store, key, error) from error


def _place_of(store: Store, key: str) -> str:
    return store.place_of(key.rpartition("/")[2])


def _split_buffers(content: pa.Buffer, start: int, buffers: Sequence[Sequence[int]]) -> list[pa.Buffer]:
    """Return the buffers from `start` on; raises ValueError if one is missing or damaged."""
    parts = []
    for number, (size, checksum) in enumerate(buffers):
        if start + size > content.size:
            raise ValueError("the container is truncated")
        parts.append(content.slice(start, size))
        if compute_checksum_number(parts[-1]) != checksum:
            raise ValueError(f"buffer {number} of the container is damaged")
        start = _align_up(start + size)
    return parts


def _align_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class _BufferWriter:
    """Puts the arrays of a value into buffers; an array that occurs several times is stored once."""

    def __init__(self) -> None:
        self.buffers: list[memoryview | pa.Buffer] = []
        self._encoded: dict[int, tuple[Any, str]] = {}  # with the array, so that its identity stays taken

    def encode(self, value: Any) -> str:
        """Return the JSON text of an array, after adding its buffers."""
        known = self._encoded.get(id(value))
        if known is None:
            known = self._encoded[id(value)] = value, self._encode_new(value)
        return known[1]

    def _encode_new(self, value: Any) -> str:
        match value:
            case np.ndarray():
                return f'{{"array":{self._encode_numpy(value)}}}'
            case np.generic():
                return json.dumps(value.item(), allow_nan=False)
            case pa.RecordBatch():
                columns = ",".join(self.encode(column) for column in value.columns)
                return f'{{"batch":[{json.dumps(value.schema.names)},[{columns}]]}}'
            case pa.Array() if _has_flat_buffers(value.type):
                return f'{{"column":{self._encode_flat(_compact_array(value))}}}'
            case pa.Array():
                return f'{{"ipc":{self._add_buffer(_write_ipc(value))}}}'
        raise TypeError(f"a value of type {type(value).__name__} has no stored form")

    def _encode_numpy(self, array: np.ndarray[Any, Any]) -> str:
        if array.dtype.hasobject or array.dtype.fields is not None:
            raise TypeError(f"an array of {array.dtype} has no stored form")
        contiguous = np.ascontiguousarray(array)
        number = self._add_buffer(contiguous.reshape(-1).view(np.uint8).data if contiguous.size else memoryview(b""))
        shape = "" if array.ndim == 1 else f",{list(array.shape)}"
        return f'[{number},"{array.dtype.str}"{shape}]'

    def _encode_flat(self, array: pa.Array) -> str:
        numbers = ["null" if buffer is None else str(self._add_buffer(buffer)) for buffer in array.buffers()]
        return f'["{encode_type(array.type)}",{len(array)},{array.null_count},[{",".join(numbers)}]]'

    def _add_buffer(self, buffer: memoryview | pa.Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1


class _BufferReader:
    """Builds arrays over buffers; an array that was stored once is one object again."""

    def __init__(self, buffers: Sequence[pa.Buffer]) -> None:
        self._buffers = buffers
        self._arrays: dict[int, Any] = {}
        self.decoders: dict[str, ArrayDecoder] = {
            "array": self._decode_numpy,
            "column": self._decode_flat,
            "batch": self._decode_batch,
            "ipc": self._decode_ipc,
        }

    def _decode_numpy(self, content: Sequence[Any]) -> Any:
        number, kind, *shape = content
        if number not in self._arrays:
            array = np.frombuffer(self._buffers[number], kind)
            self._arrays[number] = array.reshape(shape[0]) if shape else array
        return self._arrays[number]

    def _decode_flat(self, content: Sequence[Any]) -> pa.Array:
        kind, length, null_count, numbers = content
        buffers = [None if number is None else self._buffers[number] for number in numbers]
        return pa.Array.from_buffers(decode_type(kind), length, buffers, null_count)

    def _decode_batch(self, content: Sequence[Any]) -> pa.RecordBatch:
        names, columns = content
        decoded = [self.decoders[kind](inner) for column in columns for kind, inner in column.items()]
        return pa.RecordBatch.from_arrays(decoded, names=names)

    def _decode_ipc(self, number: int) -> pa.Array:
        return pa.ipc.open_stream(self._buffers[number]).read_next_batch().column(0)


def _has_flat_buffers(kind: pa.DataType) -> bool:
    return kind.num_fields == 0 and not pa.types.is_dictionary(kind) and not pa.types.is_string_view(kind)


def _compact_array(array: pa.Array) -> pa.Array:
    """Return the array with buffers of its own if it is a slice of larger ones."""
    held = sum(buffer.size for buffer in array.buffers() if buffer is not None)
    return pa.concat_arrays([array]) if array.offset or held > 2 * array.nbytes + _ALIGNMENT else array


def _write_ipc(array: pa.Array) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], names=[""])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
