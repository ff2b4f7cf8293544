"""The columnar container file: NumPy and Arrow arrays in bytes that are read back without copying, for shuffle and state.

A small pickle describes the structure; the buffers of the arrays follow, aligned, and are used in place, also from a memory
map.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.storage.posix import sync_descriptor

_MAGIC = b"HRPK1\0\0\0"
_ALIGNMENT = 64


def pack(value: object) -> bytes:
    """Return bytes from which `unpack` restores an equal value."""
    return b"".join(_encode_chunks(value))


def unpack(data: bytes | memoryview) -> Any:
    """Return the value; its arrays share memory with `data`."""
    view = memoryview(data)
    if len(view) < 20 or bytes(view[:8]) != _MAGIC:
        raise ValueError("not a headrace container (bad magic number)")
    head_size, checksum = struct.unpack("<QI", view[8:20])
    head = view[20 : 20 + head_size]
    if len(head) != head_size or zlib.crc32(head) != checksum:
        raise ValueError("the header of the container is damaged")
    structure, sizes = pickle.loads(head)
    buffers, at = [], _align_up(20 + head_size)
    for size in sizes:
        if at + size > len(view):
            raise ValueError("the container is truncated")
        buffers.append(view[at : at + size])
        at = _align_up(at + size)
    return pickle.loads(structure, buffers=buffers)


def write(path: Path, value: object, *, sync: bool = True) -> None:
    """Write a file atomically: it exists completely or not at all; without `sync` a power failure may lose it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        file.writelines(_encode_chunks(value))
        if sync:
            file.flush()
            sync_descriptor(file.fileno())
    scratch.replace(path)


def read(path: Path) -> Any:
    """Memory-map a file written by `write` and return its value, without copying arrays."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return unpack(memoryview(mapped))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read state file '{path}'",
            detail=str(error),
            hint="restore the checkpoint directory from a copy, or start with a new one",
        ) from error


def _encode_chunks(value: object) -> list[Any]:
    buffers: list[pickle.PickleBuffer] = []
    structure = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw_buffers = [buffer.raw() for buffer in buffers]
    head = pickle.dumps((structure, [raw.nbytes for raw in raw_buffers]), protocol=5)
    chunks: list[Any] = [
        _MAGIC,
        struct.pack("<QI", len(head), zlib.crc32(head)),
        head,
        bytes(_align_up(20 + len(head)) - 20 - len(head)),
    ]
    for raw in raw_buffers:
        chunks += [raw, bytes(_align_up(raw.nbytes) - raw.nbytes)]
    return chunks


def _align_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
