r"""Rows as lines of text: comma-separated values without a header, the time last, as `2026-01-01 00:00:00.000000`.

    prepared once for each row of a pool      7,12,3,9,5,1,....-..-.. ..:..:...……\n
    for rows produced: the prepared lines are copied, and the digits of the time are written in machine words

No Python code runs per row. Pools with columns that advance with every pass have their lines prepared on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.generator import Pool

_Integers: TypeAlias = npt.NDArray[np.int64]
_SECOND = 1_000_000
_SHAPE = "0000-00-00 00:00:00.000000\n"
_THREE = np.frombuffer(b"".join(b"%03d\n" % number for number in range(1000)), np.uint32)  # three digits and a newline
_DATE_PART = 20  # up to and including the decimal point


class Lines:
    """Renders the text of one partition."""

    def __init__(self, pool: Pool) -> None:
        """Prepare the text that every pass over the pool repeats; neighbouring columns become one text."""
        self._pool = pool
        self._parts: list[str | pa.Array] = []  # an advancing column by name, or text for all rows of the pool
        for advances, group in groupby(pool.columns, lambda name: name in pool.advancing):
            names = list(group)
            self._parts += names if advances else [_joined([pool.columns[name].cast(pa.string()) for name in names])]
        if not pool.advancing:
            self._parts = [_joined([*self._parts, pa.scalar(_SHAPE)])]

    def render(self, start: int, times: _Integers) -> bytearray:
        """Return the lines of the rows from `start` on with these times; all rows lie within one pass over the pool."""
        text = self._without_times(start, start + len(times))
        offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        content = bytearray(memoryview(text.buffers()[2])[first:last])
        _put_times(content, offsets[1:].astype(np.int64) - (first + len(_SHAPE)), times)
        return content

    def _without_times(self, start: int, stop: int) -> pa.Array:
        parts = [self._text(part, start, stop) for part in self._parts]
        return _joined([*parts, pa.scalar(_SHAPE)]) if self._pool.advancing else parts[0]

    def _text(self, part: str | pa.Array, start: int, stop: int) -> pa.Array:
        if isinstance(part, str):
            return self._pool.column(part, start, stop).cast(pa.string())
        return part.slice(start % self._pool.rows, stop - start)


def _joined(parts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")


def _put_times(content: bytearray, positions: _Integers, times: _Integers) -> None:
    seconds = times // _SECOND
    microseconds = times - seconds * _SECOND
    milliseconds = microseconds // 1000
    first, last = int(seconds.min()), int(seconds.max())
    dates = _dates(first, last)
    second_index: Any = 0 if first == last else seconds - first  # usually one second, and then one word for all rows
    for offset, kind in ((0, np.uint64), (8, np.uint64), (16, np.uint32)):
        words = np.ascontiguousarray(dates[:, offset : offset + np.dtype(kind).itemsize]).view(kind).ravel()
        _words(content, kind)[positions + offset] = words[second_index]
    _words(content, np.uint32)[positions + _DATE_PART] = _THREE[milliseconds]
    _words(content, np.uint32)[positions + _DATE_PART + 3] = _THREE[microseconds - milliseconds * 1000]


def _words(content: bytearray, kind: Any) -> npt.NDArray[Any]:
    """View the text as overlapping machine words, one starting at every character."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(content) - size + 1,), kind, content, strides=(1,))


def _dates(first: int, last: int) -> npt.NDArray[np.uint8]:
    """Format the seconds first … last, one per row, each with its decimal point."""
    seconds = pa.array(np.arange(first, last + 1)).view(pa.timestamp("s")).cast(pa.string())
    return np.frombuffer("".join(f"{text}." for text in seconds.to_pylist()).encode(), np.uint8).reshape(-1, _DATE_PART)
