r"""Rows as lines of text: values separated by commas, no header, the time last, as `2026-01-01 00:00:00.000000`.

    prepared once for each row of a pool      7,12,3,9,5,1,....-..-.. ..:..:...……\n
    when rows are born: the lines are copied, and the digits of the time are put in, a word of the machine at a time

Nothing is done for each row in Python. Where columns advance from one time around to the next, lines are prepared when they
are asked for.
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
_THREE = np.frombuffer(b"".join(b"%03d\n" % number for number in range(1000)), np.uint32)  # three digits and a line end
_DATE_PART = 20  # characters, up to and with the point


class Lines:
    """The text of one partition."""

    def __init__(self, pool: Pool) -> None:
        """Prepare what stays the same each time around; neighbours become one text."""
        self._pool = pool
        self._parts: list[str | pa.Array] = []  # the name of a column that advances, or text for all rows of the pool
        for advances, group in groupby(pool.columns, lambda name: name in pool.advancing):
            names = list(group)
            self._parts += names if advances else [_joined([pool.columns[name].cast(pa.string()) for name in names])]
        if not pool.advancing:
            self._parts = [_joined([*self._parts, pa.scalar(_SHAPE)])]

    def render(self, start: int, times: _Integers) -> bytearray:
        """Return the lines of the rows from `start` on, born at `times`. They lie within one time around the pool."""
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


def _put_times(content: bytearray, places: _Integers, times: _Integers) -> None:
    seconds = times // _SECOND
    below = times - seconds * _SECOND
    thousands = below // 1000
    first, last = int(seconds.min()), int(seconds.max())
    dates = _dates(first, last)
    which: Any = 0 if first == last else seconds - first  # mostly one second, and then one word for all rows
    for at, kind in ((0, np.uint64), (8, np.uint64), (16, np.uint32)):
        words = np.ascontiguousarray(dates[:, at : at + np.dtype(kind).itemsize]).view(kind).ravel()
        _words(content, kind)[places + at] = words[which]
    _words(content, np.uint32)[places + _DATE_PART] = _THREE[thousands]
    _words(content, np.uint32)[places + _DATE_PART + 3] = _THREE[below - thousands * 1000]


def _words(content: bytearray, kind: Any) -> npt.NDArray[Any]:
    """See the text as machine words, one beginning at every character."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(content) - size + 1,), kind, content, strides=(1,))


def _dates(first: int, last: int) -> npt.NDArray[np.uint8]:
    """Return the text of these seconds, one a row, with the point that ends it."""
    seconds = pa.array(np.arange(first, last + 1)).view(pa.timestamp("s")).cast(pa.string())
    return np.frombuffer("".join(f"{text}." for text in seconds.to_pylist()).encode(), np.uint8).reshape(-1, _DATE_PART)
