"""The messages of a file, in chunks that are decoded one after the other, so that large files need little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.connectors.message_formats.kernels import PADDING_BYTES
from headrace.connectors.message_formats.kernels import framing as kernel
from headrace.connectors.messages import Messages
from headrace.connectors.source import RANGE_ROWS

_CHUNK_BYTES = 1 << 24
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """Some messages of a file, and where in the file they begin; `problem` says why nothing behind them can be read."""

    messages: Messages
    start: int
    problem: str = ""


def split_lines(content: Bytes) -> Iterator[MessageChunk]:
    """Yield the lines of a text file that are not blank, as messages with their line ends."""
    at = len(_BYTE_ORDER_MARK) if content[:3].tobytes() == _BYTE_ORDER_MARK else 0
    while at < len(content):
        limit = min(at + _CHUNK_BYTES, len(content))
        offsets = np.empty(min(limit - at, RANGE_ROWS) + 1, np.int64)
        count = kernel.split_lines(content.ctypes.data, at, limit, len(content), offsets)
        start, at = int(offsets[0]), int(offsets[count])
        if count:
            data = np.empty(at - start + PADDING_BYTES, np.uint8)
            data[: at - start], data[at - start :] = content[start:at], 0
            yield MessageChunk(Messages(offsets[: count + 1] - start, data), start)


def split_delimited(content: Bytes) -> Iterator[MessageChunk]:
    """Yield the messages of a file that has the length of each, as a varint, before it."""
    at, size, problem = 0, _CHUNK_BYTES, ""
    while at < len(content) and not problem:
        limit = min(at + size, len(content))
        offsets = np.empty(min(limit - at, RANGE_ROWS) + 1, np.int64)
        data = np.zeros(limit - at + PADDING_BYTES, np.uint8)
        count, stop, is_cut = kernel.split_delimited(content.ctypes.data, at, limit, len(content), offsets, data.ctypes.data)
        if is_cut:
            problem = f"the length at byte {stop} is malformed, or greater than the rest of the file"
        if count or is_cut:
            yield MessageChunk(Messages(offsets[: count + 1].copy(), data), at, problem)
        size = _CHUNK_BYTES if count else 2 * size  # a message that is longer than a chunk
        at = stop
